"""The usual samples: what the model sees of the prepared arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.text import shape_text
from runner_core.contract import Array, Arrays, Samples, SampleSpec, Store, is_streamed
from runner_core.data import coordinates
from runner_core.data.cache.storage import LiveArray
from runner_core.data.sampling import near_order_of, order, random_below, random_words

_MOST_AHEAD = 4096
"""Largest number of samples to look ahead; more would not help with a link that stalls for longer."""


class RecordSamples:
    """Samples of a store's records.

    If records are fetched as they are used (`Streamed`), samples come in an order in which one fetch serves all samples
    of a record, and a record that cannot be read is replaced.
    """

    record_of_sample: Array
    """Record of each sample: (samples,) int64."""

    def __init__(self, store: Store) -> None:
        self._stream = store if is_streamed(store) else None
        self._replaced = 0

    def __len__(self) -> int:
        return len(self.record_of_sample)

    @property
    def streaming(self) -> bool:
        return self._stream is not None

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """Return `count` sample numbers (int64) of one epoch."""
        if self._stream is not None and shuffle:
            return near_order_of(seed, epoch, self._group_of_sample, count, self._stream.block)
        return order(seed, epoch, len(self), count, shuffle)

    @property
    def ahead(self) -> int:
        """Number of coming samples to announce: those of half a block of records, which fit on the disk."""
        if self._stream is None:
            return 0
        return min(_MOST_AHEAD, self._stream.block // 2 * len(self) // max(1, len(self._all_records)))

    def expect(self, indices: Array) -> None:
        """Start fetching the records of samples `indices`, if records are fetched."""
        if self._stream is not None:
            records = self.record_of_sample[indices]
            self._stream.expect(records[np.sort(np.unique(records, return_index=True)[1])])

    def counters(self) -> dict[str, float]:
        """Return what fetching took in this process since the last call; `replaced` counts samples of other records."""
        if self._stream is None:
            return {}
        replaced, self._replaced = self._replaced, 0
        return self._stream.counters() | {"replaced": replaced}

    def _readable(self, records: Array, positions: Array, epoch: int) -> Array:
        """Return the records to read instead of `records`: the same ones, unless they cannot be read."""
        if self._stream is None:
            return records
        found = self._stream.usable(records, positions, epoch, self._all_records)
        self._replaced += int(np.count_nonzero(found != records))
        return found

    @cached_property
    def _group_of_sample(self) -> Array | range:
        """Return each sample's record, numbered without gaps."""
        if self._all_records is self.record_of_sample:
            return range(len(self))
        return np.unique(self.record_of_sample, return_inverse=True)[1]

    @cached_property
    def _all_records(self) -> Array:
        """Return each record that has samples, once; if each has one, that may be `record_of_sample` itself."""
        records = self.record_of_sample
        return records if (records[1:] > records[:-1]).all() else np.unique(records)


_WORDS = 4
"""Random words for a patch's position: one for each of its axes."""
_INT64 = SampleSpec((), np.dtype(np.int64))


