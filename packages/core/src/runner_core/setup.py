"""A project with its settings and its capabilities, chosen once: what every command starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runner_core.config import RunConfig
from runner_core.location import Location
from runner_core.pipeline import RecordPipeline
from runner_core.project import AnyRecord, Project, Statistics
from runner_core.protocols import (
    Cache,
    CachePlan,
    CheckpointFormat,
    Cropper,
    Device,
    Engine,
    HealthRule,
    Metric,
    Precision,
    Samples,
    Sink,
    Store,
)
from runner_core.team import ALONE, Team

if TYPE_CHECKING:
    from runner_core.plugins import Plugins


@dataclass
class Setup:
    """Capabilities are made by the hooks on first use, so that `config` or `check` never import a framework."""

    project: Project
    config: RunConfig
    preset: str
    source: Location | None
    """The data the user named; None: the built-in phantom."""
    plugins: Plugins
    team: Team = ALONE
    """The processes that train together; the one alone in every other command."""

    @property
    def name(self) -> str:
        return self.project.name

    @cached_property
    def engine(self) -> Engine:
        return self.plugins.first("runner_engine", project=self.project, config=self.config)

    @cached_property
    def device(self) -> Device:
        return self.engine.device()

    @cached_property
    def precision(self) -> Precision:
        return self.plugins.first("runner_precision", project=self.project, config=self.config, device=self.device)

    @cached_property
    def cropper(self) -> Cropper:
        return self.plugins.first("runner_crop", project=self.project, config=self.config)

    @cached_property
    def pipeline(self) -> RecordPipeline:
        return RecordPipeline(self.project, self.cropper)

    @cached_property
    def cache(self) -> Cache:
        return self.plugins.first("runner_cache", project=self.project, config=self.config)

    @cached_property
    def checkpoint_format(self) -> CheckpointFormat:
        return self.plugins.first("runner_checkpoint", project=self.project, config=self.config)

    def metrics(self) -> list[Metric]:
        return self.plugins.all("runner_metrics", project=self.project, config=self.config)

    def health_rules(self) -> list[HealthRule]:
        return self.plugins.all("runner_health", project=self.project, config=self.config)

    def sinks(self, folder: Path) -> list[Sink]:
        return self.plugins.all("runner_sinks", project=self.project, config=self.config, folder=folder)


@dataclass
class Data:
    """Records, their split and their prepared arrays. `splits` maps train, validation, test to record numbers in
    the store; `statistics` is what the project's `fit` learned from the training records."""

    records: Sequence[AnyRecord]
    splits: dict[str, list[int]]
    store: Store
    statistics: Statistics = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    """Samples of each split, made by `training.train` before the engine's trainer."""
    plan: CachePlan | None = None
    """What the cache of the records takes; None where nobody planned it."""
    sketched: bool = False
    """Does one record in `store` stand for all (`memory.sketch`)?"""
