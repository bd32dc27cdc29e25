"""dinocell keeps the contract that runner tests for any project."""

from __future__ import annotations

from runner_core.testing import ProjectContract


class TestContract(ProjectContract):
    project = "dinocell"
