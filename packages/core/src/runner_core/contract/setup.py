"""A project with its settings, capabilities and data, as engines and commands get it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from runner_core.base.location import Location
from runner_core.config import RunConfig
from runner_core.contract.data import Cache, CachePlan, Cropper, Samples, Store
from runner_core.contract.engines import Engine
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Statistics
from runner_core.contract.run import CheckpointFormat, Device, HealthRule, Metric, Precision, Sink
from runner_core.contract.team import ALONE, Team
from runner_core.contract.values import Json


class Hooks(Protocol):
    """The loaded plugins; a hook is called by its name, with all its arguments in hooks.py."""

    @property
    def versions(self) -> dict[str, str]:
        """Distribution and version of each plugin, by its label."""
        ...

    @property
    def names(self) -> list[str]:
        """Labels of the plugins, the weakest first."""
        ...

    def provides(self) -> dict[str, list[str]]:
        """Return the hooks that each plugin implements, by its label."""
        ...

    def first(self, hook: str, **arguments: Any) -> Any:
        """Return the strongest plugin's answer to the hook."""
        ...

    def all(self, hook: str, **arguments: Any) -> list[Any]:
        """Return the answers of all plugins in one list."""
        ...


@dataclass
class Setup:
    """A project, its settings and its capabilities.

    The hooks make each capability on first use, so that `config` and `check` never import a framework.
    """

    project: Project
    config: RunConfig
    preset: str
    source: Location | None
    """The user's data; None means the built-in phantom."""
    plugins: Hooks
    team: Team = ALONE
    """The processes that train together; a team of one in every other command."""

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

    def cache(self, records: Sequence[AnyRecord]) -> Cache:
        """Return the cache that suits these records."""
        return self.plugins.first("runner_cache", project=self.project, config=self.config, records=records)

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
    """Records, their split and their prepared arrays.

    `splits` maps train, validation and test to record numbers in the store. `statistics` is the result of the project's
    `fit` on the training records.
    """

    records: Sequence[AnyRecord]
    splits: dict[str, list[int]]
    store: Store
    statistics: Statistics = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    """Samples of each split, made by `training.assembly` before the engine's trainer."""
    plan: CachePlan | None = None
    """Size of the records' cache; None if it was not planned."""
    sketched: bool = False
    """True if one record in `store` stands for all (`training.memory.sketch`)."""
    validated: list[int] | None = None
    """The validation records that validations and the final scoring use (`validate.records`); None means all."""

    def used(self, split: str) -> list[int]:
        """Return the record numbers of a split that training, validation and final scoring use."""
        if split == "validation" and self.validated is not None:
            return self.validated
        return self.splits.get(split, [])

    def described_split(self) -> dict[str, dict[str, Json]]:
        """Return how many records and groups each split has, its share of all, and how many of them are used."""
        return {
            split: {
                "records": len(numbers),
                "groups": len({self.records[n].group for n in numbers}),
                "share": len(numbers) / len(self.records),
                "used": len(self.used(split)),
            }
            for split, numbers in self.splits.items()
            if numbers
        }
