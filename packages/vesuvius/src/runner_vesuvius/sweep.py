"""The network over a volume of any size: columns of it are swept along z, window by window, in bounded memory.

All windows lie on one grid over the whole volume, as in `whole.predict`, so that nothing shows where columns or parts
meet. One thread reads ahead, one adds the network's answers up, one writes, and meanwhile the network computes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

import numpy as np
from runner_core import Array, BadInput, Infer, shape_text

from runner_vesuvius.chunked import CHUNK, Mask, Volume
from runner_vesuvius.whole import Axis, OpenPlanes, mirrored

Item = TypeVar("Item")
_SLAB = 128
"""Most planes that are read at once, if the volume's chunks are not deeper."""


@dataclass(frozen=True)
class Windows:
    """The grid of windows over a volume, and the columns in which it is swept."""

    shape: tuple[int, int, int]
    patch: Sequence[int]
    overlap: float
    batch: int
    side: tuple[int, int]
    """Rows and columns of voxels of a column, in whole chunks."""
    axes: list[Axis] = field(init=False)

    def __post_init__(self) -> None:
        axes = [Axis(n, side, self.overlap) for n, side in zip(self.shape, self.patch, strict=True)]
        object.__setattr__(self, "axes", axes)

    @property
    def columns(self) -> list[tuple[slice, slice]]:
        return list(product(spans(self.shape[1], self.side[0]), spans(self.shape[2], self.side[1])))

    @property
    def rows(self) -> list[slice]:
        """Layers of chunks along z: what is written at once."""
        return spans(self.shape[0], CHUNK)

    def count(self, column: tuple[slice, slice], planes: slice) -> int:
        """Return the number of windows that reach so many planes of a column."""
        reached = zip(self.axes, (planes, *column), strict=True)
        return math.prod(len(axis.touching(part.start, part.stop)) for axis, part in reached)


def spans(n: int, side: int) -> list[slice]:
    """Cut 0 … n into pieces of `side`.

    >>> spans(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + side, n)) for start in range(0, n, side)]


def side_for(
    shape: Sequence[int], patch: Sequence[int], chunks: Sequence[int], masked: bool, memory: float
) -> tuple[int, int]:
    """Return the sides of the largest columns that can be swept in so many bytes; both of about the same length.

    Raises BadInput if there is too little memory for a column of one chunk.
    """
    depth, height, width = patch
    slab = _slab(chunks[0])

    def bytes_of(rows: int, columns: int) -> float:
        read = (rows + height) * (columns + width) * (depth + 3 * slab) * (2 if masked else 1)
        return 4 * depth * rows * columns + read + 3 * CHUNK * rows * columns

    best = None
    for pieces in range(1, 1 + max(-(-n // CHUNK) for n in shape[1:])):
        square = -(-max(shape[1:]) // pieces)
        rows, columns = (CHUNK * math.ceil(min(n, square) / CHUNK) for n in shape[1:])
        best = rows, columns
        if bytes_of(rows, columns) <= memory:
            return best
    assert best is not None
    raise BadInput(
        f"--memory-gb is {memory / 1e9:.3g}, and windows of {shape_text(patch)} over one column of chunks take "
        f"{bytes_of(*best) / 1e9:.3g} GB: allow more, or write the volume with chunks that are less deep"
    )


def sweep(
    volume: Volume,
    mask: Mask | None,
    windows: Windows,
    column: tuple[slice, slice],
    rows: Sequence[slice],
    infer: Infer,
    write: Callable[[slice, Array], None],
    done: Callable[[int], None],
) -> None:
    """Predict some rows of a column, which follow each other, and `write` the probability of each (uint8).

    Windows that hold nothing but zeros, or nothing of the mask, are left out: they count as probability 0. Outside the
    mask the probability is 0. `done` is called with the number of windows that a call of the network, or their leaving
    out, has dealt with. `write` is called in the order of the rows, in another thread. A row's values do not depend on
    which rows are asked for with it.
    """
    low, high = rows[0].start, rows[-1].stop
    starts = windows.axes[0].touching(low, high)
    planes = OpenPlanes(windows.axes, column, starts[0])
    layers = _Layers(column, rows, mask, write)
    with ExitStack() as stack:
        read, prepare, add, out = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(4))
        batches = _batches(volume, mask, windows, column, starts, read)
        adding, writing = _Behind(add, 2), _Behind(out, 1)
        following = dict(zip(starts, [*starts[1:], high], strict=True))
        for start, places, images, left_out in _ahead(batches, prepare, 2):
            if places:
                adding.do(_add, planes, places, infer({"image": images})["prediction"][:, 0])
            else:
                adding.do(_finish, planes, min(following[start], high), layers, writing)
            done(len(places) + left_out)
        adding.wait()
        writing.wait()


def _add(planes: OpenPlanes, places: Sequence[Sequence[int]], answers: Array) -> None:
    for place, answer in zip(places, answers, strict=True):
        planes.add(place, answer)


def _finish(planes: OpenPlanes, end: int, layers: _Layers, writing: _Behind) -> None:
    for number, plane in planes.finish(end):
        for row, values in layers.complete(number, plane):
            writing.do(layers.write, row, values)


class _Layers:
    """Finished planes of a column, gathered into the rows that are written."""

    def __init__(
        self,
        column: tuple[slice, slice],
        rows: Sequence[slice],
        mask: Mask | None,
        write: Callable[[slice, Array], None],
    ) -> None:
        self._column, self._mask, self._write = column, mask, write
        self._rows = deque(rows)
        self._layer: Array | None = None

    def complete(self, number: int, plane: Array) -> Iterator[tuple[slice, Array]]:
        """Take the next plane, and yield the row that it completes; planes before the first row are dropped."""
        if not self._rows or number < self._rows[0].start:
            return
        row = self._rows[0]
        if self._layer is None:
            self._layer = np.empty((row.stop - row.start, *plane.shape), np.uint8)
        self._layer[number - row.start] = plane
        if number + 1 == row.stop:
            yield self._rows.popleft(), self._layer
            self._layer = None

    def write(self, row: slice, values: Array) -> None:
        if self._mask is not None:
            values[~self._mask.read((row, *self._column))] = 0
        self._write(row, values)


_Batch = tuple[int, Sequence[Sequence[int]], Array, int]
"""First plane, places and images of the windows, and the number of windows left out; without images at the end of a
plane's windows."""


