"""runner_core: hooks, engines and command line that train scientific-imaging projects.

Projects and extensions import from here (and from `runner_core.testing`) only. `__init__.pyi` lists every name and the
module it comes from; a name is imported when it is first used, so importing this package costs nothing.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_RENAMED = {
    "Fix": "Remedy(name, settings, why)",
    "Optimisation": "Remedy(name, off=SETTINGS, part=PART, why=SENTENCE)",
    "Cost": "Step(loss, terms, prediction), without costs",
    "measured": "term()",
}
"""Public names before 0.1.0, and what to write now."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:  # Python would hide the text of an AttributeError
        raise ImportError(f"`{name}` is gone from runner_core: write `{_RENAMED[name]}`")
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("_") or name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_modules()[name])
    found = getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_modules()])


@cache
def _modules() -> dict[str, str]:
    """Return the module that each public name comes from."""
    table = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", table, re.MULTILINE)}
