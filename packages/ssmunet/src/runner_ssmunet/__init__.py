"""Hyperspectral infrared tissue segmentation, as a project for runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner_core import hookimpl

if TYPE_CHECKING:
    from runner_core import HealthRule

    from runner_ssmunet.config import SSMConfig
    from runner_ssmunet.project import SSMUNet


@hookimpl
def runner_project() -> type:
    from runner_ssmunet.project import SSMUNet

    return SSMUNet


@hookimpl
def runner_health(project: SSMUNet, config: SSMConfig) -> Sequence[HealthRule]:
    from runner_ssmunet.health import rules

    return rules(project, config)
