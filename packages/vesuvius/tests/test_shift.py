"""Labels that lie beside the surface are told, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runner_core import Record
from runner_vesuvius import checks, phantom, shift
from runner_vesuvius.volumes import write_tif

MOVED = [(0, 6, 0), (0, -6, 0), (0, 0, 6), (0, 0, -6)]


def sheets() -> tuple[np.ndarray, np.ndarray]:
    """Image and label of two bright sheets, three voxels thick, at two heights."""
    label = np.zeros((32, 40, 40), np.uint8)
    label[9:12] = label[21:24] = 1
    noise = np.random.default_rng(0).normal(0, 8, label.shape)
    return np.rint(60 + 120 * label + noise).astype(np.uint8), label


@pytest.mark.parametrize("moved", [4, -4])
def test_a_moved_label_is_told_with_the_way_back(tmp_path: Path, moved: int) -> None:
    """The volume has two flat sheets, along which no movement shows."""
    image, label = sheets()
    assert shift.find(image, label) is None
    found = shift.find(image, np.roll(label, moved, 0))
    assert found is not None
    assert found.by == (-moved, 0, 0)
    assert found.here < 0.5
    assert found.there > 2
    files = {"image": tmp_path / "A_1.tif", "label": tmp_path / "A_1_label.tif"}
    write_tif(files["image"], image)
    write_tif(files["label"], np.roll(label, moved, 0))
    told = [f for f in checks.findings(Record("A_1", "A", files)) if f.rule == "shift"]
    assert [f.level for f in told] == ["warning"]
    assert (
        f"A_1_label.tif: the label fits the image better when it is moved by about {-moved}, 0, 0 " in told[0].message
    )


@pytest.mark.parametrize("kind", ["as it is", "thick", "noisy"])
def test_generated_scrolls(kind: str) -> None:
    """No correct label is told, at the face of its sheet as it is, and of most that are moved across some movement."""
    rng = np.random.default_rng(7)
    told = 0
    for rolling, scan in phantom.make_scrolls(3, rng):
        if kind == "thick":
            rolling = replace(rolling, pitch=2 * rolling.pitch, thickness=2.4 * rolling.thickness)
        if kind == "noisy":
            scan = replace(scan, noise=4 * scan.noise, blur=2.0)
        image, label = phantom.make_volume(rolling, scan, (80, 80, 80), rng)
        assert shift.find(image, label) is None
        told += any(shift.find(image, np.roll(label, by, (0, 1, 2))) for by in MOVED)
    assert told == 3


def test_what_is_too_small_or_without_contrast_says_nothing() -> None:
    image, label = sheets()
    assert shift.find(image[:16], label[:16]) is None
    assert shift.find(np.zeros_like(image), label) is None
    assert shift.find(image, np.full_like(label, 2)) is None
    assert shift.find(image, np.ones_like(label)) is None
