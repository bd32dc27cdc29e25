"""Hyperspectral infrared tissue segmentation, as a project for runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner_core import hookimpl

if TYPE_CHECKING:
    from runner_core.project import Project
    from runner_core.protocols import HealthRule

    from runner_ssmunet.config import SSMConfig


@hookimpl
def runner_project() -> type:
    from runner_ssmunet.project import SSMUNet

    return SSMUNet


@hookimpl
def runner_health(project: Project, config: SSMConfig) -> Sequence[HealthRule]:
    from runner_ssmunet.health import NoBaseline, UnannotatedLearned

    rule = UnannotatedLearned(project, config.data.classes, config.data.ignore)
    return [rule] if config.model.features is None else [rule, NoBaseline()]