class RowSamples(RecordSamples):
    """Samples that are single rows (slices, for example) of the stored arrays, optionally with neighbours.

    `fields` maps a stored array to row offsets: {"image": (-1, 0, 1), "mask": (0,)} gives image (3, H, W) and mask (1,
    H, W). A neighbour beyond the record's end is its last row. `records` are record numbers in the store. `rows`, one
    int array per record, limits the samples to these rows of it (default: all).

    `spec` describes what `fill` writes: the fields and `record` (int64, the record's number). With `store.device` it is
    only `row` and `record`: the engine holds the arrays on the device and gathers there, using

    - `row_numbers` (samples,): row of each sample in the arrays' concatenation along the first axis,
    - `record_of_sample` (samples,): its record,
    - `record_rows` (store records + 1,): the rows of record r begin at entry r and end at entry r + 1.
    """

    def __init__(
        self,
        store: Store,
        fields: Mapping[str, Sequence[int]],
        records: Sequence[int],
        rows: Sequence[Array] | None = None,
    ) -> None:
        super().__init__(store)
        self.store = store
        self.fields = {name: tuple(offsets) for name, offsets in fields.items()}
        self.arrays = {name: store.arrays[name] for name in self.fields}
        self._live = any(isinstance(array, LiveArray) for array in self.arrays.values())
        lengths = _common_lengths(store, list(self.fields))
        self.record_rows = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if rows is None:
            rows = [np.arange(lengths[r]) for r in records]
        for record, own in zip(records, rows, strict=True):
            if len(own) and not 0 <= np.min(own) <= np.max(own) < lengths[record]:
                raise ValueError(f"rows of {store.keys[record]} must lie in 0…{lengths[record] - 1}")
        self.record_of_sample = np.repeat(np.asarray(records, np.int64), [len(r) for r in rows])
        inside = np.concatenate([np.empty(0, np.int64), *rows]).astype(np.int64)
        self.row_numbers = self.record_rows[self.record_of_sample] + inside
        self.spec = self._spec()

    def _spec(self) -> dict[str, SampleSpec]:
        if self.store.device:
            return {"row": _INT64, "record": _INT64}
        fields = {
            name: SampleSpec((len(offsets), *self.arrays[name].shapes[0][1:]), self.arrays[name].dtype)
            for name, offsets in self.fields.items()
        }
        return fields | {"record": _INT64}

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Gather samples `indices` into `out`; nothing here is random."""
        rows = self.row_numbers[indices]
        own = self.record_of_sample[indices]
        records = self._readable(own, positions, epoch)
        if records is not own:  # the same row of the replacement record
            rows = rows + self.record_rows[records] - self.record_rows[own]
        out["record"][...] = records
        if self.store.device:
            out["row"][...] = rows
            return
        for some in self._together(records):
            for name, offsets in self.fields.items():
                target = out[name][some]
                wanted = rows[some] if offsets == (0,) else self._neighbours(rows[some], records[some], offsets)
                self.arrays[name].take(wanted, target.reshape(len(wanted), *target.shape[2:]))

    def _together(self, records: Array) -> list[slice]:
        """Return which samples are gathered at once: usually all.

        Records that are prepared at each read are gathered one by one, all samples of a record in a row, so that it is
        prepared once for all of its arrays.
        """
        if not self._live:
            return [slice(None)]
        return [slice(i, i + 1) for i in np.argsort(records, kind="stable").tolist()]

    def _neighbours(self, rows: Array, records: Array, offsets: tuple[int, ...]) -> Array:
        """Return rows (samples × offsets, flat), held within each sample's own record."""
        first, last = self.record_rows[records], self.record_rows[records + 1] - 1
        return np.clip(rows[:, None] + np.asarray(offsets), first[:, None], last[:, None]).ravel()


