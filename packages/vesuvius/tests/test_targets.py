"""The arrays that are prepared from a label: bits, distances, tube, coordinates."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from runner_vesuvius import papyrus
from runner_vesuvius.config import demo
from runner_vesuvius.medial import medial_surface
from runner_vesuvius.papyrus import roll
from runner_vesuvius.phantom import make_scrolls
from runner_vesuvius.targets import (
    CAP,
    COORDINATES,
    IGNORE,
    LABEL,
    MEDIAL,
    SURFACE,
    TUBE,
    coordinates,
    prepare,
    widened,
)
from scipy import ndimage


def sheets(shape: tuple[int, int, int] = (24, 28, 32), seed: int = 0) -> np.ndarray:
    """A label of two wavy sheets, three to four voxels thick, that run through it; a slab is ignored."""
    z, y, x = np.ogrid[: shape[0], : shape[1], : shape[2]]
    label = np.zeros(shape, np.uint8)
    for at, wide in ((6, 3), (15, 4)):
        label[np.abs(z - at - 1.5 * np.sin((x + y + seed) / 6)) <= wide / 2] = SURFACE
    label[:, :4] = IGNORE
    return label


def test_a_label_comes_back_and_all_bits_are_where_they_belong() -> None:
    label = sheets()
    made = prepare(label, 1)
    target = made["target"]
    assert {name: array.dtype.name for name, array in made.items()} == {
        "target": "uint8", "distance": "uint8", "surface": "int32", "valid": "int32"
    }  # fmt: skip
    np.testing.assert_array_equal(target & LABEL, label)
    medial, tube = target & MEDIAL > 0, target & TUBE > 0
    np.testing.assert_array_equal(medial, medial_surface(label == SURFACE, label == IGNORE))
    near = ndimage.binary_dilation(medial, np.ones((3, 3, 3)))
    np.testing.assert_array_equal(tube, near & (label == SURFACE))
    assert medial.any()
    assert target.max() < 16
    np.testing.assert_array_equal(prepare(label, 0)["target"] & TUBE > 0, medial)


def thin_sheets() -> np.ndarray:
    """A generated scroll's label with sheets as thick as the challenge's: 2 voxels (median), 2.33 (mean)."""
    rng = np.random.default_rng(0)
    (rolling, _), *_ = make_scrolls(4, rng)
    return roll(rolling, (64, 64, 64), rng).surface


def test_skeleton_recall_of_thin_sheets_is_not_plain_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, a voxel lost in a hole through a sheet costs at least twice as much as one lost in a layer of it."""
    monkeypatch.setattr(papyrus, "SURFACE", (-0.5, 1.5))
    surface = thin_sheets()
    label = surface.astype(np.uint8)
    z, y, x = np.indices(surface.shape)
    holes = surface & ((z % 16 - 8) ** 2 + (y % 16 - 8) ** 2 + (x % 16 - 8) ** 2 < 25)
    layers = [surface & ~np.roll(surface, step, axis) for axis in range(3) for step in (1, -1)]

    def cost(lost: np.ndarray, tube: int) -> float:
        """Share of the tube that is lost, over the share of the sheet."""
        wanted = prepare(label, tube)["target"] & TUBE > 0
        return (np.count_nonzero(lost & wanted) / np.count_nonzero(wanted)) / (lost.sum() / surface.sum())

    def ratio(tube: int) -> float:
        return cost(holes, tube) / float(np.mean([cost(layer, tube) for layer in layers]))

    medial = prepare(label, 0)["target"] & MEDIAL > 0
    assert 2.2 < surface.sum() / medial.sum() < 2.5  # mean thickness
    assert np.count_nonzero(prepare(label, 1)["target"] & TUBE > 0) > 0.97 * surface.sum()
    assert ratio(1) == pytest.approx(1, abs=0.05)
    assert ratio(demo().data.tube) > 2


def test_distances_go_to_the_other_kind_and_ignored_voxels_are_no_surface() -> None:
    label = sheets()
    surface = label == SURFACE
    wanted = np.where(surface, ndimage.distance_transform_edt(surface), ndimage.distance_transform_edt(~surface)) ** 2
    np.testing.assert_array_equal(prepare(label, 1)["distance"], np.minimum(np.rint(wanted), CAP))


