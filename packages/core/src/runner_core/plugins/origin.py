"""Finds the project or extension that an error comes from."""

from __future__ import annotations

import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.plugins import discovery


def place_of(error: BaseException) -> str | None:
    """Return file, line and function of the innermost frame in a project's or an extension's code; None without one."""
    plugins = _plugins()
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = Path(frame.f_code.co_filename)
        if package in plugins or not (package in ("runner_core", "__main__") or _others(file)):
            place = f"{file.parent.name}/{file.name}, line {line}, `{frame.f_code.co_name}`"
    return place


def _plugins() -> set[str]:
    """Return the packages that hold projects and extensions."""
    with suppress(BadInput):  # plugins in conflict: the command itself reports them
        found = (*discovery.projects().values(), *discovery.extensions().values())
        return {plugin.entry.module.partition(".")[0] for plugin in found}
    return set()


def _others(file: Path) -> bool:
    """Return whether this file belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    return not file.exists() or any(file.is_relative_to(paths[of]) for of in ("stdlib", "purelib", "platlib"))
