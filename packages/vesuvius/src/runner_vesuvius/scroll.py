"""Prediction of whole scrolls: OME-Zarr of any size in, OME-Zarr out, chunk by chunk, in parts, resumable.

The work has stages, each in units that are marked when they are written: the network's probabilities, averages along
sheets, components, cavities, the mask, its coarser levels. A killed prediction goes on behind its last mark, and what
it writes depends on neither kills nor parts. `KEY.work.zarr` holds marks and whatever the end does not need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, BadInput, BlockWork, Location, location, progress

from runner_vesuvius import blockwise, chunked
from runner_vesuvius.blockwise import Blocks, Pieces
from runner_vesuvius.chunked import CHUNK, Folder, Mask, Region, Volume
from runner_vesuvius.config import ScrollConfig, ScrollPredictConfig, ScrollPredictOptions
from runner_vesuvius.postprocess import lowest
from runner_vesuvius.sweep import Windows, side_for, sweep
from runner_vesuvius.whole import mean_of, scaled

_BYTES = 32
"""Memory for a voxel of a block of post-processing."""
_LEAST, _COARSEST = 256, 256
"""Side of the blocks of coarser levels, and the longest side of the coarsest level."""
_EXACT = ("threshold", "seed_threshold", "overlap", "along_sheets", "thickness", "min_size", "fill_holes", "views")
"""Settings of `predict` that give in blocks what they give on whole volumes."""


@dataclass(frozen=True)
class _Stage:
    name: str
    title: str
    count: int
    work: Callable[[int], None]


class Scroll:
    """The prediction of one volume. Raises BadInput for input and settings that do not go together."""

    def __init__(
        self,
        work: BlockWork,
        config: ScrollConfig,
        options: ScrollPredictOptions,
        batch: int,
        scale: Callable[[Array], Array] | None = None,
        scale_known: bool = False,
    ) -> None:
        """Prepare the work; windows come in batches of `batch`.

        `scale(counts)` returns the scale of the volume's intensities (2,), from its voxels by intensity unless
        `scale_known`; None for a network that needs none.
        """
        _refuse(config)
        _refuse_files(work.record.files["image"])
        if not 0 < options.memory_gb < math.inf:
            raise BadInput(f"--memory-gb is {options.memory_gb:g}; a number above 0 is needed")
        self._work, self._settings, self._options = work, config.predict, options
        self._remote, self._scale, self._scale_known = config.remote, scale, scale_known
        scroll = [work.record.group] if config.data.normalise == "scroll" else []
        self._normalisation = " ".join(map(str, [config.data.normalise, *scroll, *config.data.intensities]))
        self._volume = Volume(work.record.files["image"], config.remote)
        memory = options.memory_gb * 1e9
        _refuse_chunks(self._volume, memory)
        shape = self._volume.shape
        self._mask = Mask(location(options.mask), config.remote, shape) if options.mask else None
        sides = side_for(shape, config.data.patch, self._volume.chunks, self._mask is not None, memory)
        self._windows = Windows(shape, config.data.patch, config.predict.overlap, batch, sides)
        self._refuse_part()
        side = CHUNK * max(1, min(4, int((memory / _BYTES) ** (1 / 3)) // CHUNK))
        self._blocks = Blocks(shape, side)
        self._out = Folder(location(options.store) if options.store else work.out, config.remote)
        self._format = {"auto": self._volume.format, "0.4": 2, "0.5": 3}[options.ngff]
        self._name = f"{work.record.key}.zarr"
        self._soft_name = f"{work.record.key}_probability.zarr"
        self._work_name = f"{work.record.key}.work.zarr"

    def _refuse_part(self) -> None:
        (part, parts), layers = self._work.part, len(self._windows.rows)
        if parts > layers:
            raise BadInput(
                f"--part {part}/{parts}: {self._volume.place} has {layers} layers of {CHUNK} planes, and a part takes "
                f"at least one: at most {layers} parts"
            )

    def predict(self) -> Sequence[Location]:
        """Do this part of the work, and whatever follows if all parts are done; return what was written.

        Returns nothing if other parts are missing.
        """
        plan = self._plan()
        if self._finished(plan):
            print(f"{self._out.place / self._name} is there already, whole")
            return self._written
        self._begin(plan)
        self._network()
        if missing := self._missing_parts():
            print(f"{self._work.record.key}: this part is done; {missing}. The part that ends last does the rest")
            return []
        try:
            for stage in self._stages():
                self._run(stage)
            self._end(plan)
        except BadInput:  # its cause may be that another part has ended meanwhile, and removed what this one reads
            if self._work.part[1] == 1 or not self._finished(plan):
                raise
            self._out.remove(self._work_name)  # of which this part may have made something anew
            print(f"{self._work.record.key}: another part has done the rest")
        return self._written

    @property
    def _written(self) -> Sequence[Location]:
        names = [self._name, *([self._soft_name] if self._options.probability else [])]
        return [self._out.place / name for name in names]

    # ------------------------------------------------------------ what was begun, and what is done

    def _plan(self) -> dict[str, Any]:
        """Return everything on which the result depends, as JSON."""
        settings = {name: getattr(self._settings, name) for name in _EXACT if name != "views"}
        return {
            "volume": _whole_name(self._volume.place),
            "shape": list(self._volume.shape),
            "mask": _whole_name(location(self._options.mask)) if self._options.mask else None,
            "normalisation": self._normalisation,
            "networks": self._work.named,
            "views": [view.name for view in self._work.views],
            "patch": list(self._windows.patch),
            "windows at once": self._windows.batch,
            "columns (--memory-gb)": list(self._windows.side),
            "blocks (--memory-gb)": self._blocks.side,
            "--probability": self._options.probability,
            "zarr": self._format,
            **{f"predict.{name}": value for name, value in settings.items()},
        }

    def _finished(self, plan: dict[str, Any]) -> bool:
        group = (self._out / self._name).existing()
        found = None if group is None else group.attrs.asdict().get("runner")
        if found is not None:
            self._refuse_other(found, plan, self._name)
        elif group is not None and (self._out / self._work_name).existing() is None:
            raise BadInput(f"{self._out.place / self._name}: there is another volume of this name; give another --out")
        return found is not None

    def _begin(self, plan: dict[str, Any]) -> None:
        group = (self._out / self._work_name).group(self._format)
        found = group.attrs.asdict().get("plan")
        if found is not None:
            self._refuse_other(found, plan, self._work_name)
            print(f"{self._work.record.key}: goes on with {self._out.place / self._work_name}", flush=True)
        else:
            group.attrs.update({"plan": plan})
        self._temporary = group
        self._image = (self._out / self._name).group(self._format)
        self._soft = (self._out / self._soft_name).group(self._format) if self._options.probability else group

    def _refuse_other(self, found: dict[str, Any], plan: dict[str, Any], name: str) -> None:
        other = [f"{key} was {found.get(key)}, now {value}" for key, value in plan.items() if found.get(key) != value]
        if other:
            place = self._out.place / name
            raise BadInput(f"{place} was begun otherwise: {'; '.join(other)}. Give the same, or another --out.")

    def _refuse_gone(self) -> None:
        """Raise BadInput if another process has finished this prediction, and removed what it no longer needs."""
        group = (self._out / self._work_name).existing()
        if group is None or "plan" not in group.attrs:
            raise BadInput(f"{self._out.place / self._work_name} is gone: another process has finished {self._name}")

    def _marks(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return an array of the units that are done, each in a chunk of its own."""
        return chunked.array(self._temporary, f"done_{name}", shape, [1] * len(shape))

    # ------------------------------------------------------------ the network

    @cached_property
    def _probability(self) -> Any:
        name = "0" if self._options.probability else "probability"
        return chunked.array(self._soft, name, self._volume.shape, [CHUNK] * 3)

    @property
    def _network_marks(self) -> Any:
        return self._marks("network", (len(self._windows.columns), len(self._windows.rows)))

    def _network(self) -> None:
        """Predict this part's layers of chunks that are not done yet."""
        rows, marks, columns = self._windows.rows, self._network_marks, self._windows.columns
        part, parts = self._work.part
        mine = range(len(rows) * (part - 1) // parts, len(rows) * part // parts)
        done = marks[...]
        runs = [(c, run) for c in range(len(columns)) for run in _runs([r for r in mine if not done[c, r]])]
        total = sum(self._windows.count(columns[c], slice(rows[run[0]].start, rows[run[-1]].stop)) for c, run in runs)
        networks = [
            network if self._scale is None else scaled(network, self._own_scale) for network in self._work.networks
        ]
        infer = mean_of(networks, self._work.views)
        with progress(f"{self._work.record.key}: windows", total, _say) as advance:
            for number, run in runs:
                write = partial(self._write_layer, marks, number)
                own = [rows[r] for r in run]
                sweep(self._volume, self._mask, self._windows, columns[number], own, infer, write, advance)

    @cached_property
    def _own_scale(self) -> Array:
        """The scale of the volume's intensities; all parts use the one that was found first."""
        assert self._scale is not None
        found = self._temporary.attrs.asdict().get("scale")
        if found is None:
            counts = np.zeros(256, np.int64)
            regions = [] if self._scale_known else [self._blocks.region(number) for number in range(len(self._blocks))]
            with progress(f"{self._work.record.key}: intensities", len(regions), _say) as advance:
                for region in regions:
                    counts += np.bincount(self._volume.read(region).reshape(-1), minlength=256)
                    advance(1)
            found = self._scale(counts).tolist()
            self._temporary.attrs.update({"scale": found})
        return np.array(found, np.float32)

    def _write_layer(self, marks: Any, column: int, row: slice, values: Array) -> None:
        self._put(self._probability, (row, *self._windows.columns[column]), values)
        marks[column, row.start // CHUNK] = 1

    def _missing_parts(self) -> str:
        done = self._network_marks[...].astype(bool)
        return "" if done.all() else f"{np.count_nonzero(~done)} of {done.size} layers are missing"

    # ------------------------------------------------------------ what follows

    def _stages(self) -> Iterator[_Stage]:
        """Yield what turns probabilities into the mask, as `postprocess.surface` does, and into coarser levels."""
        settings, soft = self._settings, self._probability
        if settings.along_sheets > 0 or settings.thickness > 0:
            source, soft = soft, self._temporary_array("redrawn")
            yield self._stage("redrawn", "sheets drawn anew", self._redrawn(source, soft))
        mask = chunked.array(self._image, "0", self._volume.shape, [CHUNK] * 3)
        kept = self._temporary_array("surface") if settings.fill_holes > 0 else mask
        yield from self._surface(soft, kept)
        if settings.fill_holes > 0:
            yield from self._filled(kept, mask)
        yield from self._levels(self._image, "mask", largest=True)
        if self._options.probability:
            yield from self._levels(self._soft, "probability", largest=False)

    def _surface(self, soft: Any, kept: Any) -> Iterator[_Stage]:
        """Yield the threshold, hysteresis and the removal of small components."""
        settings, blocks = self._settings, self._blocks
        low, high = lowest(settings.threshold), lowest(settings.seed_threshold)

        def pieces(number: int) -> Pieces:
            wide = self._get(soft, blocks.wider(number, 0, 1))
            return Pieces.of(wide >= low, wide >= max(low, high), blocks, number, full=True)

        found: Callable[[int], Array] = lambda number: self._get(soft, blocks.region(number)) >= low  # noqa: E731
        if high > low or settings.min_size > 1:
            yield self._stage("components", "components", self._tables("components", pieces))
            found = self._chosen("components", pieces, lambda size, seeded: seeded & (size >= settings.min_size))
        yield self._stage("surface", "surface", self._written_by(kept, found))

    def _filled(self, kept: Any, mask: Any) -> Iterator[_Stage]:
        """Yield the filling of cavities."""
        blocks = self._blocks

        def cavities(number: int) -> Pieces:
            wide = blocks.wider(number, 0, 1)
            air = self._get(kept, wide) == 0
            return Pieces.of(air, air & blockwise.at_the_ends(blocks.shape, wide), blocks, number, full=False)

        yield self._stage("cavities", "cavities", self._tables("cavities", cavities))
        most = self._settings.fill_holes
        small = self._chosen("cavities", cavities, lambda size, at_end: ~at_end & (size <= most))

        def filled(number: int) -> Array:
            return small(number) | (self._get(kept, blocks.region(number)) > 0)

        yield self._stage("filled", "mask", self._written_by(mask, filled))

    def _stage(self, name: str, title: str, work: Callable[[int], None]) -> _Stage:
        return _Stage(name, title, len(self._blocks), work)

    def _run(self, stage: _Stage) -> None:
        """Do the units of a stage that are not done yet, this part's own first."""
        if self._work.part[1] > 1:
            self._refuse_gone()
        marks = self._marks(stage.name, (stage.count,))
        done = marks[...]
        part, parts = self._work.part
        left = sorted(np.flatnonzero(done == 0).tolist(), key=lambda number: (number % parts != part - 1, number))
        with progress(f"{self._work.record.key}: {stage.title}", len(left), _say) as advance:
            for number in left:
                if parts == 1 or not marks[number]:  # another part may have done it meanwhile
                    stage.work(number)
                    marks[number] = 1
                advance(1)

    def _redrawn(self, source: Any, target: Any) -> Callable[[int], None]:
        def work(number: int) -> None:
            settings, read = self._settings, partial(self._get, source)
            found = blockwise.redrawn(read, self._blocks, number, settings.along_sheets, settings.thickness)
            self._put(target, self._blocks.region(number), found)

        return work

    def _tables(self, name: str, pieces: Callable[[int], Pieces]) -> Callable[[int], None]:
        """Return what stores the table of a block's pieces."""

        def work(number: int) -> None:
            table = pieces(number).table(self._blocks, number)
            with chunked.faults(self._out.place, self._remote):
                own = chunked.array(self._temporary, f"{name}_{number}", table.shape, table.shape)
                if own.shape == table.shape:  # another part may have written the same, and read it now
                    own[...] = table
                else:  # by another version of zlib
                    own = self._temporary.create_array(own.basename, data=table, chunks=table.shape, overwrite=True)
                chunked.flush_chunks(own)

        return work

    def _chosen(
        self, name: str, pieces: Callable[[int], Pieces], choose: Callable[[Array, Array], Array]
    ) -> Callable[[int], Array]:
        """Return a function that gives the mask of a block's pieces that `choose` keeps as parts of their wholes."""
        wholes: list[Callable[[int], tuple[Array, Array]]] = []

        def table(number: int) -> Array:
            with chunked.faults(self._out.place, self._remote):
                return np.asarray(self._temporary[f"{name}_{number}"][...])

        def mask(number: int) -> Array:
            if not wholes:
                wholes.append(blockwise.joined(table, self._blocks))
            own = tuple(slice(0, part.stop - part.start) for part in self._blocks.region(number))
            found: Array = pieces(number).keep(*wholes[0](number), choose)[own]
            return found

        return mask

    def _written_by(self, target: Any, mask: Callable[[int], Array]) -> Callable[[int], None]:
        return lambda number: self._put(target, self._blocks.region(number), mask(number).astype(np.uint8))

    def _levels(self, group: Any, name: str, largest: bool) -> Iterator[_Stage]:
        shape = self._volume.shape
        for level in range(1, self._level_count):
            finer = shape
            shape = (-(-shape[0] // 2), -(-shape[1] // 2), -(-shape[2] // 2))
            target, blocks = chunked.array(group, str(level), shape, [CHUNK] * 3), Blocks(shape, _LEAST)
            work = partial(self._halved, group[str(level - 1)], finer, target, blocks, largest)
            yield _Stage(f"{name}_{level}", f"{name}, level {level}", len(blocks), work)

    def _halved(
        self, source: Any, finer: Sequence[int], target: Any, blocks: Blocks, largest: bool, number: int
    ) -> None:
        region = blocks.region(number)
        self._put(target, region, blockwise.halved(partial(self._get, source), finer, region, largest))

    @property
    def _level_count(self) -> int:
        return 1 + max(0, math.ceil(math.log2(max(self._volume.shape) / _COARSEST)))

    def _end(self, plan: dict[str, Any]) -> None:
        coarsest = self._image[str(self._level_count - 1)][...]
        if not coarsest.any():
            print(f"warning: {self._work.record.key}: no surface was found (predict.threshold, predict.min_size)")
        about = (self._work.record.key, self._level_count, self._volume.voxel, self._volume.unit)
        with chunked.faults(self._out.place, self._remote):
            if self._options.probability:
                chunked.describe(self._soft, *about, plan)
            chunked.describe(self._image, *about, plan)
            self._out.remove(self._work_name)

    # ------------------------------------------------------------ arrays

    def _temporary_array(self, name: str) -> Any:
        return chunked.array(self._temporary, name, self._volume.shape, [CHUNK] * 3)

    def _get(self, array: Any, region: Region) -> Array:
        with chunked.faults(self._out.place, self._remote):
            return np.asarray(array[region])

    def _put(self, array: Any, region: Region, values: Array) -> None:
        if self._work.part[1] > 1:
            self._refuse_gone()
        if values.any():  # the array is made of zeros
            with chunked.faults(self._out.place, self._remote):
                array[region] = values
                chunked.flush_chunks(array, region)


def _refuse(config: ScrollConfig) -> None:
    if config.data.first_stage is not None:
        raise BadInput("a second stage (data.first_stage) predicts no volumes in chunks: cut pieces from the scroll")
    default = ScrollPredictConfig()
    names = [field.name for field in fields(default) if field.name not in _EXACT]
    if other := [f"predict.{name}" for name in names if getattr(config.predict, name) != getattr(default, name)]:
        raise BadInput(
            f"{', '.join(other)} needs the whole volume at once: a volume predicted in chunks cannot have it. Leave it "
            "at its default, or predict cut pieces"
        )
    if config.crop.mode not in ("auto", "none"):
        raise BadInput(
            f"crop.mode {config.crop.mode}: volumes predicted in chunks are not cropped; name a mask (--mask)"
        )


def _refuse_files(place: Location) -> None:
    """Raise BadInput for a volume that is one file: it cannot be read chunk by chunk."""
    if isinstance(place, Path) and place.is_file():
        raise BadInput(
            f"{place}: only zarr volumes are predicted chunk by chunk: convert it to zarr, or leave out --chunked, "
            "--mask, --store and --ngff"
        )


def _refuse_chunks(volume: Volume, memory: float) -> None:
    """Raise BadInput for a volume whose chunks are too large to be read one by one."""
    if (size := math.prod(volume.chunks) * volume.dtype.itemsize) > memory / 8:
        raise BadInput(
            f"{volume.place}: one chunk takes {size / 1e9:.2g} GB, more than an eighth of --memory-gb: write the "
            f"volume in smaller chunks, {CHUNK}³ for example"
        )


def _whole_name(place: Location) -> str:
    """Return a name that no other file or folder has: many volumes are named 0."""
    return str(place.resolve() if isinstance(place, Path) else place)


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return numbers that follow each other, together.

    >>> _runs([1, 2, 5])
    [[1, 2], [5]]
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _say(text: str) -> None:
    print(text, flush=True)
