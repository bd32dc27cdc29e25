"""Embeddings of a whole field: windows that cover it, each through the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from runner_core import BadInput
from runner_core.protocols import Array, Infer

from runner_dinocell.config import CellConfig


@dataclass(frozen=True)
class Embedded:
    """What is predicted of a field: of each window its embedding, `windows` (n, D) float32, and upper left pixel,
    `corners` (n, 2) int32 (y, x)."""

    windows: Array
    corners: Array

    @property
    def field(self) -> Array:
        """(D,) float32: the mean over the windows."""
        return np.asarray(self.windows.mean(0, dtype=np.float64), np.float32)


def side(config: CellConfig) -> int:
    """Pixels of a window's side: what a global crop shows on average, so that the network sees cells as large as those
    it has learned from."""
    low, high = config.augment.global_scale
    return round(config.data.window * math.sqrt((low + high) / 2))


def corners(shape: tuple[int, int], window: int, stride: float) -> Array:
    """(n, 2) int32: windows of side `window` that cover a field of `shape`, as far apart as `stride` of a window at
    most, evenly, row by row.

    >>> corners((10, 9), 4, 1.0).tolist()
    [[0, 0], [0, 2], [0, 5], [3, 0], [3, 2], [3, 5], [6, 0], [6, 2], [6, 5]]
    """
    starts = [_starts(length, window, max(1.0, stride * window)) for length in shape]
    return np.stack(np.meshgrid(*starts, indexing="ij"), -1).reshape(-1, 2).astype(np.int32)


def _starts(length: int, window: int, step: float) -> Array:
    count = int(np.ceil((length - window) / step)) + 1
    return np.linspace(0, length - window, count).round()


def embed(prepared: Mapping[str, Array], infer: Infer, window: int, stride: float, batch: int, key: str) -> Embedded:
    """Embeddings of a prepared field: image (C, H, W), levels (C, 2). `batch`: windows at once; `key`: the field's,
    for messages. Raises BadInput for a field smaller than the window."""
    image, levels = prepared["image"], prepared["levels"]
    height, width = image.shape[1:]
    if min(height, width) < window:
        raise BadInput(f"{key}: {width} × {height} pixels, smaller than the windows that the network reads ({window})")
    places = corners((height, width), window, stride)
    found = []
    for first in range(0, len(places), batch):
        some = places[first : first + batch]
        windows = np.stack([image[:, y : y + window, x : x + window] for y, x in some])
        found.append(infer({"image": windows, "levels": np.repeat(levels[None], len(some), 0)})["embedding"])
    return Embedded(np.concatenate(found).astype(np.float32, copy=False), places)
