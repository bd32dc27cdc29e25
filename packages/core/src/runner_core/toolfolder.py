"""Folders of what looks at runs or data without training: check, profile, tune, ablate, verify-resume, compare."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner_core._errors import BadInput
from runner_core.runfolder import RUNS

_LOCK = ".lock"
"""As of a run's folder: what writes into one keeps the other out."""


@contextmanager
def claimed(project: str, tool: str, out: Path | None) -> Iterator[Path]:
    """A folder in which nobody else writes meanwhile: `out`, which must be empty or not exist yet, else a new
    runs/PROJECT/TOOL-TIME. One in which there is no file at the end is gone, with the folders above that were made for
    it; an interruption gets a note of what is left. BadInput where nothing can be written, or another is at work."""
    path, made = _made(project, tool, out)
    try:
        _refuse_full(path)  # whose own lock, if it is a run, stays
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
            for folder in made:
                folder.rmdir()


def tool_folder(project: str, tool: str, out: Path | None) -> Path:
    """As `claimed`, of a folder that is written at once: it stays, and is nobody's."""
    path, _ = _made(project, tool, out)
    _refuse_full(path)
    return path


def _made(project: str, tool: str, out: Path | None) -> tuple[Path, list[Path]]:
    """The folder, and those that were made for it, itself first."""
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
    """BadInput where another process holds the folder. A killed process holds nothing."""
    place = path / _LOCK
    try:
        lock = place.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{path}: another runner is writing into this folder; name another one with --out") from None
        except OSError:  # a network's disk may have no locks
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
    """Without what is in it, where that is no file."""
    if not _files(path):
        for folder in _others(path):
            shutil.rmtree(folder, ignore_errors=True)


def _others(path: Path) -> list[Path]:
    return [found for found in path.iterdir() if found.name != _LOCK]


def _files(path: Path) -> bool:
    """Is there any, at whatever depth?"""
    return any(not found.is_dir() and found.name != _LOCK for found in path.rglob("*"))


def _unwritable(path: Path | None, error: OSError) -> BadInput:
    return BadInput(f"{path or RUNS}: nothing can be written here ({error.strerror}); name a folder with --out")
