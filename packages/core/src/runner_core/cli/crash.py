"""Reports of unexpected errors: one message for the user, the traceback into a file."""

from __future__ import annotations

import tempfile
import time
import traceback
from pathlib import Path

from runner_core.base.secrets import without_secrets
from runner_core.plugins.discovery import place_of

TRACEBACK_FILE = "__runner_traceback__"
"""Attribute of an exception: the file that already holds its traceback."""


def save_traceback(error: BaseException, log: Path) -> None:
    """Append the traceback to `log`, and remember that file in the exception."""
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(without_secrets("".join(traceback.format_exception(error))))
    setattr(error, TRACEBACK_FILE, log)


def describe(error: BaseException) -> str:
    """Return one message, which names the place in a project's code if there is one.

    The traceback goes into a temporary file if no run folder has it, and into the message if no file can be written.
    """
    what = f"unexpected {type(error).__name__}: {str(error) or 'no message'}"
    if place := place_of(error):
        what = f"{what}\nin {place}, which is not runner's own code"
    try:
        if not hasattr(error, TRACEBACK_FILE):
            name = f"runner-error-{time.strftime('%Y%m%d-%H%M%S')}-"
            with tempfile.NamedTemporaryFile("w", prefix=name, suffix=".log", delete=False) as file:
                log = Path(file.name)
            save_traceback(error, log)
    except OSError as unwritable:
        trace = "".join(traceback.format_exception(error))
        return f"{what}\nthe traceback cannot be saved ({unwritable}); here it is\n{trace}"
    return f"{what}\nthe traceback is in {getattr(error, TRACEBACK_FILE)} (--debug shows it here)"
