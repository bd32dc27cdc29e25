"""Folders of experiments: several runs of one project that answer one question.

runs/PROJECT/crossval-TIME/
  experiment.json   what is varied, and the members: their names, folds, seeds and settings
  settings.yaml     the settings that all members share
  groups.json       the group of each record, if folds follow a column of the table
  fold-1/ …         one ordinary run folder for each member
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.parts import Part
from runner_core.base.writing import is_locked, lock, replace_json
from runner_core.contract import Json
from runner_core.output.runfolder import RunFolder

FILE = "experiment.json"
SETTINGS_FILE = "settings.yaml"
GROUPS_FILE = "groups.json"
_RUNNING = ".running-"
"""Start of the name of a locked file that says which process trains a share of the members."""


def _texts(found: Any) -> dict[str, str] | None:
    return found if all(isinstance(value, str) for value in found.values()) else None


@dataclass(frozen=True)
class Member:
    """A run of an experiment, which may not have begun.

    `fold` names the part of the data that this run does not train on, "" if folds are not what is varied. `settings`
    (by dotted name) are its own, over those that all members share.
    """

    name: str
    fold: str = ""
    seed: int = 0
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentFolder:
    """An experiment: its folder, its kind (crossval, repeat, sweep), and its members.

    `about` holds what else decides the members: the number of folds, the grouping.
    """

    path: Path
    kind: str
    project: str
    members: Sequence[Member]
    about: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> bool:
        """Return whether `path` is the folder of an experiment."""
        return (path / FILE).is_file()

    @classmethod
    def open(cls, path: Path) -> ExperimentFolder:
        """Return the experiment of a folder. Raises BadInput if there is none, or if its file is damaged."""
        if not path.exists():
            raise BadInput(f"{path}: there is no such folder")
        if not cls.at(path):
            raise BadInput(f"{path} is not the folder of a cross-validation, repetition or sweep (it has no {FILE})")

        def read(found: Any) -> ExperimentFolder | None:
            members = [Member(**member) for member in found["members"]]
            texts = [found["kind"], found["project"], *(text for m in members for text in (m.name, m.fold))]
            named = all(isinstance(text, str) for text in texts) and all(_is_name(path, m.name) for m in members)
            right = named and all(map(_are_settings, (m.settings for m in members)))
            return cls(path, found["kind"], found["project"], members, dict(found["about"])) if right else None

        remedy = "its runs are whole: `evaluate RUN --with RUN`, `predict` and `compare` take them one by one"
        experiment = read_json(path / FILE, read, remedy)
        assert experiment is not None, f"{path / FILE} was there a moment ago"
        return experiment

    def save_groups(self, groups: Mapping[str, str]) -> None:
        """Write the group of each record by its key, where folds keep others together than the records' own groups."""
        replace_json(self.path / GROUPS_FILE, groups)

    def groups(self) -> dict[str, str]:
        """Return what `save_groups` wrote, empty if the records' own groups count."""
        return read_json(self.path / GROUPS_FILE, _texts, "start a new one in another folder") or {}

    def save(self) -> None:
        """Write experiment.json, whole or not at all."""
        members = [asdict(member) for member in self.members]
        replace_json(
            self.path / FILE,
            {"kind": self.kind, "project": self.project, "about": dict(self.about), "members": members},
        )

    @property
    def settings_file(self) -> Path:
        return self.path / SETTINGS_FILE

    def run(self, member: Member) -> RunFolder:
        """Return the run folder of a member, which may not exist yet."""
        return RunFolder(self.path / member.name)

    def begun(self, member: Member) -> bool:
        """Return whether a member's run has begun, so that it can be continued."""
        return self.run(member).config_file.is_file()

    def done(self, member: Member) -> bool:
        """Return whether a member has been trained to its end and scored; summary.json has its scores only then."""
        summary = self.summary(member) if self.begun(member) else {}
        return summary.get("status") == "done" and "scores" in summary

    @contextmanager
    def claimed(self, part: str = "") -> Iterator[None]:
        """Hold a share of the members: `part` is i/n, or "" for all.

        Raises BadInput that names the process which holds one of these members. A killed process holds nothing.
        """
        own = self._marker(part)
        with ExitStack() as held:
            with self._alone():
                for other in self._markers():
                    if other != own and self._overlap(part, other) and (text := _held_by(other)):
                        raise self._busy(text)
                try:
                    file = held.enter_context(own.open("a+", encoding="utf-8"))
                except OSError as error:
                    raise BadInput(f"{own} cannot be written: {error.strerror or error}") from error
                try:
                    lock(file.fileno(), wait=False)
                except BlockingIOError:
                    raise self._busy(_held_by(own) or "another process") from None
                except OSError:  # a network file system may have no locks: then each run's own lock is asked
                    pass
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
                file.flush()
            try:
                yield
            finally:
                with self._alone():
                    own.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from claiming shares, and from giving them up; wait for one that does so now."""
        with ExitStack() as held:
            with suppress(OSError):  # the folder is gone, or its file system has no locks
                descriptor = os.open(self.path, os.O_RDONLY)
                held.callback(os.close, descriptor)
                lock(descriptor)
            yield

    def _busy(self, who: str) -> BadInput:
        return BadInput(f"{self.path}: {who} is training here already; wait for it, or stop it")

    def _marker(self, part: str) -> Path:
        return self.path / (_RUNNING + part.replace("/", "-of-"))

    def _markers(self) -> list[Path]:
        return [path for path in self.path.iterdir() if re.fullmatch(rf"{re.escape(_RUNNING)}(\d+-of-\d+)?", path.name)]

    def _overlap(self, part: str, marker: Path) -> bool:
        """Return whether the shares of both have a member in common, or are the same."""
        other, numbers = marker.name.removeprefix(_RUNNING).replace("-of-", "/"), range(len(self.members))
        return "" in (part, other) or not {*Part.of(part).share(numbers)}.isdisjoint(Part.of(other).share(numbers))

    def summary(self, member: Member) -> dict[str, Any]:
        """Return the member's summary.json, empty while there is none. Raises BadInput for a damaged one."""
        return self.run(member).read_summary()


def _held_by(marker: Path) -> str:
    """Return which process holds a share; "" if none does."""
    try:
        return (marker.read_text(encoding="utf-8") or "another process") if is_locked(marker) else ""
    except OSError:  # it has ended meanwhile, or the file system has no locks
        return ""


def _is_name(path: Path, name: str) -> bool:
    """Return whether a member's name is that of a folder inside the experiment's, and leads nowhere else."""
    return Path(name).name == name and name[:1] not in ("", ".") and not (path / name).is_symlink()


def _are_settings(found: Any) -> bool:
    """Return whether all keys are dotted names, so that none is an option of the command line."""
    return isinstance(found, dict) and all(re.fullmatch(r"\w+(\.\w+)+", str(name)) for name in found)
