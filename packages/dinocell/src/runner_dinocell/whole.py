"""Embedding of a whole field: the network embeds windows that cover it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Infer

from runner_dinocell import windows
from runner_dinocell.config import CellConfig
from runner_dinocell.objects import known


@dataclass(frozen=True)
class Embedded:
    """Embeddings of a field's windows, `windows` (n, D) float32, and their upper left pixels.

    `corners` is (n, 2) int32 (y, x). `dropped` (V, D) float32 are the field's embeddings without some channels
    (`dropped.variants`), if they were asked for. `cells` (n, 3) int32 are the number, y and x of the cells around which
    the windows lie, if there are some; (0, 3) in a field without cells, whose windows cover it.
    """

    windows: Array
    corners: Array
    dropped: Array | None = None
    cells: Array | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the field's embedding, for NumPy."""
        return np.array(self.field, dtype)

    @property
    def field(self) -> Array:
        """Mean over the windows, which may be those of cells: (D,) float32."""
        return np.asarray(self.windows.mean(0, dtype=np.float64), np.float32)


def as_arrays(embedded: Embedded) -> dict[str, Array]:
    """Return the arrays of a prediction by name."""
    return {name: array for name, array in vars(embedded).items() if array is not None}


def from_arrays(arrays: Mapping[str, Array]) -> Embedded:
    """Return the prediction that `as_arrays` was given."""
    return Embedded(**arrays)


def side(config: CellConfig) -> int:
    """Return the side of a window in pixels.

    It is the mean side of a global crop's content, so that the network sees cells as large as in training.
    """
    low, high = config.augment.global_scale
    return round(config.data.window * math.sqrt((low + high) / 2))


def own_cells(prepared: Mapping[str, Array]) -> Array:
    """Return the cells (n, 3) of a field: number, y and x; none if windows do not lie around cells."""
    return known(prepared["cells"]) if "cells" in prepared else np.empty((0, 3), np.int32)


def places(prepared: Mapping[str, Array], window: int, stride: float) -> Array:
    """Return the corners (n, 2) int32 of a field's windows: around its cells, or, if it has none, to cover it."""
    shape = prepared["image"].shape[1:]
    cells = own_cells(prepared)
    if not len(cells):
        return windows.corners(shape, window, stride)
    return np.clip(cells[:, 1:] - window // 2, 0, np.array(shape) - window).astype(np.int32)


def predict(prepared: Mapping[str, Array], infer: Infer, window: int, stride: float, batch: int, key: str) -> Array:
    """Return embeddings (n, D) float32 of the windows at `places`: image (C, H, W), levels (C, 2), grey (C,).

    `batch` is the number of windows at once; `key` is the field's, for messages. Raises BadInput for a field smaller
    than the window.
    """
    height, width = prepared["image"].shape[1:]
    if min(height, width) < window:
        raise BadInput(f"{key}: {width} × {height} pixels, smaller than the windows that the network reads ({window})")
    return windows.embedded(prepared, places(prepared, window, stride), infer, window, batch)
