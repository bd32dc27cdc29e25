"""Everything that decides a training, as JSON, so that a child process trains exactly as its parent would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner_core.base.location import location
from runner_core.config.values import overlay, overlay_named
from runner_core.contract import Json
from runner_core.contract.setup import Setup
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset, refuse_secret_settings


@dataclass(frozen=True)
class TrainingSpec:
    """A project, its data and its settings.

    Attributes:
        source: The data; None is the built-in phantom.
        settings: The resolved settings, by section.
        extensions: Extensions chosen where several provide a capability.
        without: Extensions that are switched off.
    """

    project: str
    preset: str
    source: str | None
    settings: Mapping[str, Json]
    extensions: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainingSpec:
        """Make a spec from the JSON of `asdict`."""
        return cls(**{**value, "extensions": tuple(value["extensions"]), "without": tuple(value["without"])})

    @classmethod
    def loads(cls, text: str) -> TrainingSpec:
        """Read what `dumps` wrote."""
        return cls.from_json(json.loads(text))

    def dumps(self) -> str:
        """Return the spec as JSON text."""
        return json.dumps(asdict(self))

    def setup(self, settings: Mapping[str, Json] | None = None) -> Setup:
        """Load the project with these settings, and `settings` (by dotted name) over them. Raises BadInput."""
        plugins = Plugins.load(self.project, self.extensions, self.without)
        project = plugins.project()
        config = overlay(from_preset(project, self.preset), self.settings, "the settings")
        config = overlay_named(config, settings or {}, "the settings that are tried")
        refuse_secret_settings(config)
        source = None if self.source is None else location(self.source)
        return Setup(project(config), config, self.preset, source, plugins)
