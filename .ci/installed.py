"""Checks of an environment with one package of this repository: .ci/run runs them in every fresh one.

It finds the package by itself, and needs nothing of the repository.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from runner_core.plugins import discovery

MINE = sorted(d.name for d in importlib.metadata.distributions() if d.name.startswith("runner-"))
PROJECTS, EXTENSIONS = sorted(discovery.projects()), sorted(discovery.extensions())
FRAMEWORKS = {"torch": "torch", "keras": "tensorflow"}
"""The module that a project's framework brings, by the framework's name."""
WHEELS = os.environ.get("RUNNER_CI_WHEELS") == "1"
FEW = "--train.epochs 1 --train.steps-per-epoch 5 --health.mode warn".split()
BIN = Path(sys.executable).parent


def run(*words: str | Path, cwd: Path, **more: str) -> str:
    env = {**os.environ, "XDG_CACHE_HOME": str(cwd / "cache"), "COLUMNS": "200", **more}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_one_package_with_one_framework() -> None:
    assert set(MINE) == {"runner-core", *(f"runner-{name}" for name in (*PROJECTS, *EXTENSIONS))}
    assert len(MINE) <= 2
    present = [name for name, module in FRAMEWORKS.items() if find_spec(module)]
    assert len(present) == 1
    for plugin in discovery.projects().values():
        assert [plugin.entry.load().runner_project().framework] == present


def test_nothing_comes_from_a_checkout(tmp_path: Path) -> None:
    if not WHEELS:
        pytest.skip("installed from the checkout, editable")
    code = "import importlib, sys; print(*[importlib.import_module(n).__file__ for n in sys.argv[1:]], sep='\\n')"
    files = run(sys.executable, "-P", "-c", code, *(n.replace("-", "_") for n in MINE), cwd=tmp_path)
    assert all(Path(file).is_relative_to(sys.prefix) for file in files.split("\n") if file)


def test_list_and_doctor_know_it(tmp_path: Path) -> None:
    listed, examined = run(BIN / "runner", "list", cwd=tmp_path), run(BIN / "runner", "doctor", cwd=tmp_path)
    for name in (*PROJECTS, *EXTENSIONS):
        assert name in listed
        assert f"runner-{name}" in examined


@pytest.mark.parametrize("project", PROJECTS)
def test_it_trains(project: str, tmp_path: Path) -> None:
    run(BIN / "runner", project, "train", "--run-dir", "run", *FEW, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"
