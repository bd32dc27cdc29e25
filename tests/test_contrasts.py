"""The script that paints heads anew: each copy has its contrast's order of brightness, and the same head."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("runner_brainunet")
SCRIPT = Path(__file__).parents[1] / "examples/brainunet-weights/contrasts.py"
FLUID, GREY, WHITE, FAT = 0.15, 0.5, 0.75, 0.95


@pytest.fixture(scope="module")
def copies():
    """Return a ball of three tissues in a shell of fat, its parts, and its copies."""
    spec = importlib.util.spec_from_file_location("contrasts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    contrasts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contrasts)
    radius = np.linalg.norm(np.stack(np.meshgrid(*[np.linspace(-1, 1, 40)] * 3, indexing="ij")), axis=0)
    parts = {FLUID: radius < 0.3, WHITE: (radius >= 0.3) & (radius < 0.5), GREY: (radius >= 0.5) & (radius < 0.7)}
    scan = np.zeros(radius.shape, np.float32)
    for value, where in {**parts, FAT: (radius >= 0.75) & (radius < 0.9)}.items():
        scan[where] = value * 1000
    return contrasts.painted(scan, radius < 0.7), parts, contrasts


@pytest.mark.parametrize(
    ("name", "rising"),
    [("T1", (FLUID, GREY, WHITE)), ("T2", (WHITE, GREY, FLUID)), ("FLAIR", (FLUID, WHITE, GREY)),
     ("PD", (WHITE, GREY, FLUID)), ("inverted", (WHITE, GREY, FLUID)), ("as it is", (FLUID, GREY, WHITE))],
)  # fmt: skip
def test_a_copy_has_its_contrast(copies, name, rising):
    found, parts, _ = copies
    copy = found[name]
    assert copy.dtype == np.float32
    assert copy.min() >= 0
    assert copy.max() <= 1
    values = [np.median(copy[parts[part]]) for part in rising]
    assert values == sorted(values)
    assert values[2] - values[0] > 0.1
    assert np.median(copy[0]) < 0.06, "air stays dark"


def test_dice(copies):
    *_, contrasts = copies
    one, other = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 1], bool)
    assert contrasts.dice(one, other) == pytest.approx(0.4)
