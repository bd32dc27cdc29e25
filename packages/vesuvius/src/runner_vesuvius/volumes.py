"""Volumes in files: tif."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

Array = np.ndarray[Any, np.dtype[Any]]


def write_tif(path: Path, volume: Array) -> None:
    """Write a volume (D, H, W) uint8 as the challenge asks: a tif of D pages, LZW; whole or not at all."""
    if volume.ndim != 3 or volume.dtype != np.uint8 or not volume.size:
        raise ValueError(f"{path.name}: a volume (D, H, W) of uint8 is written, not {volume.dtype} {volume.shape}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        tifffile.imwrite(temporary, volume, photometric="minisblack", compression="lzw", metadata=None)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
