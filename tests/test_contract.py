"""Every project of this repository keeps the contract that `check_project` tests for anyone."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_core.testing import check_project
from workspace import ROOT

PROJECTS = sorted(p.parent.name for p in ROOT.glob("packages/*/pyproject.toml") if p.parent.name != "core")


@pytest.mark.parametrize("name", PROJECTS)
def test_contract(name: str, tmp_path: Path) -> None:
    check_project(name, tmp_path)
