"""The word by which the user called `runner`, for commands in messages that are pasted into the same terminal."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib.metadata import requires
from pathlib import Path

_NAME = "runner"
CALLED = "RUNNER_CALLED"
"""Environment variable in which a process tells those that it starts how the user called runner."""


def runner() -> str:
    """Return the words that call runner again: `runner`, `.venv/bin/runner`, or `uv run` with its options."""
    if told := os.environ.get(CALLED):
        return told
    if words := _uv_run():
        return shlex.join(words)
    called = sys.argv[0]
    if os.path.basename(called) != _NAME or os.sep not in called or _is_on_path(called):
        return _NAME
    return shlex.quote(called)


def adds_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra of the core, wherever the core came from.

    It names those packages alone, so that uv and pip leave the frameworks as they are.
    """
    packages = (text.partition(";") for text in requires("runner-core") or ())
    wanted = [package.strip() for package, _, marker in packages if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return f"uv pip install {shlex.join(wanted)}"


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
