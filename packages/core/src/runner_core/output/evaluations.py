"""The folders of evaluations in a run or an experiment, and files written whole or not at all.

There is one folder for each (data, split, checkpoint, settings), with a name and a date:

evaluation-SPLIT-DATA-TIME/
  evaluation.json   data, split, checkpoint and settings, and the time
  scores.csv, scores.json, pictures

`write_whole` writes into a hidden folder first, from which files are moved to their places. A full disk or a kill in
between leaves older files of the same names unchanged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.text import counted
from runner_core.base.writing import (
    LONG_AGO,
    flush,
    full_disk,
    has_no_locks,
    host_word,
    lock,
    make_folder,
    replace_json,
    untouched,
    whole_folder,
)
from runner_core.data.cache.identity import digest_json
from runner_core.output.pictures import file_name
from runner_core.output.runfolder import RunFolder, free_path

FACTS_FILE = "evaluation.json"
UNSEEN = "not trained on"
"""Name of the scores of the records that no network which predicts them was trained on."""
FREE_SECTIONS = ("cache", "remote", "log")
"""Settings that change no score."""


def facts(
    *,
    data: str,
    split: str,
    checkpoint: str,
    contents: Mapping[str, str | None],
    settings: Mapping[str, tuple[Any, Any]],
    versions: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the facts that identify an evaluation.

    `contents` maps each scored record to the digest of its image. `settings` maps each changed setting to (the run's
    value, the evaluation's).
    """
    changed = {
        name: {"run": was, "evaluation": now}
        for name, (was, now) in settings.items()
        if name.partition(".")[0] not in FREE_SECTIONS
    }
    same = {"data": data, "split": split, "checkpoint": checkpoint, "settings": changed}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        **same,
        "records": len(contents),
        "content": digest_json(dict(contents)),
        "versions": dict(versions),
        "key": digest_json([same, dict(contents)]),
    }


@contextmanager
def new_folder(run: Path, found: Mapping[str, Any], written: list[Path]) -> Iterator[Path]:
    """Yield a folder for an evaluation, moved into place at the end or not at all; then add its path to `written`.

    It replaces an evaluation of the same data, split, checkpoint and settings.
    """
    data = found["data"].rstrip("/").rpartition("/")[2]
    stem = f"evaluation-{found['split']}-{file_name(data)[:40]}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    folder = free_path(run / stem)
    before = [old for old, known in listed(run) if known.get("key") == found["key"]]
    try:
        with whole_folder(folder) as temporary:
            replace_json(temporary / FACTS_FILE, found)
            yield temporary
            inside = [path.name for path in temporary.iterdir()]
            replace_json(temporary / FACTS_FILE, {**found, "files": sorted(inside)})
    except PermissionError as error:
        raise BadInput(f"{run} cannot be written: {error.strerror}; name another folder with --out") from error
    written.append(folder)
    for old in before:
        _remove(old)


