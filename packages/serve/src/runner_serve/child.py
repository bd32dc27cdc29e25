"""The process that holds the network: `python -m runner_serve.child`, started by `worker`.

It reads one line of JSON for each prediction and answers with one. It ends when its input is closed, as it is when the
server dies, and then removes the server's folder: no upload is left behind.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import runner_core
from runner_core import BadInput, Finding

from runner_serve.archives import pack, unpack

ARCHIVE = ".zip"
_UNPACKED = "input"
"""Folder of an unpacked archive."""
_TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".xls", ".parquet", ".json")
_PACKED = re.compile(r"\.(gz|bz2|xz|zst)$")
_LARGEST_FACTS = 1 << 16
"""Bytes of a JSON file that is looked at for numbers."""
_MOST_FACTS = 32
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9_]{,60}")
_LONGEST_REMARKS = 4000


def main() -> None:
    """Load the network, say so, and predict until the input is closed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is printed names the client's files
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    about = json.loads(sys.stdin.readline())
    threading.Thread(target=_read, args=(lines, Path(about["folder"])), daemon=True).start()
    served = None
    while True:
        try:
            if served is None:
                served = Served(about)
                answer = served.facts()
            else:
                answer = served.predict(**json.loads(lines.get()))
        except BadInput as error:
            answer = {"refused": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"unexpected {type(error).__name__}; the server's own output says more"}
        _say(answers, answer)


def _read(lines: queue.SimpleQueue[str], folder: Path) -> None:
    for line in sys.stdin:
        lines.put(line)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _say(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class Served:
    """The run whose network predicts."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._run = runner_core.open(about["run"], about["project"])
        self._options, self._most = about["options"], int(about["most_bytes"])
        self._weights = self._run.load(**self._options)

    def facts(self) -> dict[str, Any]:
        """Return what tells a client which network this is."""
        card = self._run.path / "MODEL_CARD.md"
        summary = self._run.summary
        return {
            "project": self._run.project,
            "weights": re.sub(r"\S*/", "", self._weights),  # of several runs, without their folders
            "statement": summary.get("statement"),
            "scores": dict(self._run.scores),
            "card": card.read_text(encoding="utf-8") if card.is_file() else None,
        }

    def predict(self, place: str, only: str) -> dict[str, Any]:
        """Predict the file `place`, the only one in its folder, and write the answer beside it.

        Returns the answer's `file`, the `name` that it has for the client, and `headers`. Raises BadInput if it cannot
        be predicted.
        """
        given = Path(place)
        folder = given.parent
        try:
            if given.suffix == ARCHIVE:
                unpack(given, folder / _UNPACKED, self._most)
                given.unlink()
                given = folder / _UNPACKED
            _refuse_table(given)
            records = self._run.inputs(given, **self._options)
            _refuse_outside(records, folder)
            found = self._run.predict(given, **self._options)
            out = folder / "output"
            files = found.save(out)
        except BadInput as error:  # the client knows no such folder
            text = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the upload")
            raise BadInput(text) from error
        chosen = _chosen(files, only, out)
        if len(chosen) == 1 and chosen[0].is_file():
            file, name = chosen[0], chosen[0].name
        else:
            file, name = folder / f"answer{ARCHIVE}", f"{found.record.replace('/', '_')}{ARCHIVE}"
            pack(chosen, out, file)
        return {"file": str(file), "name": name, "headers": {**_numbers(files), **_remarks(found.remarks)}}


def _refuse_table(given: Path) -> None:
    if _PACKED.sub("", given.name.lower()).endswith(_TABLES):
        raise BadInput(f"{given.name}: tables and texts name other files; send a record itself, or a zip of its files")


def _refuse_outside(records: Sequence[Any], folder: Path) -> None:
    """Raise BadInput if what a client sent leads to a file that it did not send: by a table in an archive."""
    inside = folder.resolve()
    for record in records:
        for file in record.files.values():
            if not isinstance(file, Path) or not file.resolve().is_relative_to(inside):
                raise BadInput("the upload names a file that is not in it")


def _chosen(files: Sequence[Path], only: str, out: Path) -> list[Path]:
    """Return the files whose names end like `only`. Raises BadInput if none does."""
    chosen = [file for file in files if file.name.endswith(only)]
    if not chosen:
        names = ", ".join(file.relative_to(out).as_posix() for file in files)
        raise BadInput(f"no file ends with {only[:80]!r}; there are {names}")
    return chosen


def _numbers(files: Sequence[Path]) -> dict[str, str]:
    """Return the numbers at the top of written JSON files as headers: BrainVolume as X-Runner-BrainVolume."""
    found: dict[str, str] = {}
    for file in (file for file in files if file.suffix == ".json" and file.stat().st_size <= _LARGEST_FACTS):
        values = json.loads(file.read_text(encoding="utf-8"))
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and _HEADER.fullmatch(name):
                found.setdefault(f"X-Runner-{name.replace('_', '-')}", f"{value!r}")
    return dict(list(found.items())[:_MOST_FACTS])


def _remarks(remarks: Sequence[Finding]) -> dict[str, str]:
    """Return what the project's checks say of a prediction, as JSON, which has no letter that a header cannot hold."""
    said = [{"level": one.level, "rule": one.rule, "message": one.message} for one in remarks]
    while said and len(json.dumps(said)) > _LONGEST_REMARKS:
        said.pop()
    return {"X-Runner-Remarks": json.dumps(said)} if said else {}


if __name__ == "__main__":
    main()
