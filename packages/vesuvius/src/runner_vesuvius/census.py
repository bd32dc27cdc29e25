"""Counts of a labelled volume that memory cannot hold: of its label block by block, of its image here and there.

Training then finds any voxel of a kind by its rank, and knows intensities, without reading volumes whole.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from runner_core import Array, BadInput, progress, shape_text, whole_file

from runner_vesuvius.blockwise import Blocks
from runner_vesuvius.chunked import Region
from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.statistics import histogram

SAMPLED = 32
"""Blocks of the image that are read for statistics: so many with surface, with annotated and with other voxels."""
_SIDE = 64
"""Least side of a block, if the volume is longer."""
_KEY = 0xCE_05_05
_THREADS = 4
VALID = "valid"


class Readable(Protocol):
    """A volume that is read region by region."""

    shape: tuple[int, int, int]

    def read(self, region: Region) -> Array: ...


@dataclass(frozen=True)
class Census:
    """Counts of a labelled volume in `blocks`."""

    blocks: Blocks
    counts: Array
    """(blocks, 3) int64: voxels of background, surface, and not annotated."""
    histogram: Array
    """(3, 256) int64: voxels of each label by intensity, in the sampled blocks and scaled to the whole volume."""
    sampled: int
    """Blocks of the image that were read."""

    def number(self, kind: str) -> int:
        """Return how many voxels are of a kind: surface, or valid (annotated)."""
        return int(self._ends[kind][-1])

    @cached_property
    def _ends(self) -> dict[str, Array]:
        return {"surface": np.cumsum(self.counts[:, SURFACE]), VALID: np.cumsum(self.counts[:, :IGNORE].sum(1))}

    def place(self, kind: str, rank: int, read: Callable[[Region], Array]) -> tuple[int, ...]:
        """Return the coordinates (z, y, x) of the voxel of a kind that has this rank; `read` reads the label.

        Ranks run through the blocks, and in each block in the order of memory.
        """
        ends = self._ends[kind]
        block = int(np.searchsorted(ends, rank, side="right"))
        region = self.blocks.region(block)
        label = read(region)
        own = label != IGNORE if kind == VALID else label == SURFACE
        within = np.flatnonzero(own)[rank - (int(ends[block - 1]) if block else 0)]
        return tuple(int(n) + part.start for n, part in zip(np.unravel_index(within, label.shape), region, strict=True))

    @property
    def densest(self) -> Region:
        """Region of the block with the most surface, or else the most annotated voxels."""
        surface = self.counts[:, SURFACE]
        return self.blocks.region(int((surface if surface.any() else self.counts[:, :IGNORE].sum(1)).argmax()))

    def write(self, file: Path) -> None:
        """Write it, whole or not at all."""
        with whole_file(file) as temporary, temporary.open("wb") as out:
            np.savez_compressed(out, counts=self.counts, histogram=self.histogram, sampled=np.int64(self.sampled))

    @classmethod
    def read(cls, file: Path, blocks: Blocks) -> Census | None:
        """Return what `write` wrote, None if there is nothing whole."""
        try:
            with np.load(file, allow_pickle=False) as found:
                kept = cls(blocks, found["counts"], found["histogram"], int(found["sampled"]))
        except (OSError, ValueError, KeyError, EOFError):
            return None
        return kept if kept.counts.shape == (len(blocks), 3) else None


def blocks_of(shape: tuple[int, int, int], chunks: tuple[int, ...]) -> Blocks:
    """Return the blocks of a label: whole chunks of it, `_SIDE` voxels or longer."""
    z, y, x = (min(n, chunk * -(-_SIDE // chunk)) for n, chunk in zip(shape, chunks, strict=True))
    return Blocks(shape, (z, y, x))


def take(key: str, image: Readable, label: Readable, blocks: Blocks) -> Census:
    """Read the whole label, block by block, and some blocks of the image.

    Raises BadInput as reading does.
    """
    counts = np.zeros((len(blocks), 3), np.int64)

    def count(number: int) -> None:
        found = label.read(blocks.region(number))
        surface, ignored = np.count_nonzero(found == SURFACE), np.count_nonzero(found == IGNORE)
        counts[number] = found.size - surface - ignored, surface, ignored

    with (
        progress(f"{key}: counting labels", len(blocks), _say) as advance,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        for _ in pool.map(count, range(len(blocks))):
            advance(1)
    chosen = _sample(counts)
    found = np.zeros((3, 256), np.int64)
    for number in chosen:
        region = blocks.region(number)
        found += histogram(image.read(region), label.read(region))
    totals, seen = counts.sum(0), found.sum(1)
    scaled = np.rint(found * (totals / np.maximum(seen, 1))[:, None]).astype(np.int64)
    return Census(blocks, counts, scaled, len(chosen))


def _sample(counts: Array) -> list[int]:
    """Return which blocks of the image are read, the same at every call."""
    random = np.random.Generator(np.random.Philox(key=_KEY))
    chosen: set[int] = set()
    for having in (counts[:, SURFACE] > 0, counts[:, :IGNORE].sum(1) > 0, counts[:, IGNORE] > 0):
        there = np.flatnonzero(having)
        chosen.update(random.choice(there, min(SAMPLED, len(there)), replace=False).tolist())
    return sorted(chosen)


def refuse_useless(key: str, census: Census, image: Readable) -> None:
    """Raise BadInput for a volume that nobody annotated, or whose image has one value in all blocks that were read."""
    if not census.number(VALID):
        raise BadInput(
            f"{key}: every voxel of the label is 2 (ignore) or outside of what is annotated: nothing can be learned "
            "from it. Leave the volume out."
        )
    if np.count_nonzero(census.histogram.sum(0)) < 2:
        raise BadInput(
            f"{key}: the image ({shape_text(image.shape)}) has one value in the {census.sampled} blocks that were "
            "read. Export it again."
        )


def _say(text: str) -> None:
    print(text, flush=True)
