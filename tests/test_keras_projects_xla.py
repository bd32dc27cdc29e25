"""Each Keras network's step compiled by XLA, as on a GPU by default, against TensorFlow's own kernels.

The networks are openkbp's and those that `runner new` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from runner_core.cli.new import TASKS, write_project
from runner_core.testing.case import Case
from runner_core.training.assembly import assemble
from runner_core.training.kernels.check import verify

pytest.importorskip("tensorflow")
STEPS = 4
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.02}
"""Largest difference of two losses, as a share of the first."""


def losses(case: Case, compiled: str, precision: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Losses of the demo's first steps, without random numbers on the device: XLA has its own."""
    config = case.setup.config
    config.train.compile, config.train.steps_per_epoch = compiled, STEPS
    config.train.deterministic = False
    config.precision.mode = precision
    if hasattr(config.model, "dropout"):
        config.model.dropout = 0.0
    plain = case.kind.on_device
    with monkeypatch.context() as patched:
        patched.setattr(case.kind, "on_device", lambda self, batch, known, rng: plain(self, batch, known, None))
        parts = assemble(case.setup, case.data, folder, print, plans=False)
        try:
            for step, batch in enumerate(parts.loaders.training.batches(0)):
                parts.trainer.train_step(batch, step)
            return parts.trainer.losses()
        finally:
            parts.loaders.close()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Function that writes a new Keras project for a task, installs it for this test, and returns its name."""
    before = set(sys.modules)

    def write(task: str) -> str:
        source = write_project("cells", "keras", tmp_path, task) / "src"
        known = source / "runner_cells-0.dist-info"
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: runner-cells\nVersion: 0\n", encoding="utf-8")
        (known / "entry_points.txt").write_text("[runner.projects]\ncells = runner_cells\n", encoding="utf-8")
        monkeypatch.syspath_prepend(source)
        return "cells"

    yield write
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "runner_cells":
            del sys.modules[name]


def compare(project: str, precision: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (losses(Case(project, folder / m), m, precision, folder / m, monkeypatch) for m in ("off", "on"))
    assert len(one) == STEPS
    assert np.isfinite(other).all()
    np.testing.assert_allclose(other, one, rtol=0, atol=TOLERANCES[precision] * one[0])


@pytest.mark.weekly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", TOLERANCES)
def test_openkbps_steps_under_xla_are_the_same(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare("openkbp", precision, tmp_path, monkeypatch)


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("task", TASKS)
def test_a_new_projects_steps_under_xla_are_the_same(
    task: str, precision: str, written: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(written(task), precision, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", TASKS)
def test_a_new_projects_first_step_under_xla_agrees(
    task: str, written: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = Case(written(task), tmp_path)
    case.setup.config.train.compile, case.setup.config.train.deterministic = "on", False
    found = verify(case.setup, case.data)
    assert (found.status, found.options, found.wrong) == ("right", ["train.compile (XLA)"], []), found.text
