"""Losses of a network that ignores its input, and the places at which the loss does not look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras import ops
from runner_core import Progress
from runner_openkbp.config import demo
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import POSSIBLE, bit
from runner_openkbp.statistics import BIN, constant_error

SIDE = 8


class Stored:
    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays

    def read(self, record: int) -> np.ndarray:
        return self.arrays[record]


@pytest.mark.parametrize("masked", [True, False])
def test_no_dose_that_is_the_same_everywhere_is_nearer(masked: bool) -> None:
    rng = np.random.default_rng(0)
    doses = [rng.gamma(2.0, 12.0, (1, SIDE, SIDE, SIDE)).clip(0, 80), rng.uniform(0, 70, (1, SIDE, SIDE, SIDE))]
    inside = [rng.random((1, SIDE, SIDE, SIDE)) < share for share in (0.2, 0.7)]
    steps = [1 / 800, 1 / 500]
    arrays = {
        "dose": [np.rint(dose / step).astype(np.uint16) for dose, step in zip(doses, steps, strict=True)],
        "dose_step": [np.array([[step]]) for step in steps],
        "masks": [where.astype(np.uint16) << bit(POSSIBLE) for where in inside],
    }
    store: Any = SimpleNamespace(arrays={name: Stored(values) for name, values in arrays.items()})
    seen = [dose[where] if masked else dose.ravel() for dose, where in zip(doses, inside, strict=True)]
    errors = [np.mean([np.abs(dose - same).mean() for dose in seen]) for same in np.arange(0, 70, 0.05)]
    assert constant_error(store, [0, 1], masked) == pytest.approx(min(errors), abs=BIN)
    assert constant_error(store, [1], masked) == pytest.approx(np.abs(seen[1] - np.median(seen[1])).mean(), abs=BIN)


def project(**loss: Any) -> OpenKBP:
    config = demo()
    for name, value in loss.items():
        setattr(config.loss, name, value)
    return OpenKBP(config)


def test_runs_without_the_statistic_are_not_looked_at() -> None:
    own = project()
    assert own.health().chance_losses() == {}
    own.statistics = {"constant_error": 12.5}
    assert own.health().chance_losses() == {"mae": 12.5, "mae_coarse": 12.5}


@pytest.mark.parametrize("loss", [{"masked": True}, {"masked": True, "dvh": 1.0}])
def test_the_loss_has_no_gradient_where_it_is_ignored_and_one_elsewhere(
    loss: dict[str, Any], gradient: Callable[[Callable[[Any], Any], np.ndarray], np.ndarray]
) -> None:
    own, rng = project(**loss), np.random.default_rng(1)
    shape = (2, SIDE, SIDE, SIDE, 1)
    image = np.concatenate([rng.normal(size=shape), rng.random((*shape[:4], 10)) < 0.05], -1).astype(np.float32)
    mask = (rng.random(shape) < 0.5).astype(np.float32)
    batch = {"image": image, "mask": mask, "dose": rng.uniform(0, 70, shape).astype(np.float32)}

    def total(dose: Any) -> Any:
        return own.step(lambda seen: dose, batch, Progress(0, 1, 0)).loss

    found = gradient(total, rng.uniform(5, 65, shape).astype(np.float32))
    ignored = np.asarray(ops.convert_to_numpy(own.health().ignored(batch)))
    assert ignored.any()
    assert not found[ignored].any()
    assert found[mask > 0].all()


def test_without_the_mask_everything_counts() -> None:
    assert project(masked=False).health().ignored({}) is None
