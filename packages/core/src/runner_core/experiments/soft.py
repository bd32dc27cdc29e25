"""Soft outputs of records by networks that did not train on them, on disk, and the scores of decisions made of them."""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.progress import RecordBar
from runner_core.base.text import counted
from runner_core.base.writing import whole_file
from runner_core.config.values import flat, overlay_named
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.contract.values import Arrays
from runner_core.contract.views import averaged, mean
from runner_core.data.cache.identity import digest_json
from runner_core.data.pipeline import CroppedRecord, local
from runner_core.experiments.choosing import Choice, Values
from runner_core.output.pictures import file_name
from runner_core.training.ensembles import Ensemble, Member
from runner_core.training.scoring import score_record

_SECONDS = "seconds"
_SCORES = "scores.jsonl"


def with_settings(project: Project, settings: Mapping[str, Any]) -> Project:
    """Return the project with other values of settings by dotted name; all else is shared."""
    changed = copy(project)
    changed.config = overlay_named(project.config, settings, "the choice")
    return changed


@dataclass(frozen=True)
class SoftOutputs:
    """A folder with one file for each record, network and set of views; what is there is not computed again.

    Probabilities are kept as float16, bytes and other values as they are.

    Args:
        folder: Where the files are.
        ensemble: Networks that know what they were trained on.
        arms: The arm of each network.
        marks: Digest of each network's checkpoint.
        contents: Digest of each record, its labels too.
    """

    folder: Path
    ensemble: Ensemble
    arms: Sequence[str]
    marks: Sequence[str]
    contents: Mapping[str, str]

    def fill(self, records: Sequence[AnyRecord], views: Sequence[tuple[str, ...]], bar: RecordBar) -> dict[str, str]:
        """Predict what is missing, one record at a time; return messages for those that cannot be read, by key."""
        ensemble, errors = self.ensemble.counting(bar), dict[str, str]()
        for record in records:
            bar.begin(record.key)
            wanted = [
                (number, member, names)
                for number, member in enumerate(ensemble.members)
                if not member.trained_on(record)
                for names in views
                if not zipfile.is_zipfile(self._path(number, names, record))
            ]
            try:
                with local(ensemble.members[0].project, record) as here:
                    cropped = CroppedRecord(ensemble.members[0].pipeline, here)
                    _ = wanted and cropped.prepared  # so that it is not timed
                    for number, member, names in wanted:
                        self._compute(self._path(number, names, record), member, names, cropped)
            except BadInput as error:
                errors[record.key] = str(error)
            bar.done()
        return errors

    def _compute(self, path: Path, member: Member, names: tuple[str, ...], cropped: CroppedRecord) -> None:
        combining = member.combining
        declared = {view.name: view for view in combining.views}
        begun = time.monotonic()
        found = averaged(combining.soft, cropped, member.infer, [declared[name] for name in names])
        seconds = time.monotonic() - begun
        if combining.kind == "probabilities":
            found = {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in found.items()}
        with whole_file(path) as temporary:
            np.savez_compressed(temporary, **{_SECONDS: np.array(seconds), **found})  # type: ignore[arg-type]

    def seconds(self, records: Sequence[AnyRecord], views: tuple[str, ...]) -> float:
        """Return how long a network took for one record, in the median: the first one may have been compiled for."""
        paths = [
            self._path(number, views, record)
            for record in records
            for number, member in enumerate(self.ensemble.members)
            if not member.trained_on(record)
        ]
        return float(np.median([_read(path, timing=True)[_SECONDS] for path in paths]))

    def mean(self, record: AnyRecord, views: tuple[str, ...], arms: Sequence[str]) -> Arrays:
        """Return the mean over the networks of these arms that did not train on the record."""
        return mean(found for number in self.numbers(record, arms) if (found := self._load(number, views, record)))

    def numbers(self, record: AnyRecord, arms: Sequence[str]) -> list[int]:
        """Return the numbers of the networks of these arms that did not train on the record."""
        pairs = enumerate(zip(self.ensemble.members, self.arms, strict=True))
        return [number for number, (member, arm) in pairs if arm in arms and not member.trained_on(record)]

    def _load(self, number: int, views: tuple[str, ...], record: AnyRecord) -> Arrays:
        arrays = _read(self._path(number, views, record), timing=False)
        return {name: a.astype(np.float32) if a.dtype == np.float16 else a for name, a in arrays.items()}

    def _path(self, number: int, views: tuple[str, ...], record: AnyRecord) -> Path:
        mark = digest_json([self.marks[number], list(views), self.contents[record.key], record.key])[:12]
        return self.folder / f"{file_name(record.key)[:60]}-{mark}.npz"


