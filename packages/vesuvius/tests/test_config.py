"""Settings that make no sense are refused before anything is read, each with one message that names the setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from runner_core import BadInput
from runner_core.testing import changed, refusal
from runner_vesuvius.config import PRESETS, default
from runner_vesuvius.project import Vesuvius

WRONG: list[tuple[str, Any]] = [
    ("data.patch", [72, 8, 136]),
    ("data.patch", [16, 16, 16]),
    ("data.patches", 0),
    ("data.patches", 1_000_000_000),  # an order of all of them takes 30 GB
    ("data.validation_patches", 0),
    ("data.surface_share", 1.2),
    ("data.surface_share", -0.1),
    ("data.tube", -1),
    ("data.tube", 1_000_000_000),  # widening took a second for each
    ("model.base", 0),
    ("model.base", 10_000_000),
    ("model.blocks", 100_000),  # built for minutes
    ("augment.scale", 1e9),
    ("model.blocks", 0),
    ("model.multipliers", []),
    ("model.multipliers", [2]),
    ("loss.positive", float("inf")),
    ("loss.dice.weight", float("inf")),
    ("augment.noise", float("inf")),
    ("model.multipliers", [1, 0]),
    ("loss.positive", -1.0),
    ("loss.tau", 15.5),
    ("loss.tau", 0.0),
    ("loss.cldice_iterations", 0),
    ("loss.topology_every", 0),
    ("loss.topology_crop", 2),
    ("loss.bce.weight", -1.0),
    ("loss.bce.begin", 1.5),
    ("augment.noise", -0.1),
    ("augment.affine", 1.5),
    ("predict.threshold", 0.0),
    ("predict.threshold", 1.0),
    ("predict.seed_threshold", 1.0),
    ("predict.overlap", 0.95),
    ("predict.overlap", -0.1),
    ("predict.along_sheets", -1.0),
    ("predict.along_sheets", 9.0),
    ("predict.thickness", -1.0),
    ("predict.mend_faults", -0.1),
    ("predict.min_size", -1),
    ("predict.fill_holes", -1),
    ("predict.threshold", float("nan")),
]


def fault(settings: Mapping[str, Any]) -> str | None:
    return refusal(Vesuvius, changed(default(), settings))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_sensible(preset) -> None:
    assert refusal(Vesuvius, PRESETS[preset]()) is None


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_nonsense_is_named(name, value) -> None:
    wrong = fault({name: value})
    assert wrong is not None
    assert name in wrong


def test_the_project_refuses_such_settings_when_it_is_made() -> None:
    with pytest.raises(BadInput, match=r"predict\.overlap must lie from 0 to 0\.9, not 0\.95"):
        Vesuvius(changed(default(), {"predict.overlap": 0.95}))


def test_something_must_be_learned_from_the_first_step_on() -> None:
    silent = {f"loss.{name}.weight": 0.0 for name in ("bce", "dice", "skeleton_recall")}
    assert "nothing would be learned" in (fault(silent) or "")
    late = silent | {"loss.bce.weight": 1.0, "loss.bce.begin": 0.5}
    assert "first step" in (fault(late) or "")
    assert "first step" in (fault({**silent, "loss.topology.weight": 1.0}) or "")
    rising = silent | {"loss.bce.weight": 1.0, "loss.bce.full": 0.5}
    assert "first step" in (fault(rising) or "")
    assert fault({**silent, "loss.cldice.weight": 1.0}) is None


def test_settings_without_effect_are_said() -> None:
    config = PRESETS["nnunet"]()
    assert not [*config.without_effect()]
    config.train.optimizer, config.train.momentum, config.train.decay = "adamw", 0.9, 0.5
    config.predict.mend_faults = 0.7
    found = [text.partition(" ")[0] for text in config.without_effect()]
    assert found == ["train.momentum", "train.decay", "predict.mend_faults"]
    config.train.optimizer, config.train.schedule, config.predict.thickness = "sgd", "wsd", 3.4
    assert not [*config.without_effect()]


def test_a_weight_that_rises_does_so_forwards() -> None:
    back = {"loss.boundary.weight": 1.0, "loss.boundary.begin": 0.5, "loss.boundary.full": 0.2}
    assert "loss.boundary.full" in (fault(back) or "")
    assert fault({"loss.boundary.weight": 1.0, "loss.boundary.begin": 0.5}) is None


def test_the_crop_of_the_topology_loss_fits_in_the_patch_where_it_is_looked_at() -> None:
    crop = {"loss.topology_crop": 73}
    assert fault(crop) is None
    wrong = fault({**crop, "loss.topology.weight": 0.01}) or ""
    assert "loss.topology_crop is 73" in wrong
    assert "data.patch is 72" in wrong
    assert fault({"loss.topology_crop": 72, "loss.topology.weight": 0.01}) is None
