"""`fit` on the training volumes equals the definition on all voxels at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput
from runner_vesuvius import statistics
from runner_vesuvius.statistics import histogram


def volumes(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        label = rng.choice(np.array([0, 1, 2], np.uint8), (9, 8, 7), p=[0.3, 0.1, 0.6])
        image = np.clip(rng.normal(90 + 60 * (label == 1) + 100 * (label == 2), 30), 0, 255).astype(np.uint8)
        found.append((image, label))
    return found


def store(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    counts = [histogram(*pair).astype(np.uint32) for pair in pairs]
    return SimpleNamespace(arrays={"histogram": SimpleNamespace(read=counts.__getitem__)})


def test_statistics_are_those_of_the_labelled_voxels_of_training_records() -> None:
    pairs = volumes()
    learned = statistics.fit(store(pairs), [0, 2])
    image = np.concatenate([pairs[n][0].ravel() for n in (0, 2)])
    label = np.concatenate([pairs[n][1].ravel() for n in (0, 2)])
    known, surface = image[label != 2].astype(float), label[label != 2] == 1
    assert learned["mean"] == pytest.approx(known.mean())
    assert learned["std"] == pytest.approx(known.std())
    assert learned["surface_share"] == pytest.approx(surface.mean())
    found = [known >= t for t in range(256)]
    dice = [2 * (f & surface).sum() / (f.sum() + surface.sum()) for f in found]
    assert learned["threshold"] == int(np.argmax(dice))
    assert learned["threshold_dice"] == pytest.approx(max(dice))


def test_a_volume_of_one_intensity_has_a_width_to_divide_by() -> None:
    label = np.array([[[0, 1]]], np.uint8)
    assert statistics.fit(store([(np.full((1, 1, 2), 50, np.uint8), label)]), [0])["std"] == 1.0


@pytest.mark.parametrize(("value", "missing"), [(0, "surface"), (1, "background"), (2, "surface")])
def test_labels_of_which_nothing_can_be_learned_are_refused(value, missing) -> None:
    pair = (np.zeros((2, 2, 2), np.uint8), np.full((2, 2, 2), value, np.uint8))
    with pytest.raises(BadInput, match=f"{missing}.*runner vesuvius check"):
        statistics.fit(store([pair]), [0])
