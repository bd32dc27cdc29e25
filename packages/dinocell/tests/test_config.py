"""Settings without sense are refused in words, before any data are read."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from runner_core import BadInput
from runner_core.testing import refusal
from runner_dinocell.config import PRESETS, CellConfig
from runner_dinocell.project import DinoCell


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_make_sense(preset: str) -> None:
    assert refusal(DinoCell, PRESETS[preset]()) is None


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("data.window", 8, "data.window must be at least 16, not 8"),
        ("data.windows", 0, "data.windows must lie from 1 to 100000, not 0"),
        ("data.percentiles", (99.9, 0.1), r"data.percentiles is \(99.9, 0.1\); two rising numbers"),
        ("data.percentiles", (0, 101), "two rising numbers between 0 and 100"),
        ("data.channels", ("1", "1"), "data.channels 1 1 names a channel twice"),
        ("data.pattern", "(?P<plate>", "data.pattern .* no regular expression"),
        ("model.drop_path", 1.0, "model.drop_path must lie from 0 to 0.99, not 1.0"),
        ("model.prototypes", 1, "model.prototypes must lie from 2 to 10000000, not 1"),
        ("loss.koleo", float("nan"), "loss.koleo must be a finite number"),
        ("loss.dino", float("inf"), "loss.dino must be a finite number"),
        ("loss.student_temperature", 0.0, "loss.student_temperature must be at least 0.0001"),
        ("loss.masked_share", (0.5, 0.1), r"loss.masked_share is \(0.5, 0.1\); two shares from 0 to 1"),
        ("loss.masked_share", (0.0, 0.0), "loss.ibot has no patch to look at"),
        ("teacher.momentum", 1.1, "teacher.momentum must lie from 0 to 1, not 1.1"),
        ("augment.global_size", 50, "augment.global_size is 50, no multiple of model.patch, 8: take 48"),
        ("augment.local_size", 3, "augment.local_size is 3, no multiple of model.patch, 8: take 8"),
        ("augment.local_size", 64, "augment.local_size 64 is larger than augment.global_size 48"),
        ("augment.global_scale", (0.0, 1.0), r"augment.global_scale is \(0.0, 1.0\); two shares of the window"),
        ("augment.local_scale", (0.5, 0.3), "augment.local_scale"),
        ("augment.blur", 1.5, "augment.blur must lie from 0 to 1, not 1.5"),
        ("predict.stride", 0.0, "predict.stride must lie from 0.05 to 1, not 0.0"),
        ("train.batch_size", 1, "train.batch_size is 1: loss.koleo compares images"),
    ],
)
def test_what_is_refused(config: CellConfig, name: str, value: Any, message: str) -> None:
    *sections, last = name.split(".")
    setattr(reduce(getattr, sections, config), last, value)
    with pytest.raises(BadInput, match=message):
        raise BadInput(refusal(DinoCell, config) or "nothing is wrong")


def test_settings_that_exclude_each_other(config: CellConfig) -> None:
    config.loss.dino = config.loss.ibot = 0
    assert "nothing would be learned" in str(refusal(DinoCell, config))
    config.loss.dino = 1.0
    assert refusal(DinoCell, config) is None
    config.model.source = "dinov2"
    assert "mini is not among dinov2's" in str(refusal(DinoCell, config))
    config.model.size = "small"
    config.data.manifest, config.data.pattern = "x.csv", r"(?P<plate>.)(?P<well>.)(?P<site>.)(?P<channel>.)"
    assert "data.manifest and data.pattern" in str(refusal(DinoCell, config))