def _batches(
    volume: Volume,
    mask: Mask | None,
    windows: Windows,
    column: tuple[slice, slice],
    starts: Sequence[int],
    pool: ThreadPoolExecutor,
) -> Iterator[_Batch]:
    """Yield the windows over a column; batches depend on the first plane alone, so that they come again alike."""
    depth, *plane = windows.axes
    corners = list(product(*(axis.touching(part.start, part.stop) for axis, part in zip(plane, column, strict=True))))
    region = tuple(
        slice(min(c[n] for c in corners), max(c[n] for c in corners) + axis.kept) for n, axis in enumerate(plane)
    )
    ends = starts[0], starts[-1] + depth.kept
    slabs = _ahead(_slabs(volume, mask, region, ends), pool, 1)
    held: deque[_Slab] = deque()
    for start in starts:
        while held and held[0].planes.stop <= start:
            held.popleft()
        while not held or held[-1].planes.stop < start + depth.kept:
            held.append(next(slabs))
        images: list[Array] = []
        places: list[Sequence[int]] = []
        left_out = 0
        for corner in corners:
            image = _window(held, start, corner, region, windows.axes)
            if image is None:
                left_out += 1
                continue
            images.append(mirrored(image, windows.axes))
            places.append((start, *corner))
            if len(places) == windows.batch:
                yield start, places, np.stack(images), 0
                images, places = [], []
        if places:
            yield start, places, np.stack(images), 0
        yield start, [], np.empty(0, np.uint8), left_out


class _Slab:
    """Some planes of a column: the scan, which is read at the latest when a window needs it, and where the mask is."""

    def __init__(self, volume: Volume, planes: slice, region: Sequence[slice], mask: Mask | None) -> None:
        self.planes = planes
        self._volume, self._where = volume, (planes, region[0], region[1])
        self.mask = None if mask is None else mask.read(self._where)
        self._image: Array | None = None
        self._read = False
        if self.mask is None or self.mask.any():
            self.image()

    def image(self) -> Array | None:
        """Return the scan, or None if it is nothing but zeros."""
        if not self._read:
            found = self._volume.read(self._where)
            self._image, self._read = found if found.any() else None, True
        return self._image


def _slab(chunk: int) -> int:
    return chunk * max(1, _SLAB // chunk) if chunk <= 2 * _SLAB else _SLAB


def _slabs(volume: Volume, mask: Mask | None, region: Sequence[slice], ends: tuple[int, int]) -> Iterator[_Slab]:
    deep = _slab(volume.chunks[0])
    for first in range(ends[0] // deep * deep, ends[1], deep):
        yield _Slab(volume, slice(max(first, ends[0]), min(first + deep, ends[1])), region, mask)


def _window(
    slabs: Sequence[_Slab], start: int, corner: Sequence[int], region: Sequence[slice], axes: Sequence[Axis]
) -> Array | None:
    """Return a window of the scan, None if it holds nothing but zeros or lies outside the mask."""
    rows, columns = (
        slice(first - part.start, first - part.start + axis.kept)
        for first, part, axis in zip(corner, region, axes[1:], strict=True)
    )
    cuts = []
    for slab in slabs:
        low, high = max(start, slab.planes.start), min(start + axes[0].kept, slab.planes.stop)
        if low < high:
            cuts.append(
                (slab, slice(low - start, high - start), slice(low - slab.planes.start, high - slab.planes.start))
            )
    if not any(slab.mask is None or slab.mask[own, rows, columns].any() for slab, _, own in cuts):
        return None
    window = np.zeros([axis.kept for axis in axes], np.uint8)
    for slab, there, own in cuts:
        if (image := slab.image()) is not None:
            window[there] = image[own, rows, columns]
    return window if window.any() else None


# ------------------------------------------------------------ work in other threads


_END = object()


def _ahead(items: Iterator[Item], pool: ThreadPoolExecutor, count: int) -> Iterator[Item]:
    """Yield the items, of which a thread makes the next `count` meanwhile."""
    waiting: deque[Future[Any]] = deque(pool.submit(next, items, _END) for _ in range(count))
    try:
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, items, _END))
            yield item
    finally:
        for each in waiting:
            each.cancel()


class _Behind:
    """Calls that a thread makes one after another, while at most `count` wait; errors come with a later call."""

    def __init__(self, pool: ThreadPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count
        self._waiting: deque[Future[None]] = deque()

    def do(self, call: Callable[..., None], *arguments: Any) -> None:
        while len(self._waiting) >= self._count:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(call, *arguments))

    def wait(self) -> None:
        while self._waiting:
            self._waiting.popleft().result()
