"""Topology-aware detection of papyrus surfaces in scroll CT, as a project for runner."""

from __future__ import annotations

from runner_core import hookimpl


@hookimpl
def runner_project() -> type:
    from runner_vesuvius.project import Vesuvius

    return Vesuvius
