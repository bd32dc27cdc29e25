"""The files that `predict` has written: of all records, or with `--part i/n` of a share of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from runner_core.base.location import Url
from runner_core.base.parts import Part
from runner_core.base.text import counted
from runner_core.cli.ensembles import weights_text
from runner_core.cli.options import PredictOptions
from runner_core.cli.start import Started
from runner_core.config.values import flat
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.identity import digest_json, files_below
from runner_core.output.evaluations import FREE_SECTIONS, write_whole
from runner_core.output.parts import HIDDEN, PartsFolder


class Written:
    """The files that this process has written into the folder `out`."""

    def __init__(self, project: Project, out: Path) -> None:
        self._judging, self._out = project.judging(), out
        self._files: list[Path] = []

    def add(self, record: AnyRecord, files: Sequence[Path], error: str = "") -> None:
        """Record the files of a prediction, or why there is none."""
        self._files += files

    def end(self) -> None:
        """Make of all files what the project makes of them, and say so."""
        if self._files and self._judging.collect:
            self._collect(self._files)
        if self._files:
            self._summarise()

    def _collect(self, files: Sequence[Path], keep: bool = False) -> Sequence[Path]:
        assert self._judging.collect is not None
        written = collected(self._judging.collect, files, self._out, keep)
        print(f"written: {', '.join(map(str, written))}")
        return written

    def _summarise(self) -> None:
        if self._judging.summarise is not None:
            print(f"of all in {self._out}: {', '.join(path.name for path in self._judging.summarise(self._out))}")


class WrittenPart(Written):
    """The files that parts have written into one folder. A part that starts again skips what it has written whole."""

    def __init__(
        self, project: Project, out: Path, folder: PartsFolder, part: Part, records: Sequence[AnyRecord]
    ) -> None:
        super().__init__(project, out)
        self._folder, self._part, self._records = folder, part, records
        self._keys = [record.key for record in records]
        with folder.alone():
            if self._is_joined() and len(self._done()) < len(records):  # an input is another one now
                folder.forget_joined()
            done = self._done()
        own = part.share(records)
        self.left = [record for record in own if record.key not in done or "error" in done[record.key]]
        """The records that this part has to predict."""
        so_far = f", {len(own) - len(self.left)} done already" if len(self.left) < len(own) else ""
        print(f"part {part}: {counted(len(own), 'record')}{so_far}")

    def _done(self) -> dict[str, dict[str, Any]]:
        """Return by key what parts have done, if the input is what it was then and the files are there."""
        joined = self._is_joined()
        lines, records = self._folder.lines(self._keys), {record.key: record for record in self._records}
        return {
            key: line
            for key, line in lines.items()
            if line["input"] == _marks(records[key])
            and (joined or all((self._out / name).exists() for name in line["files"]))
        }

    def _is_joined(self) -> bool:
        """Return whether all files were combined, and what they were combined to is there."""
        files = (self._folder.joined or {}).get("files", ())
        return bool(files) and all((self._out / name).exists() for name in files)

    def add(self, record: AnyRecord, files: Sequence[Path], error: str = "") -> None:
        names = [str(file.relative_to(self._out)) for file in files]
        line = {"record": record.key, "input": _marks(record), "files": names} | ({"error": error} if error else {})
        self._folder.add(self._part, json.dumps(line))

    def end(self) -> None:
        with self._folder.alone():
            done = self._done()
            if missing := self._folder.missing(self._keys, done):
                print(f"part {self._part} is done; missing: {', '.join(missing)}")
            elif self._judging.collect is None:
                self._folder.set_joined({"files": []})
            elif self.left or not self._is_joined():
                self._join(done)
            self._summarise()

    def _join(self, done: Mapping[str, Mapping[str, Any]]) -> None:
        """Combine the files of all parts, as one process would have done."""
        files = [self._out / name for key in self._keys for name in done[key]["files"]]
        failed = [key for key in self._keys if "error" in done[key]]
        if not files:
            return
        written = self._collect(files, keep=True)
        if failed:  # the files are needed again when those are predicted
            print(f"the files of each record are kept, as {counted(len(failed), 'record')} could not be predicted")
            return
        self._folder.set_joined({"files": [str(file.relative_to(self._out)) for file in written]})
        for file in {*files} - {*written}:
            file.unlink(missing_ok=True)


@contextmanager
def divided(
    members: Sequence[Started[PredictOptions]], checkpoints: Sequence[str], records: Sequence[AnyRecord]
) -> Iterator[WrittenPart]:
    """Yield what the parts of these records have written; this process holds its part meanwhile."""
    options, project = members[0].options, members[0].setup.project
    part, folder = Part.of(options.part), PartsFolder(options.out / HIDDEN)
    settings = flat(project.config) | {f"--{name}": value for name, value in _own_options(project).items()}
    common = {
        "weights": weights_text(members, checkpoints),
        "settings": {name: value for name, value in settings.items() if name.partition(".")[0] not in FREE_SECTIONS},
        "disagreement": options.disagreement,
        "records": f"{len(records)} ({digest_json([record.key for record in records])[:8]})",
    }
    folder.join(part.count, common)
    with folder.claimed(part):
        yield WrittenPart(project, options.out, folder, part, records)


def _own_options(project: Project) -> Mapping[str, Any]:
    """Return the project's own flags of `predict`."""
    return {} if project.predict_options is None else vars(project.predict_options)


def _marks(record: AnyRecord) -> list[list[Any]]:
    """Return what changes when the record's files do: sizes and times, of URLs what the server says."""
    found: list[list[Any]] = []
    for role, place in sorted(record.files.items()):
        if isinstance(place, Url):
            found.append([role, place.text, place.size, place.etag])
        else:
            stats = [os.stat(file) for file in files_below(place) if file.exists()]
            found.append([role, *([stat.st_size, stat.st_mtime_ns] for stat in stats)])
    return found


def collected(
    collect: Callable[[Sequence[Path], Path], Sequence[Path]], files: Sequence[Path], out: Path, keep: bool = False
) -> Sequence[Path]:
    """Write the files that the project makes of all, and return those; remove `files` unless they are to be kept."""
    written = write_whole(out, partial(collect, files))
    for path in () if keep else {*files} - {*written}:
        path.unlink()
    return written
