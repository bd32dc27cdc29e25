"""Skull stripping of T1 MRI, as a project for runner."""

from __future__ import annotations

from runner_core import hookimpl


@hookimpl
def runner_project() -> type:
    from runner_brainunet.project import BrainUNet

    return BrainUNet
