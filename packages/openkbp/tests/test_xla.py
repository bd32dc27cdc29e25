"""The training step compiled by XLA, as on a GPU by default, against TensorFlow's own kernels, in each precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core.testing.case import Case
from runner_core.training.assembly import assemble

pytest.importorskip("tensorflow")
STEPS = 4


def losses(folder: Path, compiled: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Losses of the demo's first steps, without random numbers on the device: XLA has its own."""
    case = Case("openkbp", folder)
    config = case.setup.config
    config.train.compile, config.train.steps_per_epoch = compiled, STEPS
    config.train.deterministic = False
    config.precision.mode, config.model.dropout = precision, 0.0
    plain = case.kind.on_device
    monkeypatch.setattr(
        case.kind, "on_device", lambda self, batch, statistics, rng: plain(self, batch, statistics, None)
    )
    parts = assemble(case.setup, case.data, folder, print, plans=False)
    try:
        for step, batch in enumerate(parts.loaders.training.batches(0)):
            parts.trainer.train_step(batch, step)
        return parts.trainer.losses()
    finally:
        parts.loaders.close()
        monkeypatch.undo()


@pytest.mark.weekly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.05), ("float16", 0.02)])
def test_steps_under_xla_are_the_same(
    precision: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (losses(tmp_path / mode, mode, precision, monkeypatch) for mode in ("off", "on"))
    assert len(one) == STEPS
    assert np.isfinite(other).all()
    np.testing.assert_allclose(other, one, rtol=tolerance)
