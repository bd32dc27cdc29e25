"""Records that cannot be used: each is replaced by another one, listed in the run's bad_samples.jsonl, and counted."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner_core._errors import BadInput, OutOfSpace
from runner_core._text import counted
from runner_core.location import Url
from runner_core.project import AnyRecord
from runner_core.protocols import Array
from runner_core.sampling import sample_rng
from runner_core.stream.failure import Kind, Unreachable

FILE = "bad_samples.jsonl"
_MOST = 0.01
"""Share of the files that may be bad."""
_FEWEST = 3
"""Bad files below which no run is stopped."""
_CHANCE = 5.0
"""Standard deviations by which the share so far must be above `_MOST` before all files have been asked for."""
_STREAM = 7
"""Of `sample_rng`: what stands in."""
_TRIES = 100

Substitution = tuple[int, int, str]
"""Epoch, position, key of the record that was to be there."""


class BadRecord(BadInput):
    """A record cannot be used: `file`, the one at fault (the first, where nothing says which), and why.

    `everywhere`: so it will be with the others."""

    def __init__(self, record: AnyRecord, error: BadInput | OSError) -> None:
        self.key, self.reason = record.key, str(error)
        super().__init__(self.reason if self.reason.startswith(record.key) else f"{record.key}: {self.reason}")
        files = [str(place) for place in record.files.values()]
        self.file = next((file for file in files if file in self.reason), files[0] if files else "")
        self.kind: Kind = "corrupt"
        self.everywhere = False
        if isinstance(error, Unreachable):
            self.kind, self.everywhere = error.kind, error.everywhere or error.kind == "denied"
        elif any(not isinstance(place, Url) and not place.exists() for place in record.files.values()):
            self.kind = "missing"


def too_many(bad: int, files: int) -> bool:
    """Does a training stop for so many bad files of all?"""
    return bad >= _FEWEST and bad > _MOST * files


def too_many_text(bad: int, files: int) -> str:
    """Why a training stops for them."""
    text = f"{bad} of {counted(files, 'file')} cannot be used: more than {_MOST:.0%}, and not fewer than {_FEWEST}"
    return f"{text}, so that no others are taken in their place. Repair them, or leave them out of the data"


def stand_ins(epoch: int, position: int, among: Array) -> Iterator[int]:
    """Records that may be at `position` of `epoch`'s sequence instead, always the same, in the order in which to try
    them."""
    rng = sample_rng(0, epoch, position, _STREAM)
    for _ in range(_TRIES if len(among) else 0):
        yield int(among[rng.integers(len(among))])


class BadSamples:
    """What was replaced. With `file`, each substitution is on disk before it is used, and what another start of the run
    has written there is done again. Picklable: each worker writes lines of its own.

    `files`: how many files there are in all.
    """

    def __init__(self, files: int, file: Path | None = None) -> None:
        self._files, self._file = files, file
        self._recorded: dict[Substitution, str] = {}
        self._bad: dict[str, str] = {}
        """Reasons by file, of this start of the run, in all processes; and the files that this one found:"""
        self._own: set[str] = set()
        self._read = 0
        if file is not None:
            self._end_torn_line(file)
            for line in self._new_lines():
                self._recorded.setdefault((line["epoch"], line["position"], line["record"]), line["replaced_by"])

    def recorded(self, record: str, position: int, epoch: int) -> str | None:
        """The key of the record that stood in there before."""
        return self._recorded.get((epoch, position, record))

    def replaced(self, bad: BadRecord, position: int, epoch: int, by: str) -> None:
        """`by` stands in. On disk when this returns. Raises OutOfSpace."""
        place = (epoch, position, bad.key)
        if place in self._recorded:
            return
        self._recorded[place] = by
        if self._file is None:
            return
        line = {
            "record": bad.key,
            "file": bad.file,
            "reason": bad.reason,
            "kind": bad.kind,
            "epoch": epoch,
            "position": position,
            "replaced_by": by,
        }
        text = (json.dumps(line) + "\n").encode()
        try:
            with open(self._file, "ab", buffering=0) as file:
                if file.write(text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise OutOfSpace(
                f"{self._file}: what takes a bad record's place cannot be written ({error.strerror}): free some space, "
                "then --resume"
            ) from error

    def refuse_too_many(self, bad: BadRecord, asked: int) -> None:
        """A record is bad, one more perhaps, of `asked` files so far. Raises BadInput when more than 1 % of all files
        are bad, or so many of those asked for that it is no chance; never for fewer than three."""
        self._own.add(bad.file)
        self._bad.setdefault(bad.file, bad.reason)
        for line in self._new_lines():
            self._bad.setdefault(line["file"], line["reason"])
        likely = _MOST * asked + _CHANCE * math.sqrt(_MOST * asked)
        if not too_many(len(self._bad), self._files) and len(self._own) <= max(likely, _FEWEST - 1):
            return
        shown = "\n".join(f"  - {reason}" for reason in list(self._bad.values())[:5])
        where = f"; {self._file} lists those that were replaced" if self._file else ""
        raise BadInput(
            f"{counted(len(self._bad), 'file')} of {self._files:,} cannot be used, {asked:,} were asked for so far: "
            f"more than {_MOST:.0%}, too many to go on without them{where}. Repair them, or leave them out of the "
            f"data:\n{shown}"
        )

    def _new_lines(self) -> list[dict[str, Any]]:
        """What was written since the last call, by any process."""
        if self._file is None or not self._file.exists():
            return []
        with open(self._file, "rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @staticmethod
    def _end_torn_line(file: Path) -> None:
        """A line that a killed process did not end was used by nobody: it goes."""
        if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
            os.truncate(file, text.rfind(b"\n") + 1)
