"""A run's folder: where each file lies, who may write into it, and its summary."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core._errors import BadInput
from runner_core._text import typed

RUNS = Path("runs")
_LOCK = ".lock"


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
        """A new folder: `run_dir`, which must be empty or not exist yet, else `root/project/time` (root: runs)."""
        try:
            path = run_dir or _free((root or RUNS) / project / time.strftime("%Y-%m-%d-%H%M%S"))
            path.mkdir(parents=True, exist_ok=True)
            if any(p.name != _LOCK for p in path.iterdir()):
                raise BadInput(
                    f"{path}: the run folder is not empty; name another one, or continue its run with "
                    f"--resume {typed(path)}"
                )
            folder = cls(path)
            folder.checkpoints.mkdir()
            folder.figures.mkdir()
        except OSError as error:
            raise _unwritable(path, error) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, given its folder or anything inside it (a checkpoint)."""
        if not path.exists():
            raise BadInput(f"{path}: there is no such run folder")
        for candidate in (path.absolute(), *path.absolute().parents):
            if (candidate / "config.yaml").is_file() and (candidate / "checkpoints").is_dir():
                return cls(path if candidate == path.absolute() else candidate)
        raise BadInput(f"{path}: not a run folder of runner (there is no config.yaml beside a checkpoints folder)")

    @classmethod
    def latest(cls, project: str, root: Path | None = None) -> RunFolder:
        """The newest run of a project below `root` (runs)."""
        parent = (root or RUNS) / project
        found = [p for p in parent.glob("*") if (p / "config.yaml").is_file()]
        if not found:
            raise BadInput(f"{parent}: there is no run of {project} to resume; name one with --resume RUN")
        return cls(max(found, key=lambda p: ((p / "config.yaml").stat().st_mtime_ns, p.name)))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a run writes here; BadInput when another process holds it. A killed process holds nothing."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BadInput(f"{self.path}: another runner is training in this folder; wait for it, or stop it") from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            yield
        finally:
            lock.release()

    def truncate_log(self, step: int, validated: int = 0) -> None:
        """Drop what log.jsonl says after the checkpoint of `step`: those steps are about to run again.

        `validated` is the last validated step that the checkpoint knows: a step may be saved twice, before its
        validation (a signal came) and after. Step 0 drops all. Without that checkpoint's line (it was never written),
        lines of later steps go.
        """
        if step == 0 or not self.jsonl.exists():
            self.jsonl.unlink(missing_ok=True)
            return
        logged = self._logged()
        saved = {"event": "checkpoint", "step": step, "validated": validated}
        end = next((n for n, (_, event) in enumerate(logged, 1) if saved.items() <= event.items()), None)
        kept = logged[:end] if end else [(line, event) for line, event in logged if event.get("step", 0) <= step]
        replace_text(self.jsonl, "".join(f"{line}\n" for line, _ in kept))

    def events(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl; one torn by a kill is left out."""
        return [event for _, event in self._logged()] if self.jsonl.exists() else []

    def _logged(self) -> list[tuple[str, dict[str, Any]]]:
        """Whole lines of log.jsonl and what they say. A torn one may end within a character."""
        logged = []
        for line in self.jsonl.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict):
                    logged.append((line, event))
        return logged

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json whole or not at all; NaN and infinities become null."""
        replace_text(self.summary_file, json_text(summary) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """summary.json, or an empty dict while there is none."""
        try:
            return dict(json.loads(self.summary_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all. Names of files that are no text are escaped, as JSON has it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # the name that people know
        raise
    finally:
        temporary.unlink(missing_ok=True)


def json_text(value: Any) -> str:
    """JSON as the standard has it (no NaN), from values that may hold NumPy scalars and paths."""
    return json.dumps(to_json(value), indent=1, ensure_ascii=False, allow_nan=False)


def to_json(value: Any) -> Any:
    """`value` with NumPy scalars and arrays, tuples and paths made plain, and what is not finite made None."""
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return to_json(value.tolist())
    if isinstance(value, float) and value - value != 0:
        return None
    return str(value) if isinstance(value, Path) else value


def _free(path: Path) -> Path:
    """`path`, or with -2, -3, … when it is taken (two runs in one second)."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path}: cannot write the run folder here: {error.strerror or error}; name another with --run-dir")