class WholeSamples(RecordSamples):
    """Samples that are whole records: one sample for each of `records` (numbers in the store).

    `fields` names the stored arrays that a sample has; by default it has all. An array must have one shape in all
    records: let `prepare` resize or pad it. A label is an array too: a class number of shape (1,), for example.

    `spec` holds the fields and `record` (int64). Raises BadInput for shapes that differ, and with `cache.mode device`,
    where the engine gathers rows.
    """

    def __init__(self, store: Store, records: Sequence[int], fields: Sequence[str] = ()) -> None:
        if store.device:
            raise BadInput("whole records are read on the host: set cache.mode to memmap or memory, not device")
        super().__init__(store)
        self.arrays = {name: store.arrays[name] for name in fields or store.arrays}
        self.record_of_sample = np.asarray(records, np.int64)
        for name, array in self.arrays.items():
            shapes = array.shapes
            odd = next((r for r in records if shapes[r] != shapes[records[0]]), None)
            if odd is not None:
                raise BadInput(
                    f"'{name}' of record {store.keys[odd]} has the shape {shapes[odd]}, that of "
                    f"{store.keys[records[0]]} has {shapes[records[0]]}: a batch needs one shape (let `prepare` resize "
                    "or pad, or sample patches)"
                )
        first = records[0] if len(records) else 0
        self.spec = {name: SampleSpec(a.shapes[first], a.dtype) for name, a in self.arrays.items()} | {"record": _INT64}

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Copy the records of samples `indices` into `out`; nothing here is random."""
        records = self._readable(self.record_of_sample[indices], positions, epoch)
        out["record"][...] = records
        for i, record in enumerate(records.tolist()):  # a record prepared at each read is prepared once for all fields
            for name, array in self.arrays.items():
                out[name][i] = array.read(record)


class _Cut(RecordSamples):
    """Base of samples that are windows of one size, cut out of records on the host."""

    def __init__(self, store: Store, fields: Sequence[str], patch: Sequence[int]) -> None:
        if store.device:
            raise BadInput("patches are cut on the host: set cache.mode to memmap or memory, not device")
        super().__init__(store)
        if not 1 <= len(patch) <= _WORDS or min(patch) < 1:
            raise BadInput(f"a patch must have one to {_WORDS} sides of 1 or more, not {tuple(patch)}")
        self.arrays = {name: store.arrays[name] for name in fields}
        self.patch = np.asarray(patch, np.int64)
        self.grids = _common_grids(store, list(fields), len(patch))
        self.record_of_sample = np.empty(0, np.int64)
        self.spec = {
            name: SampleSpec((*self.patch.tolist(), *array.shapes[0][len(patch) :]), array.dtype)
            for name, array in self.arrays.items()
        } | {"record": _INT64}

    def _copy(self, records: Array, starts: Array, stops: Array, out: Arrays) -> None:
        """Copy the box from `starts` to `stops` of each record to the first corner of its sample in `out`."""
        out["record"][...] = records
        where = zip(records.tolist(), starts.tolist(), stops.tolist(), strict=True)
        boxes = [(record, tuple(map(slice, start, stop))) for record, start, stop in where]
        corners = [tuple(map(slice, size)) for size in (stops - starts).tolist()]
        fields = [(out[name], array.read) for name, array in self.arrays.items()]
        for i, (record, box) in enumerate(boxes):  # a record prepared at each read is prepared once for all fields
            for target, read in fields:
                target[i][corners[i]] = read(record, box)


class PatchSamples(_Cut):
    """Samples that are patches of their record (a cube of a volume, a window of an image) at random positions.

    `fields` names stored arrays. `patch` is the size along their first axes (one to four), which all fields must share;
    further axes, such as channels, are taken whole. An epoch has `patches` of each of `records` (numbers in the store):
    one number, or one for each record. Every position at which the patch lies within its record is equally likely,
    unless `around` is given. Positions are a pure function of (seed, epoch, position in the sequence): validation,
    whose epoch is always the same, sees the same patches each time.

    `around` draws a share of the patches at places with something to see. It maps a stored array of coordinates to that
    share. The array is (n, axes), integers, in voxels of the record's grid, where n may differ between records and may
    be 0. With {"surface": 0.5, "valid": 0.25}, half of the patches hold one of the record's coordinates in `surface`, a
    quarter hold one in `valid`, and the rest lie anywhere. Each coordinate is equally likely, and it lies at a random
    place within the patch, not always in its centre. A patch that would reach beyond the record is moved into it. If a
    record has no coordinate in the drawn array, the next array in which it has some is used, or any position if there
    is none.

    `spec` holds the fields, (*patch, *further axes), and `record` (int64). Raises BadInput for a record smaller than
    the patch (let `prepare` pad it), for `around` without coordinates or with shares above 1 in total, and with
    `cache.mode device`, where the engine gathers whole rows. `fill` raises it for a coordinate outside the record's
    grid.
    """

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        patch: Sequence[int],
        records: Sequence[int],
        patches: int | Sequence[int] = 1,
        *,
        around: Mapping[str, float] = {},
    ) -> None:
        super().__init__(store, fields, patch)
        counts = np.broadcast_to(np.asarray(patches, np.int64), len(records))
        self.record_of_sample = np.repeat(np.asarray(records, np.int64), counts)
        self._places = self.grids - self.patch + 1
        """Number of positions of the patch along each axis: (store records, axes)."""
        for record in records:
            if (self._places[record] < 1).any():
                raise BadInput(
                    f"{store.keys[record]} has a grid of {shape_text(self.grids[record])}, smaller than the patch of "
                    f"{shape_text(self.patch)}: choose a smaller patch, or let `prepare` pad it"
                )
        self._around = coordinates.Around(store, around, self.grids, self.patch) if around else None

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Copy the patches of samples `indices` into `out`."""
        records = self._readable(self.record_of_sample[indices], positions, epoch)
        starts = self.starts_of(records, positions, seed, epoch)
        self._copy(records, starts, starts + self.patch, out)

    def starts_of(self, records: Array, positions: Array, seed: int, epoch: int) -> Array:
        """Return where the patches drawn at `positions` in these records begin: (samples, axes).

        A subclass may choose otherwise, from these arguments alone, so that a resumed run goes on alike.
        """
        drawn = random_words(seed, epoch, positions, _WORDS if self._around is None else _WORDS + coordinates.WORDS)
        sides = drawn[:, : len(self.patch)]
        starts = random_below(sides, self._places[records])
        if self._around is not None:
            self._around.move(starts, records, sides, drawn[:, _WORDS:])
        return starts


