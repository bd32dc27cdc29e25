"""runner_core: hooks, engines and command line that train scientific-imaging projects.

What a project or an extension needs is importable from here; nothing below imports a framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner_core._errors import BadInput as BadInput
    from runner_core._errors import DataErrors as DataErrors
    from runner_core._errors import OutOfSpace as OutOfSpace
    from runner_core._errors import RunnerError as RunnerError
    from runner_core._errors import Unhealthy as Unhealthy
    from runner_core._files import walk as walk
    from runner_core.config import RunConfig as RunConfig
    from runner_core.hookspecs import hookimpl as hookimpl
    from runner_core.project import Annotation as Annotation
    from runner_core.project import Decoded as Decoded
    from runner_core.project import Judgement as Judgement
    from runner_core.project import Original as Original
    from runner_core.project import Predicted as Predicted
    from runner_core.project import Prepared as Prepared
    from runner_core.project import Project as Project
    from runner_core.project import Record as Record
    from runner_core.project import Statistics as Statistics
    from runner_core.project import Table as Table
    from runner_core.protocols import Box as Box
    from runner_core.protocols import Cost as Cost
    from runner_core.protocols import Finding as Finding
    from runner_core.protocols import Fix as Fix
    from runner_core.protocols import HealthEvent as HealthEvent
    from runner_core.protocols import Optimisation as Optimisation
    from runner_core.protocols import Precision as Precision
    from runner_core.protocols import Progress as Progress
    from runner_core.protocols import SampleSpec as SampleSpec
    from runner_core.protocols import Step as Step
    from runner_core.samples import PatchSamples as PatchSamples
    from runner_core.samples import RowSamples as RowSamples
    from runner_core.samples import TileSamples as TileSamples

_HOME = {
    "BadInput": "_errors",
    "DataErrors": "_errors",
    "OutOfSpace": "_errors",
    "RunnerError": "_errors",
    "Unhealthy": "_errors",
    "RunConfig": "config",
    "hookimpl": "hookspecs",
    "Annotation": "project",
    "Decoded": "project",
    "Judgement": "project",
    "Original": "project",
    "Predicted": "project",
    "Prepared": "project",
    "Project": "project",
    "Record": "project",
    "Statistics": "project",
    "Table": "project",
    "Box": "protocols",
    "Cost": "protocols",
    "Finding": "protocols",
    "Fix": "protocols",
    "HealthEvent": "protocols",
    "Optimisation": "protocols",
    "Precision": "protocols",
    "Progress": "protocols",
    "SampleSpec": "protocols",
    "Step": "protocols",
    "PatchSamples": "samples",
    "RowSamples": "samples",
    "TileSamples": "samples",
    "walk": "_files",
}
__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    # Lazy, so that `runner --help` (which imports this package) pays for nothing it does not use.
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