def _read(path: Path, timing: bool) -> Arrays:
    """Return the stored arrays, or the time that they took. Raises BadInput for a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files if (name == _SECONDS) == timing}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{path} is damaged: remove it and start `select` again, which computes it anew") from error


class Scored:
    """Scores of records under choices: computed from stored outputs one record at a time, and kept in a file."""

    def __init__(
        self,
        outputs: SoftOutputs,
        records: Sequence[AnyRecord],
        bar: Callable[[str, int], AbstractContextManager[RecordBar]],
    ) -> None:
        self._outputs, self._records, self._bar = outputs, records, bar
        self._file = outputs.folder / _SCORES
        self._known = self._kept()

    def __call__(self, choices: Sequence[Choice]) -> dict[Choice, dict[str, Values]]:
        """Return the scores of every record under each choice; a bar counts those that are computed."""
        missing = {
            record.key: [choice for choice in choices if self._mark(choice, record) not in self._known]
            for record in self._records
        }
        title = f"scoring {counted(len(choices), 'choice')} of this step"
        with self._bar(title, sum(map(len, missing.values()))) as bar, self._file.open("a", encoding="utf-8") as file:
            for record in self._records:
                bar.begin(record.key)
                for choice, scores in self._score(record, missing[record.key]):
                    mark = self._mark(choice, record)
                    self._known[mark] = scores
                    file.write("\n" + json.dumps([mark, scores]))  # after a kill, the last line may not be whole
                    bar.done()
                file.flush()
        return {c: {r.key: self._known[self._mark(c, r)] for r in self._records} for c in choices}

    def _score(self, record: AnyRecord, choices: Sequence[Choice]) -> Iterator[tuple[Choice, Values]]:
        member = self._outputs.ensemble.members[0]
        if not choices:
            return
        with local(member.project, record) as here:
            cropped = CroppedRecord(member.pipeline, here)
            by_soft: dict[Any, list[Choice]] = {}
            for choice in choices:
                by_soft.setdefault((choice.views, choice.arms), []).append(choice)
            for (views, arms), alike in by_soft.items():
                soft = self._outputs.mean(record, views, arms)
                for choice in alike:
                    project = with_settings(member.project, dict(choice.settings))
                    combining = project.combining()
                    assert combining is not None
                    yield choice, score_record(project, here, combining.decide(cropped, soft))

    def _mark(self, choice: Choice, record: AnyRecord) -> str:
        numbers = self._outputs.numbers(record, choice.arms)
        networks = sorted(self._outputs.marks[number] for number in numbers)
        content = self._outputs.contents[record.key]
        return digest_json(
            [networks, [list(pair) for pair in choice.settings], list(choice.views), record.key, content]
        )

    def _kept(self) -> dict[str, Values]:
        """Return the scores of earlier starts, without lines that are not whole."""
        found: dict[str, Values] = {}
        for line in self._file.read_text("utf-8", "replace").splitlines() if self._file.exists() else ():
            with suppress(ValueError, TypeError):
                mark, scores = json.loads(line)
                found[mark] = dict(scores)
        return found


def mark_of(member: Member, checkpoint: Path, choices: Sequence[str], versions: Mapping[str, str]) -> str:
    """Return a digest of everything besides the record that decides a network's soft output and its scores.

    `versions` are those of the project and the extensions, whose code may change.
    """
    config = flat(member.project.config)
    settings = {
        n: v for n, v in config.items() if n.startswith(("predict.", "precision.", "data.")) and n not in choices
    }
    settings.pop("predict.views", None)
    files = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in checkpoint.iterdir() if p.is_file())
    return digest_json([str(checkpoint.resolve()), files, settings, dict(member.pipeline.settings), dict(versions)])
