"""Radiotherapy dose prediction (OpenKBP), as a project for runner."""

from __future__ import annotations

from runner_core import hookimpl


@hookimpl
def runner_project() -> type:
    from runner_openkbp.project import OpenKBP

    return OpenKBP
