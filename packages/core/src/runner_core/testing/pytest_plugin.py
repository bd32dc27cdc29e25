"""The runner's pytest plugin: `--check-project NAME`, and fixtures for `runner_core.testing.ProjectContract`.

It is loaded in every pytest session of an environment with runner-core, so it imports nothing before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("runner").addoption(
        "--check-project",
        action="append",
        default=[],
        metavar="NAME",
        help="test that this installed project keeps runner's contract (repeatable); without paths, only that",
    )


_NOT_THE_AUTHORS = (
    # Keras copies each tensor of TensorFlow to NumPy 2 in a way that TensorFlow does not know yet: hundreds of times
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning:keras.src.backend.tensorflow.core",
)
"""Warnings that no author of a project can mend, as pytest's filters."""


def pytest_configure(config: pytest.Config) -> None:
    for line in _NOT_THE_AUTHORS:
        config.addinivalue_line("filterwarnings", line)
    if not config.getoption("check_project"):
        return
    _refuse_unusable(config.getoption("check_project"))
    contract = str(Path(__file__).with_name("installed.py"))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()  # drop the working folder or `testpaths`, which were not requested
    if contract not in config.args:
        config.args.append(contract)


def _refuse_unusable(projects: Sequence[str]) -> None:
    """Raise a usage error for a project that is missing or cannot be loaded; every check would only repeat it."""
    from runner_core.base.errors import RunnerError
    from runner_core.plugins import discovery
    from runner_core.plugins.manager import Plugins

    for name in projects:
        try:
            Plugins.load(name, without=tuple(discovery.extensions())).project()
        except RunnerError as error:
            raise pytest.UsageError(f"--check-project {name}: {error}") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "contract_check" in metafunc.fixturenames:
        from runner_core.testing import CHECKS

        metafunc.parametrize("contract_check", CHECKS, ids=[check.__name__ for check in CHECKS])


@pytest.fixture(scope="class")
def contract_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make the case of the project from `--check-project`, or from the attribute `project` of the test's class."""
    from runner_core.testing.case import Case

    name = getattr(request, "param", None) or request.cls.project
    return Case(name, tmp_path_factory.mktemp(name))