@pytest.mark.parametrize("value", [0, 1, 2])
def test_a_label_of_one_kind(value: int) -> None:
    made = prepare(np.full((6, 7, 8), value, np.uint8), 1)
    assert (made["distance"] == CAP).all()
    assert len(made["surface"]) == (6 * 7 * 8 if value == SURFACE else 0)
    assert len(made["valid"]) == (0 if value == IGNORE else 6 * 7 * 8)
    assert (made["target"] & LABEL == value).all()


def turned(array: np.ndarray, order: tuple[int, ...], mirrored: tuple[bool, ...]) -> np.ndarray:
    return np.flip(array.transpose(order), [axis for axis, flip in enumerate(mirrored) if flip])


def test_turned_and_mirrored_labels_have_the_turned_and_mirrored_targets() -> None:
    """All 48 symmetries of the cube are tried. The medial surface of sheets of even thickness may be a voxel off."""
    label = sheets((20, 24, 28), seed=2)
    made = prepare(label, 1)
    medial = made["target"] & MEDIAL > 0
    for order in itertools.permutations(range(3)):
        for mirrored in itertools.product((False, True), repeat=3):
            other = prepare(turned(label, order, mirrored), 1)
            np.testing.assert_array_equal(other["distance"], turned(made["distance"], order, mirrored))
            np.testing.assert_array_equal(other["target"] & LABEL, turned(label, order, mirrored))
            off = ndimage.distance_transform_edt(~turned(medial, order, mirrored))[other["target"] & MEDIAL > 0]
            assert off.max() < 3
            assert np.mean(off <= 1) > 0.97


def test_sheets_of_odd_thickness_along_the_grid_turn_exactly() -> None:
    label = np.zeros((12, 14, 16), np.uint8)
    label[:, 3:6], label[:, 9:12] = 1, 1
    label[:, :, 13:] = 2
    target = prepare(label, 1)["target"]
    for order in itertools.permutations(range(3)):
        for mirrored in itertools.product((False, True), repeat=3):
            again = prepare(turned(label, order, mirrored), 1)["target"]
            np.testing.assert_array_equal(again, turned(target, order, mirrored))


def test_a_sheet_goes_on_where_it_is_ignored() -> None:
    label = np.zeros((16, 16, 16), np.uint8)
    label[:, 6:9] = 1
    label[:, :, 10:] = 2
    medial = prepare(label, 1)["target"] & MEDIAL > 0
    np.testing.assert_array_equal(np.argwhere(medial), [(z, 7, x) for z in range(16) for x in range(10)])


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_widening_is_dilation(steps: int) -> None:
    mask = np.random.default_rng(0).random((9, 11, 3)) < 0.02
    wanted = ndimage.maximum_filter(mask, size=2 * steps + 1, mode="constant", cval=0)
    np.testing.assert_array_equal(widened(mask, steps), wanted)


def test_coordinates_are_all_or_a_fair_and_fixed_choice() -> None:
    mask = np.random.default_rng(1).random((30, 32, 34)) < 0.4
    mask[7:9] = False
    places = np.argwhere(mask)
    np.testing.assert_array_equal(coordinates(mask, len(places)), places)
    assert coordinates(np.zeros((0, 3, 4), bool)).shape == (0, 3)
    some = coordinates(mask, 2000)
    np.testing.assert_array_equal(coordinates(mask, 2000), some)
    assert len(np.unique(some, axis=0)) == len(some) == 2000
    assert mask[tuple(some.T)].all()
    # Each voxel is as likely as any: their mean is the mask's, within four standard errors
    error = places.std(axis=0) / np.sqrt(len(some))
    assert (np.abs(some.mean(axis=0) - places.mean(axis=0)) < 4 * error).all()
    assert len(coordinates(np.ones((30, 30, 30), bool))) == COORDINATES


def test_nothing_slow_is_imported_with_it() -> None:
    code = "import sys, runner_vesuvius.targets; print(*{'numba', 'scipy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
