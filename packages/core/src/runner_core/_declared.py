"""What the runner relies on in a project's class: refused as it is loaded, before anything is built with it."""

from __future__ import annotations

from typing import Any

from runner_core._errors import BadInput
from runner_core.project import Project

_VALUES = ("name", "framework", "Config", "presets")
_METHODS = ("records", "decode", "prepare", "samples", "model", "step", "phantom")
"""Those without a default: `Project`'s own do nothing."""
_PRESETS = ("default", "demo")


def refuse_incomplete(cls: type[Any]) -> None:
    """Raises BadInput that names the project, all that it lacks, and a `monitor` by which nothing can be chosen."""
    name = getattr(cls, "name", cls.__name__)
    missing = [value for value in _VALUES if not hasattr(cls, value)]
    missing += [f"{method}()" for method in _METHODS if getattr(cls, method, None) in (None, getattr(Project, method))]
    if missing:
        raise BadInput(f"project {name}: its class {cls.__name__} lacks {', '.join(missing)}, which have no default")
    if presets := [preset for preset in _PRESETS if preset not in cls.presets]:
        raise BadInput(f"project {name} lacks the preset {' and '.join(presets)}")
    if cls.framework == "keras" and getattr(cls, "adjust", Project.adjust) is not Project.adjust:
        raise BadInput(f"project {name}: `adjust` is for PyTorch; in Keras an optimizer takes schedules: leave it out")
    match cls.monitor:
        case (str(), "max" | "min"):
            return
    raise BadInput(
        f'project {name}: monitor must be a validation metric and "max" or "min", as in ("dice", "max"), '
        f"not {cls.monitor!r}"
    )
