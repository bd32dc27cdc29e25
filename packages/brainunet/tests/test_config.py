"""Settings without sense are refused before any data are read, each with a message that names the setting."""

from __future__ import annotations

from functools import reduce

import pytest
from runner_brainunet.config import PRESETS
from runner_brainunet.project import BrainUNet
from runner_core import BadInput


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_make_sense(preset: str) -> None:
    BrainUNet(PRESETS[preset]())


@pytest.mark.parametrize(
    "name, value",
    [
        ("loss.bce", -1.0),
        ("loss.dice", -0.1),
        ("augment.probability", 1.1),
        ("augment.rotate", 181.0),
        ("augment.scale", -0.1),
        ("augment.stretch", 1.5),
        ("augment.shear", -0.1),
        ("augment.shift", 1.1),
        ("augment.elastic", -0.01),
        ("augment.contrast", -0.1),
        ("augment.gamma", -0.5),
        ("augment.surround", -0.6),
        ("augment.bias", -0.3),
        ("augment.gain", -0.35),
        ("augment.noise", 1.08),
        ("augment.blur", -1.5),
        ("augment.crop", 1.3),
        ("augment.decoy", -0.15),
        ("log.snapshots_every", 0),
    ],
)
def test_a_value_out_of_bounds_is_refused(name: str, value: float) -> None:
    config = PRESETS["default"]()
    *sections, last = name.split(".")
    setattr(reduce(getattr, sections, config), last, value)
    with pytest.raises(BadInput, match=rf"setting {name} must (be|lie) .*, not {value}"):
        BrainUNet(config)
