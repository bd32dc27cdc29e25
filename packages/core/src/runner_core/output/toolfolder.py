"""Folders of the tools that look at runs or data: check, profile, tune, ablate, verify-resume, compare."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.writing import lock
from runner_core.output.runfolder import RUNS

_LOCK = ".lock"
"""A run's folder uses the same name, so that a tool and a run keep each other out."""


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
        raise _unwritable(out, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises BadInput if another process holds it; a killed process holds nothing."""
    place = path / _LOCK
    try:
        file = place.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        try:
            lock(file.fileno(), wait=False)
        except BlockingIOError:
            raise BadInput(f"{path}: another runner is writing into this folder; name another one with --out") from None
        except OSError:  # a network file system may have no locks
            pass
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def _refuse_full(path: Path) -> None:
    try:
        full = bool(_others(path))
    except OSError as error:
        raise _unwritable(path, error) from error
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


def _unwritable(path: Path | None, error: OSError) -> BadInput:
    return BadInput(f"{path or RUNS}: nothing can be written here ({error.strerror}); name a folder with --out")
