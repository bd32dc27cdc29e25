"""Check an opened cache: its bytes are still those that were written, and its arrays those that `prepare` makes.

A disk, a cable or a copy can change bytes and leave the file's size and time as they were. So every opening of a cache
reads its blocks for up to a second (several gigabytes if they are in memory: most sets whole). A thread reads the rest
while a training runs and takes a tenth of the time. The next run continues at the block after the last one.

The cache's key does not change with a setting or a code change that nobody declared. So one record is prepared anew in
the process that opens the cache. That takes seconds at most, and prevents training on old arrays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.contract import Array, Pipeline
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.folder import Block, Damaged, check_block

PLACE = "verified"
"""File in a cache's folder with the number of the block at which the next run continues."""
AT_OPEN = 1.0
"""Seconds of reading when a cache is opened."""
_AT_ONCE = 0.05
"""Share of the blocks that a training reads without a pause: twenty trainings read all."""
_BUSY = 0.1
"""Share of the time spent reading the other blocks."""
_KEPT_EVERY = 64
"""Number of blocks after which the place is saved, so that a killed run keeps what it verified."""
_PATIENCE = 5.0
"""Seconds that the end of a training waits for the current block, in case the disk does not answer."""


class Verification:
    """Blocks of one opened cache that this process has not read yet."""

    def __init__(self, folder: Path, blocks: Sequence[Block]) -> None:
        self._folder, self._blocks = folder, blocks
        self._next = _read_place(folder, len(blocks))
        self._left = len(blocks)
        self._end = Event()
        self._thread: Thread | None = None

    def for_seconds(self, seconds: float = AT_OPEN) -> None:
        """Read blocks until all are read or the time is over; raise Damaged for a block that has changed."""
        begun = time.monotonic()
        while self._left and time.monotonic() - begun < seconds:
            self._step()
        self._keep_place()

    def begin(self, damaged: Callable[[str], None]) -> None:
        """Read the remaining blocks in the background, and report a damaged block to `damaged`."""
        if self._left:
            self._thread = Thread(target=self._run, args=(damaged,), name="cache verification", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            self._thread = None

    def _run(self, damaged: Callable[[str], None]) -> None:
        rest = self._left - int(_AT_ONCE * len(self._blocks))
        try:
            while self._left and not self._end.is_set():
                begun = time.monotonic()
                self._step()
                if self._left < rest:
                    self._end.wait((time.monotonic() - begun) * (1 / _BUSY - 1))
            self._keep_place()
        except Damaged as error:
            damaged(str(error))
        except OSError:  # the files were deleted: this training keeps those it has open
            return

    def _step(self) -> None:
        check_block(self._folder, self._blocks[self._next])
        self._next, self._left = (self._next + 1) % len(self._blocks), self._left - 1
        if self._left % _KEPT_EVERY == 0:
            self._keep_place()

    def _keep_place(self) -> None:
        with suppress(OSError, BadInput):  # another user's cache: their runs save the place
            refuse_special_file(self._folder / PLACE).write_text(str(self._next))


def _read_place(folder: Path, count: int) -> int:
    """Return the block at which to continue; a random one if no place was saved."""
    try:
        return int(refuse_special_file(folder / PLACE).read_text()) % max(1, count)
    except (OSError, ValueError, BadInput):
        return int.from_bytes(os.urandom(4), "big") % max(1, count)


_SHARE = 1e-4
"""Share of an array's values that may differ, because library versions round voxels at an edge differently."""
_FEW = 16
"""Integers with a range no larger than this are labels, in which a difference of 1 is not rounding."""


def differing(prepared: Mapping[str, Array], stored: Mapping[str, Array]) -> list[str]:
    """Return the names of arrays that differ by more than rounding, or that only one side has."""
    if prepared.keys() != stored.keys():
        return sorted(prepared.keys() ^ stored.keys())
    return [name for name in prepared if not _same(prepared[name], stored[name])]


def stale(folder: Path, pipeline: Pipeline, record: AnyRecord, other: Sequence[str]) -> BadInput:
    """Return the error for a cache whose arrays `other` of `record` differ from what is prepared today."""
    named = ", ".join(map(repr, other))
    return BadInput(
        f"{folder}: the cache holds other arrays than `prepare` of project {pipeline.settings['project']} makes "
        f"now ({named} of record {record.key}), though neither its prepare_version nor its prepare_settings() changed. "
        f"Raise `prepare_version` if the code changed; name the setting in `prepare_settings` if one did"
    )


def _same(one: Array, other: Array) -> bool:
    """Return True if the arrays are equal up to rounding: integers within 1, others within a thousandth."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.size:
        return True
    if one.dtype.kind in "iu":
        low, high = int(other.min()), int(other.max())
        wide = np.where(one > other, one - other, other - one)  # unsigned integers have no negative difference
        differs = wide > (1 if high - low > _FEW else 0)
    elif one.dtype.kind in "fc":
        scale = float(np.nanmax(np.abs(other), initial=0, where=np.isfinite(other)))
        differs = ~np.isclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
    else:
        differs = one != other
    return float(np.mean(differs)) <= _SHARE
