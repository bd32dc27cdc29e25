"""How the user called `runner`, for commands in messages that are pasted into the same terminal."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import entry_points
from pathlib import Path

_NAME = "runner"


def runner() -> str:
    """Return the words that call runner again: `runner`, `.venv/bin/runner`, or `uv run` with its options."""
    if words := _uv_run():
        return shlex.join(words)
    called = sys.argv[0]
    if os.path.basename(called) != _NAME or os.sep not in called or _is_on_path(called):
        return _NAME
    return shlex.quote(called)


def with_extra(extra: str, project: str) -> str:
    """Return the package to install for an extra of the core: the project's own, if it passes the extra on."""
    for entry in entry_points(group="runner.projects", name=project):
        if entry.dist is not None and extra in (entry.dist.metadata.get_all("Provides-Extra") or ()):
            return f"{entry.dist.name}[{extra}]"
    return f"runner-core[{extra}]"


def _uv_run() -> list[str]:
    """Return `uv run … runner` as it was typed, or nothing if uv did not start this process."""
    if "UV_RUN_RECURSION_DEPTH" not in os.environ:
        return []
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    except (OSError, UnicodeDecodeError):
        return []
    arguments = sys.argv[1:]
    before = words[: len(words) - len(arguments)]
    if [*before, *arguments] != words or before[1:2] != ["run"] or os.path.basename(before[-1]) != _NAME:
        return []
    return ["uv", *before[1:]]


def _is_on_path(called: str) -> bool:
    files = (os.path.join(folder, _NAME) for folder in os.get_exec_path())
    found = next((file for file in files if os.access(file, os.X_OK)), None)
    return found is not None and os.path.samefile(found, called)
