"""DINOv2 pretraining on multi-channel microscopy, as a project for runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner_core import hookimpl

if TYPE_CHECKING:
    from runner_core import HealthRule

    from runner_dinocell.config import CellConfig


@hookimpl
def runner_project() -> type:
    from runner_dinocell.project import DinoCell

    return DinoCell


@hookimpl
def runner_health(config: CellConfig) -> Sequence[HealthRule]:
    from runner_dinocell.health import rules

    return rules(config)
