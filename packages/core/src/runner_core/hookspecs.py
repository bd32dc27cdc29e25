"""The hooks: factories only; nothing per step goes through pluggy.

A plugin is a module (or object) with functions of these names, each marked with `@hookimpl`, named by an entry
point: `runner.projects` for a project (only the chosen project's plugin is loaded), `runner.extensions` for one
that replaces or adds a capability for every project. Order: extensions before the project before the core; for
the hooks marked *first result*, the first that returns something other than None provides the capability, and two
extensions that both do so are refused until `--extension NAME` chooses.

    from runner_core import hookimpl

    @hookimpl
    def runner_sinks(project, config):
        return [MySink()]

An implementation may leave out arguments that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.project import Project
    from runner_core.protocols import (
        Cache,
        CheckpointFormat,
        Cropper,
        Device,
        Engine,
        HealthRule,
        Metric,
        Precision,
        Sink,
    )

hookspec = pluggy.HookspecMarker("runner")
hookimpl = pluggy.HookimplMarker("runner")


@hookspec(firstresult=True)
def runner_project() -> type[Project]:
    """The project's class. Only a project's plugin implements it; the core calls it with the resolved config."""
    raise AssertionError


@hookspec(firstresult=True)
def runner_engine(project: Project, config: RunConfig) -> Engine | None:
    """The engine that trains it (*first result*). Core: torch or keras, as `project.framework` says."""


@hookspec(firstresult=True)
def runner_cache(project: Project, config: RunConfig) -> Cache | None:
    """Where prepared arrays are kept (*first result*). Core: `config.cache.mode`."""


@hookspec(firstresult=True)
def runner_crop(project: Project, config: RunConfig) -> Cropper | None:
    """The cropper applied between decode and prepare (*first result*). Core: `config.crop.mode`."""


@hookspec(firstresult=True)
def runner_precision(project: Project, config: RunConfig, device: Device) -> Precision | None:
    """The precision policy, a value that the engine applies (*first result*). Core: `config.precision.mode`."""


@hookspec(firstresult=True)
def runner_checkpoint(project: Project, config: RunConfig) -> CheckpointFormat | None:
    """What is written into a checkpoint's folder (*first result*). Core: safetensors and JSON (torch)."""


@hookspec
def runner_metrics(project: Project, config: RunConfig) -> Sequence[Metric]:
    """Validation metrics, *all* of them together. Core: the project's own."""
    return ()


@hookspec
def runner_health(project: Project, config: RunConfig) -> Sequence[HealthRule]:
    """Rules that watch the run, *all*. Core: constant prediction; precision not what was asked."""
    return ()


@hookspec
def runner_sinks(project: Project, config: RunConfig, folder: Path) -> Sequence[Sink]:
    """Trackers, *all*. Core: log.jsonl and train.log always; TensorBoard when `log.tensorboard`."""
    return ()


@hookspec
def runner_fixes(project: Project, report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Remedies that `tune` may try, *all*: settings that might make this run faster, given its profile."""
    return ()
