"""A record of what several processes have done of one list, so that each does its part and the last one joins all.

FOLDER/
  parts.json        the number of parts, and what all have in common: weights, settings, records
  2-of-3.jsonl      one line for each record that part 2 has done
  joined.json       what the parts were joined to; there when that is done
  lock              held while parts join, or begin

A line is written after its record is done, whole or not at all. So a killed part goes on where it was, and a part that
is done has nothing to do. The processes may be on several machines that share the folder.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.parts import Part, missing_parts
from runner_core.base.text import first_few
from runner_core.base.writing import append_line, has_no_locks, json_text, lock, locked, make_folder, replace_json
from runner_core.contract import Json

HIDDEN = ".parts"
"""Start of the name of such a folder, beside what the parts write."""
_HEAD, _JOINED, _LOCK = "parts.json", "joined.json", "lock"
_REMEDY = "delete the folder and type the parts' lines again"
_MOST_NAMED = 4


class PartsFolder:
    """The folder in which parts of the same work meet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def head(self) -> dict[str, Any]:
        """The entries that all parts have in common; empty if none has begun."""
        return read_json(self.path / _HEAD, dict, _REMEDY) or {}

    @property
    def parts(self) -> list[Part]:
        return Part.all(int(self.head.get("parts", 0)))

    def join(self, count: int, common: Mapping[str, Json]) -> None:
        """Take part in the work that `common` describes, in `count` parts, and begin it if no other part has.

        Work that was joined to its end makes room for other work. Raises BadInput that names what differs from parts
        which are there, or the part if one of the work before is at work again.
        """
        own = json.loads(json_text({"parts": count, **common}))
        try:
            make_folder(self.path)
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be written: {error.strerror}; name another folder with --out"
            ) from error
        with self.alone():
            there = self.head
            if there and there != own and self.joined is not None:
                for part in self.parts:
                    with self.claimed(part):  # its lines would be taken for those of the new work
                        self._file(part).unlink()
                self.forget_joined()
                there = {}
            if not there:
                replace_json(self.path / _HEAD, own)
            elif there != own:
                begun = first_few([str(other) for other in self.parts if self._file(other).exists()])
                raise BadInput(
                    f"this does not fit to part {begun} in {self.path}: {'; '.join(_differences(there, own))}. "
                    "Give all parts the same, or delete that folder to begin anew"
                )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other parts from joining, and wait for one that does so now."""
        with locked(self.path / _LOCK):
            yield

    @contextmanager
    def claimed(self, part: Part) -> Iterator[None]:
        """Hold a part. Raises BadInput if another process does it now."""
        own = self._file(part)
        with ExitStack() as held:
            file = held.enter_context(own.open("a+b"))
            try:
                try:
                    lock(file.fileno(), wait=False)
                except OSError as error:
                    if not has_no_locks(error):
                        raise
                    held.enter_context(locked(own.with_suffix(".lock"), wait=False))
            except BlockingIOError as error:
                marker = error.filename  # of a disk without locks
                unless = f" (or, if no process is at work there, delete {marker})" if marker else ""
                raise BadInput(
                    f"part {part} is at work already in {self.path}: wait for it, or stop it{unless}"
                ) from None
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # a killed process may have left the beginning of a line
            yield

    def add(self, part: Part, line: str) -> None:
        """Record what a part has done of one record: JSON with its key as `record`."""
        append_line(self._file(part), line)

    def lines(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return by key what was done of these records, as far as it was."""
        found = {}
        for part in self.parts:
            with suppress(FileNotFoundError):
                text = self._file(part).read_bytes()
                for line in text[: text.rfind(b"\n") + 1].splitlines():
                    found.update(self._line(part, line))
        wanted = frozenset(keys)
        return {key: line for key, line in found.items() if key in wanted}

    def _line(self, part: Part, line: bytes) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(line)
            return {str(found["record"]): found}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self.damaged(error, part) from error

    def damaged(self, error: Exception, part: Part | None = None) -> BadInput:
        """Return what to raise if a line is none that a part wrote."""
        file = self.path if part is None else self._file(part)
        return BadInput(f"{file} is damaged ({type(error).__name__}: {error}): {_REMEDY}")

    def missing(self, keys: Sequence[str], done: Container[str]) -> list[str]:
        """Return the parts of these records that are not done, each with how far it is."""
        return missing_parts(len(self.parts), keys, done.__contains__)

    @property
    def joined(self) -> dict[str, Any] | None:
        """The value that `set_joined` wrote, or None before."""
        return read_json(self.path / _JOINED, dict, _REMEDY)

    def set_joined(self, found: Mapping[str, Json]) -> None:
        """Record what the parts were joined to."""
        replace_json(self.path / _JOINED, {**found, "by": f"process {os.getpid()} on {platform.node()}"})

    def forget_joined(self) -> None:
        """Let the parts join anew."""
        (self.path / _JOINED).unlink(missing_ok=True)

    def _file(self, part: Part) -> Path:
        return self.path / f"{part.number}-of-{part.count}.jsonl"


def _differences(there: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs, each with the value of the parts that are there and this part's."""
    for name in {**there, **own}:
        old, new = there.get(name), own.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            names = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            shown = [f"{key} {_short(old.get(key))} there, {_short(new.get(key))} here" for key in names[:_MOST_NAMED]]
            shown += [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
            if names:
                yield f"{name}: {', '.join(shown)}"
        elif old != new:
            yield f"{name}: {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) < 80 else f"{text[:80]}…"
