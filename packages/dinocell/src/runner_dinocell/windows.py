"""Fields and their windows as the network gets them; NumPy alone: exports carry this file along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def prepare(image: Array, percentiles: tuple[float, float], missing: Sequence[int] = ()) -> dict[str, Array]:
    """Return `image` (C, H, W) as decoded, with levels and grey.

    levels (C, 2) float32 are its grey values at these percentiles, equal if a channel is constant. grey (C,) int32 is
    the number of different grey values of each channel, 0 for channels in `missing` (places in C).
    """
    counts = [histogram(channel) for channel in image]
    levels = np.array([at_percentiles(own, percentiles) for own in counts], np.float32)
    grey = np.array([np.count_nonzero(own) for own in counts], np.int32)
    grey[list(missing)] = 0
    return {"image": image, "levels": levels, "grey": grey}


def histogram(channel: Array) -> Array:
    """Count the pixels of each grey value (int64) in an image of uint8 or uint16."""
    return np.bincount(channel.ravel(), minlength=1 << 8 * channel.dtype.itemsize)


def at_percentiles(counts: Array, percentiles: Sequence[float]) -> list[float]:
    """Return grey values at percentiles, linear between neighbouring pixels as in `numpy.percentile`.

    `counts` are the pixels of each grey value.
    """
    below = np.cumsum(counts)
    places = np.asarray(percentiles) / 100 * (below[-1] - 1)
    first = np.floor(places)
    low, high = (np.searchsorted(below, rank, side="right") for rank in (first, np.ceil(places)))
    return list((low + (places - first) * (high - low)).tolist())


def usable(levels: Any, own: Any) -> Any:
    """Return the set's levels (C, 2), with a field's `own` for channels that none of the counted fields had.

    Both are arrays or tensors.
    """
    seen = levels[..., 1:] > levels[..., :1]
    return levels * seen + own * ~seen


def corners(shape: tuple[int, int], window: int, stride: float) -> Array:
    """Return (n, 2) int32: the corners of evenly spaced windows that cover a field of `shape`, row by row.

    Windows have side `window`, and lie at most `stride` of a window apart.

    >>> corners((10, 9), 4, 1.0).tolist()
    [[0, 0], [0, 2], [0, 5], [3, 0], [3, 2], [3, 5], [6, 0], [6, 2], [6, 5]]
    """
    starts = [_starts(length, window, max(1.0, stride * window)) for length in shape]
    return np.stack(np.meshgrid(*starts, indexing="ij"), -1).reshape(-1, 2).astype(np.int32)


def _starts(length: int, window: int, step: float) -> Array:
    count = int(np.ceil((length - window) / step)) + 1
    return np.linspace(0, length - window, count).round()


def embedded(
    prepared: Mapping[str, Array],
    at: Array,
    infer: Callable[[dict[str, Array]], dict[str, Array]],
    window: int,
    batch: int,
) -> Array:
    """Return embeddings (n, D) float32 of the windows at the corners `at`: image (C, H, W), levels (C, 2), grey (C,).

    `batch` is the number of windows at once.
    """
    image, found = prepared["image"], []
    for first in range(0, len(at), batch):
        some = at[first : first + batch]
        windows = np.stack([image[:, y : y + window, x : x + window] for y, x in some])
        of_field = {n: np.repeat(prepared[n][None], len(some), 0) for n in ("levels", "grey") if n in prepared}
        found.append(infer({"image": windows, **of_field})["embedding"])
    return np.concatenate(found).astype(np.float32, copy=False)
