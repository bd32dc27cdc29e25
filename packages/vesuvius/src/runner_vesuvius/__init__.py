"""Topology-aware detection of papyrus surfaces in scroll CT, as a project for runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner_core import hookimpl

if TYPE_CHECKING:
    from runner_core import AnyRecord, Cache, HealthRule

    from runner_vesuvius.config import ScrollConfig


@hookimpl
def runner_project() -> type:
    from runner_vesuvius.project import Vesuvius

    return Vesuvius


@hookimpl
def runner_cache(config: ScrollConfig, records: Sequence[AnyRecord]) -> Cache | None:
    from runner_vesuvius.lazy import cache_for

    return cache_for(config, records)


@hookimpl
def runner_health(config: ScrollConfig) -> Sequence[HealthRule]:
    from runner_vesuvius.health import rules

    return rules(config)
