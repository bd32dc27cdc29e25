"""Tests that `pytest --check-project NAME` collects: the contract of each named project."""

from __future__ import annotations

from typing import Any

from runner_core.testing.contract import ProjectContract


def pytest_generate_tests(metafunc: Any) -> None:
    names = metafunc.config.getoption("check_project")
    metafunc.parametrize("contract_case", names, indirect=True, scope="class")


class TestInstalled(ProjectContract):
    pass