def _remove(folder: Path) -> None:
    """Remove the files that an evaluation wrote; files that a user added stay."""
    for name in _facts_of(folder).get("files", ()):
        if isinstance(name, str) and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def listed(run: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the evaluations in the folder of a run or an experiment, the oldest first, each with its facts.

    Those of older runners have no facts. The runs of an experiment, which have scores too, are left out.
    """
    folders = [path.parent for path in run.glob("*/scores.json") if not path.parent.name.startswith(".")]
    found = [(folder, _facts_of(folder)) for folder in folders if not RunFolder(folder).config_file.is_file()]
    return sorted(found, key=lambda entry: (str(entry[1].get("date", "")), entry[0].name))


def title(folder: Path, found: Mapping[str, Any]) -> str:
    """Return the heading of an evaluation."""
    return f"Evaluation: {found['split']} of {found['data']}, {found['date']}" if found else folder.name


def described(folder: Path, found: Mapping[str, Any]) -> Sequence[str]:
    """Return lines that describe the data, the checkpoint and the settings of an evaluation."""
    if not found:
        return ["An older runner made this evaluation: it does not say of which data and settings."]
    lines = [f"{counted(found['records'], 'record')} with {found['checkpoint']}, in {folder.name}"]
    settings = [f"{name} {value['evaluation']} (the run: {value['run']})" for name, value in found["settings"].items()]
    return lines + ([f"Settings unlike the run's: {', '.join(settings)}"] if settings else [])


def trained_on_text(trained_on: Sequence[bool]) -> str:
    """Return a sentence with the number of scored records that were trained on; "" if there are none.

    `trained_on` says for each record whether it was.
    """
    count, records = sum(trained_on), len(trained_on)
    if not count:
        return ""
    if records == 1:
        return "1 of 1 record (or another of its group) was trained on"
    return f"{count} of these {records} records (or others of their groups) were trained on"


def _facts_of(folder: Path) -> dict[str, Any]:
    return read_json(folder / FACTS_FILE, _facts, "remove the folder, and evaluate again") or {}


_KINDS = {"date": str, "data": str, "split": str, "checkpoint": str, "records": int, "settings": dict, "key": str}


def _facts(found: Any) -> dict[str, Any] | None:
    """Return the facts as they are, or None if one is missing or of another kind."""
    right = all(isinstance(found[name], kind) for name, kind in _KINDS.items())
    right = right and isinstance(found.get("files", []), list)
    right = right and all({"run", "evaluation"} <= value.keys() for value in found["settings"].values())
    return dict(found) if right else None


_PREFIX = ".runner-writing-"

Write = Callable[[Path], Sequence[Path]]
"""Writes files into a folder, and returns them."""


def write_whole(out: Path, write: Write) -> list[Path]:
    """Return the files that `write` wrote, in `out`, with the sub-folders that it made.

    After an error none of them exists. A full disk raises OSError with its own message, even if the writer wrapped it.
    """
    with _folder(out) as temporary:
        try:
            written = write(temporary)
            files = sorted(path for path in temporary.rglob("*") if not path.is_dir())
            for file in files:
                flush(file)  # a file that does not fit is not moved over an older one
        except Exception as error:
            if full := full_disk(error):
                raise OSError(full.errno, full.strerror, str(out)) from error
            if isinstance(error, BadInput):  # name the file as the user knows it
                error.args = (str(error).replace(str(temporary), str(out)),)
            raise
        for file in files:
            place = out / file.relative_to(temporary)
            make_folder(place.parent)
            os.replace(file, place)
        for folder in {(out / file.relative_to(temporary)).parent for file in files}:
            flush(folder)
        return [_moved(path, temporary, out) for path in written]


def remove_leftovers(out: Path) -> None:
    """Remove the half-written folders of killed processes in `out`.

    Processes that run hold a lock. Other machines may not see it, or the disk may have none: then a folder stays unless
    its process was on this machine and is gone, or nobody has touched it for a day.
    """
    for folder in out.glob(f"{_PREFIX}*"):
        with suppress(OSError), _open(folder) as descriptor:
            if _is_dead(folder, descriptor):
                shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path, descriptor: int) -> bool:
    host, _, rest = folder.name.removeprefix(_PREFIX).partition("-")
    here = host == host_word()
    try:
        lock(descriptor, wait=False)
    except BlockingIOError:
        return False
    except OSError as error:
        if not has_no_locks(error):
            raise
        import psutil

        pid = rest.partition("-")[0]
        here = here and pid.isdigit() and not psutil.pid_exists(int(pid))
    return here or untouched(folder, LONG_AGO)


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Yield a new hidden folder in `out`, so on the same disk, locked by this process; remove it afterwards."""
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{host_word()}-{os.getpid()}-", dir=out))
    except OSError as error:
        error.filename = str(out)  # the name that the user knows
        raise
    try:
        with _open(temporary) as descriptor:
            with suppress(OSError):  # a network file system may have no locks
                lock(descriptor, wait=False)
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _moved(path: Path, temporary: Path, out: Path) -> Path:
    for base in (temporary, temporary.resolve()):
        if path.is_relative_to(base):
            return out / path.relative_to(base)
    return path
