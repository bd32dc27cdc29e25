"""The folders of a run's evaluations: one for each (data, split, checkpoint, settings), with a name and a date.

evaluation-SPLIT-DATA-TIME/
  evaluation.json   data, split, checkpoint and settings, and the time
  scores.csv, scores.json, pictures
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.base.writing import replace_json, whole_folder
from runner_core.data.cache.identity import digest_json
from runner_core.output.pictures import file_name
from runner_core.output.runfolder import free_path

FACTS_FILE = "evaluation.json"
_FREE_SECTIONS = ("cache", "remote", "log")
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
        if name.partition(".")[0] not in _FREE_SECTIONS
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
        raise BadInput(f"{run}: cannot write here: {error.strerror}; name another folder with --out") from error
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
    """Return the evaluations of a run, the oldest first, each with its facts; those of older runners have none."""
    folders = [path.parent for path in run.glob("*/scores.json") if not path.parent.name.startswith(".")]
    found = [(folder, _facts_of(folder)) for folder in folders]
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
    path = folder / FACTS_FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kinds = {
            "date": str,
            "data": str,
            "split": str,
            "checkpoint": str,
            "records": int,
            "settings": dict,
            "key": str,
        }
        right = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
        right = right and isinstance(found.get("files", []), list)
        if right and all(isinstance(v, dict) and {"run", "evaluation"} <= v.keys() for v in found["settings"].values()):
            return dict(found)
    except (OSError, ValueError, RecursionError):
        pass
    raise BadInput(f"{path} is damaged: remove the folder, and evaluate again")
