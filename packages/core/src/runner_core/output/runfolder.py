"""Folders that the runner writes: of runs (paths of files, lock, summary), and of tools that look at runs or data."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json, refuse_special_file
from runner_core.base.location import shell_word
from runner_core.base.writing import lock, locked, make_folder, replace_json, replace_text

RUNS = Path("runs")
IMPORTED = "imported"
"""Status of a run that holds another program's weights and was never trained here."""
_LOCK = ".lock"
"""Runs and tools use one name, so that they keep each other out."""
_LEFTOVER = re.compile(r"\.(\d+\.[\w-]+\.(yaml|jsonl|json|html|csv)|streaming\.json\.\w{8})")
"""Names of half-written files, from `whole_file` and `write_once`."""


class RunFolder:
    """Paths of one run. Make a new one with `create`, find an old one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.log = path / "train.log"
        self.jsonl = path / "log.jsonl"
        self.summary_file = path / "summary.json"
        self.starts_file = path / "starts.jsonl"
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
        raise BadInput(f"{path} is not a run folder of runner (it has no config.yaml beside a checkpoints folder)")

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
        return path.name in (_LOCK, "start.json") or _LEFTOVER.fullmatch(path.name) is not None

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

    def checkpoint_of(self, named: Path) -> Path | None:
        """Return the checkpoint of this run that `named` is, or is inside of; None for any other path."""
        inside = named.absolute()
        if self.checkpoints.absolute() not in inside.parents:
            return None
        while inside.parent != self.checkpoints.absolute():  # a file inside a checkpoint
            inside = inside.parent
        return inside

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

        def read(found: Any) -> dict[str, Any] | None:
            return dict(found) if _is_summary(found) else None

        return read_json(self.summary_file, read, "remove it (`train --resume` writes it anew)") or {}


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
    **dict.fromkeys(("health", "scoring_errors", "unwritten", "starts"), list),
    "peak_memory_bytes": Mapping,
    "energy": Mapping,
}
"""Keys of summary.json that others rely on. All are optional."""


def _is_summary(found: Mapping[str, Any]) -> bool:
    values = {name: found[name] for name in _SUMMARY if found.get(name) is not None}
    finding = {"rule", "level", "message"}
    right = all(isinstance(value, _SUMMARY[name]) for name, value in values.items())
    return right and all(isinstance(f, dict) and finding <= f.keys() for f in values.get("health", ()))


_LARGEST = 1 << 53
"""Steps below this are exact where a chart computes."""
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
    for name in ("step", "steps") if event["event"] == "start" and "steps" in event else ("step",):
        if type(event.get(name)) is not int or not 0 <= event[name] < _LARGEST:
            return f"{name} is not a whole number"
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
    return BadInput(f"{path} cannot be written: {error.strerror or error}; name another run folder with --run-dir")


@contextmanager
def claimed(project: str, tool: str, out: Path | None) -> Iterator[Path]:
    """Yield a folder in which no other process writes meanwhile.

    It is `out`, which must be empty or not exist yet, or else a new runs/PROJECT/TOOL-TIME. If it holds no file at the
    end, it is removed, with the folders above that were made for it. An interruption gets a note about what is left.
    Raises BadInput if the folder cannot be written, or if another process works there.
    """
    path, new = _make(project, tool, out)
    try:
        _refuse_full(path)  # before locking: a run keeps its own lock
        with _locked(path):
            _refuse_full(path)
            try:
                yield path
            finally:
                _empty_of_folders(path)
    except (KeyboardInterrupt, SystemExit) as stop:
        stop.add_note(f"what there is until then is in {path}" if _files(path) else "nothing is kept")
        raise
    finally:
        with suppress(OSError):  # not empty
            for folder in new:
                folder.rmdir()


def tool_folder(project: str, tool: str, out: Path | None) -> Path:
    """Return a folder like `claimed`, but without a lock: it is written at once, and stays."""
    path, _ = _make(project, tool, out)
    _refuse_full(path)
    return path


def _make(project: str, tool: str, out: Path | None) -> tuple[Path, list[Path]]:
    """Return the folder, and the folders that were made for it, itself first."""
    stem = path = out or RUNS / project / f"{tool}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    number = 1
    try:
        while True:
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            try:
                path.mkdir(parents=True, exist_ok=out is not None)
                return path, missing
            except FileExistsError:
                if out is not None:  # it is a file
                    raise
                number += 1
                path = stem.with_name(f"{stem.name}-{number}")
    except OSError as error:
        raise _tool_unwritable(out, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises BadInput if another process holds it; a killed process holds nothing."""
    place = path / _LOCK
    while True:
        try:
            file = place.open("ab")
        except OSError as error:
            raise _tool_unwritable(path, error) from error
        with file:
            try:
                lock(file.fileno(), wait=False)
            except BlockingIOError:
                raise BadInput(
                    f"{path}: another runner is writing into this folder; name another one with --out"
                ) from None
            except OSError:  # a network file system may have no locks
                pass
            if not _is_at(file.fileno(), place):  # its last holder removed it after it was opened here
                continue
            try:
                yield
                return
            finally:
                place.unlink(missing_ok=True)


def _is_at(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), place.stat())
    except FileNotFoundError:
        return False


def _refuse_full(path: Path) -> None:
    try:
        full = bool(_others(path))
    except OSError as error:
        raise _tool_unwritable(path, error) from error
    if full:
        raise BadInput(f"{path}: the folder is not empty; name another one with --out")


def _empty_of_folders(path: Path) -> None:
    """Remove the folders inside it, if there is no file in any of them."""
    if not _files(path):
        for folder in _others(path):
            shutil.rmtree(folder, ignore_errors=True)


def _others(path: Path) -> list[Path]:
    return [found for found in path.iterdir() if found.name != _LOCK]


def _files(path: Path) -> bool:
    """Return whether there is any file, at whatever depth."""
    return any(not found.is_dir() and found.name != _LOCK for found in path.rglob("*"))


def _tool_unwritable(path: Path | None, error: OSError) -> BadInput:
    return BadInput(f"{path or RUNS}: nothing can be written here ({error.strerror}); name a folder with --out")
