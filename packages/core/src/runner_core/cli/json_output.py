"""`--json`: the result of a command as one JSON document on stdout; whatever else is printed goes to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from runner_core.base.writing import json_text

_STDOUT, _STDERR = 1, 2
_descriptor = ContextVar("descriptor", default=_STDOUT)
"""Where `show_json` writes."""


@contextmanager
def stdout_for_json() -> Iterator[None]:
    """Leave stdout to `show_json`: what the command and its processes print goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    token = _descriptor.set(kept)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
        _descriptor.reset(token)


def show_json(value: Any) -> None:
    """Print a result."""
    with open(_descriptor.get(), "w", encoding="utf-8", errors="backslashreplace", closefd=False) as out:
        out.write(json_text(value) + "\n")


def written_result(file: Path) -> dict[str, Any]:
    """Return a result that the command has written into its folder."""
    return dict(json.loads(file.read_text(encoding="utf-8")))
