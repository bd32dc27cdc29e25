"""The Keras engine's training step compiled by XLA, as on a GPU by default, against TensorFlow's own kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from keras_toy import KerasToy

pytest.importorskip("tensorflow", reason="XLA of TensorFlow is compared")


class Still(KerasToy):
    """The toy without noise: XLA draws other random numbers."""

    def on_device(self, batch, statistics, rng):
        return super().on_device(batch, statistics, None)


def losses(folder: Path, compiled: str, precision: str) -> list[float]:
    settings = {"train__compile": compiled, "precision__mode": precision, "net__dropout": 0.0, "log__every": 1}
    toy.run(toy.small(**settings), folder, project=Still)
    return [line["loss"] for line in toy.log_lines(folder) if line["event"] == "train"]


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02), ("float16", 2e-3)])
def test_steps_under_xla_lose_what_uncompiled_ones_do(precision: str, tolerance: float, tmp_path: Path) -> None:
    one, other = (losses(tmp_path / compiled, compiled, precision) for compiled in ("off", "on"))
    assert len(one) >= 4
    assert one[-1] < one[0], "nothing was learned, so that nothing could differ"
    np.testing.assert_allclose(other, one, rtol=tolerance)