class TileSamples(_Cut):
    """Samples that are tiles of their record: patches on a grid that begins at its first corner and covers it.

    `fields`, `patch` and `records` are as in `PatchSamples`. Tiles begin every `stride` along each axis; by default
    they lie side by side. Voxels beyond the record's end are zero. `keep` leaves out the tiles in which nothing is
    marked. It names a stored array over the same grid, or returns one for a record number; nonzero values are marks.
    Nothing is random: an epoch takes each tile once.

    `spec` holds the fields, (*patch, *further axes), and `record` (int64). `starts` (samples, axes) holds the position
    of each tile. Raises BadInput with `cache.mode device`, where the engine gathers whole rows, and for strides that
    leave gaps.
    """

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        patch: Sequence[int],
        records: Sequence[int],
        *,
        stride: Sequence[int] | None = None,
        keep: str | Callable[[int], Array] | None = None,
    ) -> None:
        super().__init__(store, fields, patch)
        steps = self.patch if stride is None else np.asarray(stride, np.int64)
        if steps.shape != self.patch.shape or (steps < 1).any() or (steps > self.patch).any():
            raise BadInput(f"a stride of {shape_text(steps)} leaves gaps between patches of {shape_text(self.patch)}")
        marks = store.arrays[keep].read if isinstance(keep, str) else keep
        starts = []
        for record in records:
            tiles = _tiles(self.grids[record], self.patch, steps)
            starts.append(tiles if marks is None else tiles[_marked(marks(record), tiles, self.patch)])
        self.record_of_sample = np.repeat(np.asarray(records, np.int64), [len(s) for s in starts])
        self.starts = np.concatenate([np.empty((0, len(patch)), np.int64), *starts])

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Copy the tiles of samples `indices` into `out`; nothing here is random."""
        records, starts = self._readable(self.record_of_sample[indices], positions, epoch), self.starts[indices]
        stops = np.minimum(starts + self.patch, self.grids[records])
        short = (stops - starts < self.patch).any(axis=1)
        for name in self.arrays:
            out[name][short] = 0
        self._copy(records, starts, stops, out)


def _tiles(grid: Array, patch: Array, stride: Array) -> Array:
    """Return where tiles that cover a grid begin: (tiles, axes), the last axis fastest; none for an empty grid."""
    counts = np.where(grid > 0, 1 + np.maximum(0, -(-(grid - patch) // stride)), 0)
    return np.indices(counts.tolist()).reshape(len(grid), -1).T * stride


def _marked(marks: Array, tiles: Array, patch: Array) -> Array:
    """Return for each tile if anything in it is nonzero: (tiles,) bool."""
    found = [marks[tuple(map(slice, start, start + patch))].any() for start in tiles]
    return np.array(found, bool)


def refuse_differing_fields(samples: Mapping[str, Samples]) -> None:
    """Raise BadInput if splits want different fields, because on the device one gather serves all splits."""
    wanted = {split: getattr(own, "fields", None) for split, own in samples.items()}
    if any(fields != wanted["train"] for fields in wanted.values()):
        raise BadInput(f"cache.mode device needs the same fields for every split, not {wanted}; use cache.mode memory")


def _common_lengths(store: Store, names: Sequence[str]) -> list[int]:
    """Return the rows of every record, which all arrays must share; trailing shapes must agree over records."""
    lengths: list[int] = []
    for name in names:
        shapes = store.arrays[name].shapes
        if odd := [i for i, s in enumerate(shapes) if s[1:] != shapes[0][1:]]:
            raise BadInput(
                f"'{name}' of record {store.keys[odd[0]]} has rows of shape {shapes[odd[0]][1:]}, others have "
                f"{shapes[0][1:]}: a batch needs one shape (let `prepare` pad or crop, or sample patches)"
            )
        own = [s[0] for s in shapes]
        if lengths and own != lengths:
            raise BadInput(f"'{name}' and '{names[0]}' have different numbers of rows")
        lengths = own
    return lengths


def _common_grids(store: Store, names: Sequence[str], axes: int) -> Array:
    """Return the first `axes` sizes of every record (records, axes), which all arrays must share.

    The remaining axes must agree over records.
    """
    first = store.arrays[names[0]].shapes
    for name in names:
        shapes = store.arrays[name].shapes
        for key, shape, grid in zip(store.keys, shapes, first, strict=True):
            if len(shape) < axes or shape[:axes] != grid[:axes] or shape[axes:] != shapes[0][axes:]:
                raise BadInput(
                    f"'{name}' of record {key} has shape {shape}: a patch needs the first {axes} axes of "
                    f"'{names[0]}', {grid[:axes]}, and after them {shapes[0][axes:]} as the other records have"
                )
    return np.array([shape[:axes] for shape in first], np.int64).reshape(len(first), axes)
