"""What is said when something unexpected happens: one message for the user, the traceback into a file."""

from __future__ import annotations

import sysconfig
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

from runner_core import discovery
from runner_core._errors import BadInput

TRACEBACK_FILE = "__runner_traceback__"
"""Attribute of an exception: the file its traceback was saved to already."""


def save_traceback(error: BaseException, log: Path) -> None:
    """Append the traceback to `log`, once, and remember where it is."""
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    setattr(error, TRACEBACK_FILE, log)


def describe(error: BaseException) -> str:
    """One message, with the place in a project's code where there is one; the traceback goes into a temporary file
    where no run folder has it, and into the message where nothing can be written at all."""
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


def place_of(error: BaseException) -> str | None:
    """File, line and function of the innermost frame in the code of a project or an extension; None: there is none."""
    plugins = _plugins()
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = Path(frame.f_code.co_filename)
        if package in plugins or not (package in ("runner_core", "__main__") or _others(file)):
            place = f"{file.parent.name}/{file.name}, line {line}, `{frame.f_code.co_name}`"
    return place


def _plugins() -> set[str]:
    """The packages that hold projects and extensions."""
    with suppress(BadInput):  # of plugins that stand in each other's way: said by the command itself
        found = (*discovery.projects().values(), *discovery.extensions().values())
        return {plugin.entry.module.partition(".")[0] for plugin in found}
    return set()


def _others(file: Path) -> bool:
    """Is this a file of Python, or of a package that was installed?"""
    paths = sysconfig.get_paths()
    return not file.exists() or any(file.is_relative_to(paths[of]) for of in ("stdlib", "purelib", "platlib"))
