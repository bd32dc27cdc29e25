"""The folder of a submission: what was submitted, and what became of each of its members.

runs/PROJECT/submit-TIME/
  submission.json     the members: their command lines, folders and jobs
  settings/NAME.yaml  the settings of each member at the moment of the submission
  members/NAME.jsonl  a line for each start, stop and end
  jobs/               submitit's files: scripts, pickles, logs
  NAME/               the run folder of each member, unless the user named another
  comparison/         of an array that has ended: `runner compare` of its runs
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner_core import BadInput, replace_json

FILE = "submission.json"


@dataclass(frozen=True)
class Member:
    """A command line that a job runs."""

    name: str
    words: Sequence[str]
    """What follows `runner`."""
    folder: str = ""
    """The folder that it writes into."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of an array that are this member's own."""
    job: str = ""
    """The job's number, empty until it is submitted."""


@dataclass(frozen=True)
class State:
    """The state of a member, as its own lines say."""

    starts: int = 0
    last: str = ""
    """start, stopped (it will go on if the scheduler starts it again), requeued, or ended."""
    code: int | None = None
    """Exit code, if it does not run now."""

    @property
    def ended(self) -> bool:
        return self.last == "ended"


@dataclass(frozen=True)
class Submission:
    path: Path
    project: str
    command: str
    executor: str
    restarts: int
    members: Sequence[Member]

    @classmethod
    def open(cls, path: Path) -> Submission:
        """Return the submission of a folder. Raises BadInput if there is none, or if its file is damaged."""
        file = path / FILE
        if not file.is_file():
            raise BadInput(f"{path} is not the folder of a submission (it has no {FILE})")
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            members = [Member(**member) for member in found.pop("members")]
            return cls(path=path, members=members, **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"{file} is damaged ({error}): submit again with --run-dir of the runs") from error

    @classmethod
    def latest(cls, project: str) -> Submission:
        """Return the newest submission of a project below the folder `runs`. Raises BadInput if there is none."""
        found = sorted((Path("runs") / project).glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime_ns)
        if not found:
            raise BadInput(
                f"runs/{project}: nothing of {project} was submitted from this folder; name the submission's"
            )
        return cls.open(found[-1].parent)

    def save(self) -> None:
        values = asdict(self)
        del values["path"]
        replace_json(self.path / FILE, values)

    def with_jobs(self, jobs: Sequence[str]) -> Submission:
        """Return it with the jobs of its members, in their order."""
        members = [replace(member, job=job) for member, job in zip(self.members, jobs, strict=True)]
        return replace(self, members=members)

    @property
    def jobs(self) -> Path:
        """Folder of submitit's files."""
        return self.path / "jobs"

    @property
    def comparison(self) -> Path:
        return self.path / "comparison"

    @property
    def compared(self) -> Path:
        """Page that is there once an array's runs are compared."""
        return self.comparison / "report.html"

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise BadInput(f"{self.path} has no member {name!r}: {', '.join(member.name for member in self.members)}")

    # ---------------------------------------------------------------- what became of the members

    def _lines(self, member: Member) -> Path:
        return self.path / "members" / f"{member.name}.jsonl"

    def say(self, member: Member, event: str, code: int | None = None) -> None:
        """Add a line about a member; only one process of its job does."""
        line = {"event": event, "code": code, "time": time.strftime("%Y-%m-%d %H:%M:%S"), "host": platform.node()}
        file = self._lines(member)
        file.parent.mkdir(exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{json.dumps(line)}\n")
            lines.flush()
            os.fsync(lines.fileno())

    def state(self, member: Member) -> State:
        """Return what became of a member; a line that a kill tore is left out."""
        events = []
        with suppress(OSError):
            for line in self._lines(member).read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):
                    events.append(json.loads(line))
        if not events:
            return State()
        return State(sum(one["event"] == "start" for one in events), events[-1]["event"], events[-1]["code"])

    @property
    def comparable(self) -> bool:
        """True for an array whose members have all ended well: the job that ends last compares their runs."""
        states = map(self.state, self.members)
        return bool(self.members[0].settings) and all(state.ended and state.code == 0 for state in states)

    @property
    def _cancelled(self) -> Path:
        return self.path / ".cancelled"

    @property
    def cancelled(self) -> bool:
        return self._cancelled.exists()

    def cancel(self) -> None:
        """Let no job of it start or go on."""
        self._cancelled.touch()
