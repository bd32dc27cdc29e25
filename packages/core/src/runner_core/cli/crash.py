"""What is said when something unexpected happens: one line for the user, the traceback into a file."""

from __future__ import annotations

import tempfile
import time
import traceback
from pathlib import Path

TRACEBACK_FILE = "__runner_traceback__"
"""Attribute of an exception: the file its traceback was saved to already."""


def save_traceback(error: BaseException, log: Path) -> None:
    """Append the traceback to `log`, once, and remember where it is."""
    with log.open("a", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    setattr(error, TRACEBACK_FILE, log)


def describe(error: BaseException) -> str:
    """One message; the traceback goes into a temporary file where no run folder has it, and into the message where
    nothing can be written at all."""
    what = f"unexpected {type(error).__name__}: {str(error) or 'no message'}"
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
