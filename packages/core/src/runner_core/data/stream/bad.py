"""Files and records that cannot be used: why, and what takes their place, as the run's bad_samples.jsonl lists it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.location import Url
from runner_core.base.secrets import without_secrets
from runner_core.base.text import counted
from runner_core.base.writing import append_line
from runner_core.contract import Array
from runner_core.contract.records import AnyRecord
from runner_core.data.sampling import sample_rng

Kind = Literal["missing", "corrupt", "denied", "transient"]
"""Why a file cannot be used; "transient" means that it may work later."""

_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
"""Names of obstore's exceptions."""
_PASSING = (408, 425, 429)
"""Status codes of a server that is only busy."""


class Unreachable(BadInput):
    """A file at a URL cannot be read; `everywhere` means all others there cannot either (a missing bucket, say)."""

    def __init__(self, url: Url, kind: Kind, why: str, everywhere: bool = False) -> None:
        super().__init__(f"{url}: {why}")
        self.url, self.kind, self.everywhere = url, kind, everywhere


def meant(url: Url, error: Exception, attempts: int, signed: bool, endpoint: str | None = None) -> Unreachable:
    """Convert an error of obstore.

    `attempts` is the number of attempts allowed, `signed` says if there were credentials, and `endpoint` is the server
    if it is not the provider's own.
    """
    text = str(error)
    found = re.search(r"status code: (\d+)", text)
    status = int(found[1]) if found else 0
    if "NoSuchBucket" in text:
        return Unreachable(url, "missing", "there is no such bucket; check its name and remote.endpoint", True)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Unreachable(url, "missing", "there is no such file")
    if type(error).__name__ in _REFUSED or status in (401, 403):
        other = "check the credentials in the environment, or set remote.credentials to anonymous"
        remedy = other if signed else "set remote.credentials to environment (or AWS_PROFILE) where you have some"
        return Unreachable(url, "denied", f"the server denies access; {remedy}")
    if status in (301, 307) or "AuthorizationHeaderMalformed" in text:
        return Unreachable(url, "denied", "the bucket is in another region: set remote.region", True)
    if 400 <= status < 500 and status not in _PASSING:
        return Unreachable(url, "denied", f"the server refuses: {first_line(error)}")
    tried = f"it could not be read in {counted(attempts, 'attempt')}"
    return Unreachable(url, "transient", f"{tried}: {_passing(error, status, endpoint)}")


def _passing(error: Exception, status: int, endpoint: str | None) -> str:
    """Return why a request may succeed later."""
    text = str(error)
    if status:
        return f"the server answered {status}"
    if "Timeout" in text or "TimedOut" in text:
        return "nothing came for longer than remote.timeout"
    if "IncompleteBody" in text or "Interrupted" in text:
        return "the connection ended in the middle of the file"
    if "error sending request" in text:
        return f"no connection to the server{f' {endpoint} (remote.endpoint)' if endpoint else ''}"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without obstore's debugging, shortened for readers."""
    return str(error).split("Debug source")[0].strip().partition("\n")[0][:300]


FILE = "bad_samples.jsonl"
_MOST = 0.01
"""Largest share of the files that may be bad."""
_FEWEST = 3
"""Number of bad files below which no run is stopped."""
_CHANCE = 5.0
"""Standard deviations above `_MOST` at which the share so far stops a run before all files were requested."""
_STREAM = 7
"""Stream of `sample_rng` that chooses replacements."""
_TRIES = 100

_LINE = {"record", "file", "reason", "epoch", "position", "replaced_by"}
"""Values of each line in FILE that are read again."""

Substitution = tuple[int, int, str]
"""Epoch, position, key of the replaced record."""


class BadRecord(BadInput):
    """A record that cannot be used, with the faulty `file` (the first if unknown) and the reason.

    `everywhere` means that all other records will fail too.
    """

    def __init__(self, record: AnyRecord, error: BadInput | OSError) -> None:
        self.key, self.reason = record.key, without_secrets(str(error))
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
    """Return True if a training stops for this number of bad files."""
    return bad >= _FEWEST and bad > _MOST * files


def too_many_text(bad: int, files: int) -> str:
    """Return why a training stops for this number of bad files."""
    text = f"{bad} of {counted(files, 'file')} cannot be used: more than {_MOST:.0%}, and not fewer than {_FEWEST}"
    return f"{text}, so that no others are taken in their place. Repair them, or leave them out of the data"


def stand_ins(epoch: int, position: int, among: Array) -> Iterator[int]:
    """Yield replacements for `position` of `epoch`'s sequence, always the same, in the order in which to try them."""
    rng = sample_rng(0, epoch, position, _STREAM)
    for _ in range(_TRIES if len(among) else 0):
        yield int(among[rng.integers(len(among))])


class BadSamples:
    """Record of replaced samples; `files` is the total number of files.

    With `file`, each replacement is on disk before it is used, and a later start of the run repeats the replacements
    written there. Picklable: each worker writes lines of its own.
    """

    def __init__(self, files: int, file: Path | None = None) -> None:
        self._files, self._file = files, file
        self._recorded: dict[Substitution, str] = {}
        self._bad: dict[str, str] = {}
        """Reasons by file, from this start of the run in all processes; then the files that this process found."""
        self._own: set[str] = set()
        self._read = 0
        if file is not None:
            self._end_torn_line(file)
            for line in self._new_lines():
                self._recorded.setdefault((line["epoch"], line["position"], line["record"]), line["replaced_by"])

    def recorded(self, record: str, position: int, epoch: int) -> str | None:
        """Return the key of the record that replaced this one before."""
        return self._recorded.get((epoch, position, record))

    def replaced(self, bad: BadRecord, position: int, epoch: int, by: str) -> None:
        """Record that `by` replaces a bad record; it is on disk on return. Raises OutOfSpace."""
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
        try:
            append_line(self._file, json.dumps(line))
        except OSError as error:
            raise OutOfSpace(
                f"{self._file}: the replacement of a bad record cannot be written ({error.strerror}): free some space, "
                "then --resume"
            ) from error

    def refuse_too_many(self, bad: BadRecord, asked: int) -> None:
        """Count a bad record among `asked` files so far.

        Raises BadInput if more than 1 % of all files are bad, or so many of the requested ones that it cannot be
        chance, but never for fewer than three.
        """
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
        """Return the lines that any process wrote since the last call."""
        if self._file is None or not self._file.exists():
            return []
        with open(self._file, "rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for line in whole.splitlines():
            with suppress(ValueError):  # an incomplete line after a power loss, which nothing used
                value = json.loads(line)
                if isinstance(value, dict) and value.keys() >= _LINE:
                    found.append(value)
        return found

    @staticmethod
    def _end_torn_line(file: Path) -> None:
        """Remove an incomplete line of a killed process, which nothing used."""
        if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
            os.truncate(file, text.rfind(b"\n") + 1)
