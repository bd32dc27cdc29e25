"""Pictures as PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from runner_core.contract import Array


def write_pictures(pictures: Mapping[str, Array], folder: Path) -> list[Path]:
    """Write pictures as folder/NAME.png."""
    written = []
    for name, picture in pictures.items():
        path = folder / f"{file_name(name)}.png"
        write_png(path, picture)
        written.append(path)
    return written


def write_png(path: Path, picture: Array) -> None:
    """Write (H, W, 3) or (H, W) uint8 as PNG."""
    if not is_picture(picture):
        raise ValueError(f"a picture is (H, W, 3) or (H, W) uint8, not {picture.shape} {picture.dtype}")
    Image.fromarray(picture).save(path, "PNG")


def png_bytes(picture: Array) -> bytes:
    """Return (H, W, 3) or (H, W) uint8 as the content of a PNG file."""
    data = BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


def is_picture(picture: Any) -> bool:
    array = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.size > 0
    return array and (picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 3))


def file_name(key: str) -> str:
    """Return a name that every file system accepts.

    >>> file_name("p01/slice 3")
    'p01_slice_3'
    """
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in key)[:100]


def panels(pictures: Mapping[str, Array], least: int = 200) -> Array:
    """Return pictures of equal height side by side, each below its name: (H, W, 3) uint8.

    They are (h, w) or (h, w, 3) uint8; small ones are enlarged by a whole factor to at least `least` pixels of height.
    """
    columns = []
    for name, picture in pictures.items():
        zoom = max(1, -(-least // picture.shape[0]))
        colour = np.broadcast_to(picture.reshape(*picture.shape[:2], -1), (*picture.shape[:2], 3))
        large = colour.repeat(zoom, axis=0).repeat(zoom, axis=1)
        head = Image.new("RGB", (large.shape[1], 18), (20, 20, 20))
        ImageDraw.Draw(head).text((4, 3), name, fill=(225, 225, 225))
        columns.append(np.pad(np.concatenate([np.asarray(head), large]), ((0, 0), (0, 4), (0, 0)), constant_values=20))
    return np.concatenate(columns, axis=1)[:, :-4]
