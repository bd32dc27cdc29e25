"""A run's folder: the paths of its files, the lock on it, and its summary."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import shell_word
from runner_core.base.writing import locked, make_folder, replace_json, replace_text

RUNS = Path("runs")
_LOCK = ".lock"
_LEFTOVER = re.compile(r"\.(\w+\.(yaml|jsonl|json|html|csv)\.\d+|streaming\.json\.\w{8})")
"""Names of half-written files, from `whole_file` and `write_once`."""


class RunFolder:
    """Paths of one run. Make a new one with `create`, find an old one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.log = path / "train.log"
        self.jsonl = path / "log.jsonl"
        self.summary_file = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.figures = path / "figures"
        self.report_file = path / "report.html"

    @classmethod
    def create(cls, root: Path | None, project: str, run_dir: Path | None = None) -> RunFolder:
        """Make and return a new folder.

        It is `run_dir`, which must be empty or not exist yet, or else `root/project/time` (root: runs).
        """
        try:
            path = run_dir or free_path((root or RUNS) / project / time.strftime("%Y-%m-%d-%H%M%S"))
            make_folder(path)
            folder = cls(path)
            if not all(folder._begun(found) for found in path.iterdir()):
                raise BadInput(
                    f"{path}: the run folder is not empty; name another one, or continue its run with "
                    f"--resume {shell_word(path)}"
                )
            folder.checkpoints.mkdir(exist_ok=True)
            folder.figures.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return an existing run, given its folder or anything inside it (a checkpoint)."""
        if not path.exists():
            raise BadInput(f"{path}: there is no such run folder")
        for candidate in (path.absolute(), *path.absolute().parents):
            if (candidate / "config.yaml").is_file() and (candidate / "checkpoints").is_dir():
                return cls(path if candidate == path.absolute() else candidate)
        raise BadInput(f"{path}: not a run folder of runner (there is no config.yaml beside a checkpoints folder)")

    @classmethod
    def latest(cls, project: str, root: Path | None = None) -> RunFolder:
        """Return the newest run of a project below `root` (default: runs)."""
        parent = (root or RUNS) / project
        found = [p for p in parent.glob("*") if (p / "config.yaml").is_file()]
        if not found:
            raise BadInput(f"{parent}: there is no run of {project} to resume; name one with --resume RUN")
        return cls(max(found, key=lambda p: ((p / "config.yaml").stat().st_mtime_ns, p.name)))

    def _begun(self, path: Path) -> bool:
        """Return whether `path` is left by a start that was killed before it wrote config.yaml."""
        if path in (self.checkpoints, self.figures):
            return path.is_dir() and not any(path.iterdir())
        return path.name == _LOCK or _LEFTOVER.fullmatch(path.name) is not None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of a run that writes here. Raises BadInput when another process holds it.

        A killed process holds nothing; its half-written files are removed.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / _LOCK, wait=False))
            except BlockingIOError:
                raise BadInput(
                    f"{self.path}: another runner is training in this folder; wait for it, or stop it"
                ) from None
            except OSError as error:
                raise _unwritable(self.path, error) from error
            for found in self.path.iterdir():
                if _LEFTOVER.fullmatch(found.name):
                    found.unlink(missing_ok=True)
            yield

    def truncate_log(self, step: int, validated: int = 0) -> None:
        """Drop the lines of log.jsonl after the checkpoint of `step`, because those steps run again.

        `validated` is the last validated step that the checkpoint knows: a step may be saved twice, before its
        validation (after a signal) and after. Step 0 drops all. If the checkpoint's line was never written, lines of
        later steps go.
        """
        if step == 0 or not self.jsonl.exists():
            self.jsonl.unlink(missing_ok=True)
            return
        logged = self._logged()
        saved = {"event": "checkpoint", "step": step, "validated": validated}
        end = next((n for n, (_, event) in enumerate(logged, 1) if saved.items() <= event.items()), None)
        kept = logged[:end] if end else [(line, event) for line, event in logged if event.get("step", 0) <= step]
        replace_text(self.jsonl, "".join(f"{line}\n" for line, _ in kept))

    def saved_steps(self) -> list[int]:
        """Return the steps of the checkpoints, ascending, including damaged ones."""
        names = (path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of log.jsonl, without one torn by a kill."""
        return [event for _, event in self._logged()] if self.jsonl.exists() else []

    def checked_events(self) -> list[dict[str, Any]]:
        """Return the same lines as `events`. Raises BadInput for a line that was edited."""
        events = self.events()
        for event in events:
            if what := malformed(event):
                raise BadInput(f"{self.jsonl}: {what}: {json.dumps(event)[:100]}; it was changed: remove that line")
        return events

    def _logged(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the whole lines of log.jsonl and their values. A torn line may end within a character.

        Raises BadInput if the file cannot be read.
        """
        logged = []
        try:
            text = refuse_special_file(self.jsonl).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise BadInput(f"{self.jsonl} cannot be read: {error.strerror or error}") from error
        for line in text.split("\n"):
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    logged.append((line, event))
        return logged

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json whole or not at all; NaN and infinities become null."""
        replace_json(self.summary_file, summary)

    def read_summary(self) -> dict[str, Any]:
        """Return summary.json, or an empty dict while there is none. Raises BadInput for a damaged one."""
        try:
            found = json.loads(self.summary_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not _is_summary(found):
            raise BadInput(
                f"{self.summary_file} is damaged: it is not what the runner writes; remove it (`train --resume` writes "
                "it anew)"
            )
        return found


_SUMMARY: Mapping[str, type | tuple[type, ...]] = {
    "project": str,
    "status": str,
    "epochs": int,
    "steps": int,
    "best_step": (int, type(None)),
    "wall_seconds": (int, float),
    "samples_per_second": (int, float, type(None)),
    "data_wait_share": (int, float, type(None)),
    **dict.fromkeys(
        ("metrics", "scores", "baseline", "further", "versions", "split", "memory_plan", "device"), Mapping
    ),
    **dict.fromkeys(("health", "scoring_errors", "unwritten"), list),
    "peak_memory_bytes": Mapping,
}
"""Keys of summary.json that others rely on. All are optional."""


def _is_summary(found: Mapping[str, Any]) -> bool:
    values = {name: found[name] for name in _SUMMARY if found.get(name) is not None}
    finding = {"rule", "level", "message"}
    right = all(isinstance(value, _SUMMARY[name]) for name, value in values.items())
    return right and all(isinstance(f, dict) and finding <= f.keys() for f in values.get("health", ()))


_EVENTS: Mapping[str, Mapping[str, type]] = {
    "losses": {"gradient_norm": dict},
    "health": {"rule": str, "level": str, "message": str},
    "figure": {"name": str, "file": str},
    "watch": {"arrays": dict},
}
"""Keys that lines of log.jsonl must have besides step, by event."""


def malformed(event: Mapping[str, Any]) -> str:
    """Return the fault of a line of log.jsonl, or "".

    >>> malformed({"event": "train", "step": 1}), malformed({"event": "train", "step": "1"})
    ('', 'step is not a whole number')
    """
    if not isinstance(event.get("event"), str):
        return "event is not text"
    if type(event.get("step")) is not int or event["step"] < 0:
        return "step is not a whole number"
    wanted = (
        {"timing": dict, **_EVENTS.get(event["event"], {})} if "timing" in event else _EVENTS.get(event["event"], {})
    )
    wrong = [name for name, kind in wanted.items() if not isinstance(event.get(name), kind)]
    return f"{wrong[0]} is not what the runner writes" if wrong else ""


def free_path(path: Path) -> Path:
    """Return `path`, or with -2, -3, … if it is taken (two runs in one second)."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path}: cannot write the run folder here: {error.strerror or error}; name another with --run-dir")
