"""Medial surfaces: the topology stays, the middle of sheets is found, borders and unknown voxels erode nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.medial import medial_surface
from scipy import ndimage

SIDE = 48
Field = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def euler(mask: np.ndarray) -> int:
    """Vertices − edges + squares − cubes of the union of the voxels as closed cubes."""
    padded, total = np.pad(mask, 1), 0
    for dimensions in itertools.product((0, 1), repeat=3):
        cells = padded
        for axis, along in enumerate(dimensions):
            if not along:  # a cell between two voxels is there if either is
                pair = np.moveaxis(cells, axis, 0)
                cells = np.moveaxis(pair[1:] | pair[:-1], 0, axis)
        total += (-1) ** sum(dimensions) * int(cells.sum())
    return total


def betti(mask: np.ndarray) -> tuple[int, int, int]:
    """Components (26 neighbours), tunnels, cavities (6 neighbours)."""
    components = ndimage.label(mask, np.ones((3, 3, 3)))[1]
    cavities = ndimage.label(~np.pad(mask, 1))[1] - 1
    return components, components + cavities - euler(mask), cavities


def grid() -> list[np.ndarray]:
    return np.meshgrid(*[np.arange(SIDE) - SIDE / 2 + 0.2] * 3, indexing="ij")


def wavy(z: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """About the distance from a wavy surface."""
    return (y + 4 * np.sin(x / 9) + 3 * np.cos(z / 8)) / np.hypot(
        np.hypot(1, 4 / 9 * np.cos(x / 9)), 3 / 8 * np.sin(z / 8)
    )


FIELDS: dict[str, Field] = {
    "shell": lambda z, y, x: np.sqrt(z**2 + y**2 + x**2) - 16,
    "along x and z": lambda z, y, x: y,
    "across x": lambda z, y, x: x,
    "45 degrees": lambda z, y, x: (x + y) / np.sqrt(2),
    "diagonal": lambda z, y, x: (x + y + z) / np.sqrt(3),
    "oblique": lambda z, y, x: 0.2 * z - 0.48 * y + 0.854 * x,
    "wavy": wavy,
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("thickness", [3, 4, 5])
def test_the_middle_of_a_sheet_is_found(name: str, thickness: int) -> None:
    """Sheets that run through the volume from border to border, and a closed one."""
    off = FIELDS[name](*grid())
    sheet = np.abs(off) <= thickness / 2
    medial = medial_surface(sheet)
    assert not (medial & ~sheet).any()
    assert betti(medial) == betti(sheet)
    assert np.mean(np.abs(off[medial]) <= 1) > 0.999
    far = ndimage.distance_transform_edt(~medial)[sheet]
    assert far.max() <= thickness / 2 + 1
    blocks = ndimage.minimum_filter(medial, size=2, mode="constant", cval=0)
    assert not blocks.any(), "two voxels thick somewhere"


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("thickness", [1, 2, 3, 5])
def test_a_sheet_is_not_eaten_from_its_rim(axis: int, thickness: int) -> None:
    """The surface ends at most half the sheet's thickness and a voxel before the rim, whichever way it lies."""
    block = np.zeros((20, 20, 20), bool)
    block[6 : 6 + thickness, 3:17, 3:17] = True
    block = np.moveaxis(block, 0, axis)
    medial = medial_surface(block)
    shadow = np.argwhere(medial.any(axis=axis))
    eaten = thickness // 2 + 1
    assert (shadow.min(axis=0) <= 3 + eaten).all()
    assert (shadow.max(axis=0) >= 16 - eaten).all()
    assert medial.sum(axis=axis).max() == 1


def test_holes_tears_and_touching_sheets_stay() -> None:
    z, y, _ = grid()
    two = (np.abs(y - 6) <= 2) | (np.abs(y + 6) <= 2)
    two[20:25, :, 20:25] = False  # a hole through both
    two[30:33, :, 8:11] = True  # where they touch
    two[:, :, 40:42] &= z[:, :, 40:42] > 0  # a tear
    medial = medial_surface(two)
    assert betti(medial) == betti(two)
    assert medial.sum() < two.sum() / 3


def test_threads_become_curves_and_balls_points() -> None:
    thread = np.zeros((30, 9, 9), bool)
    thread[3:27, 3:6, 3:6] = True
    medial = medial_surface(thread)
    assert medial.sum(axis=(1, 2)).max() == 1
    assert medial.any(axis=(1, 2)).sum() >= 24 - 4
    z, y, x = grid()
    ball = medial_surface(z**2 + y**2 + x**2 <= 100)
    assert ball.sum() == 1
    assert np.abs(np.argwhere(ball) - SIDE / 2).max() <= 1


blobs = st.tuples(*[st.integers(1, 14)] * 3)


@settings(max_examples=150, deadline=None)
@given(blobs, st.sampled_from([0.0, 0.8, 1.5]), st.floats(-1, 1), st.floats(0, 0.3), st.integers(0, 2**32 - 1))
def test_the_topology_of_anything_stays(
    shape: tuple[int, int, int], smooth: float, level: float, share: float, seed: int
) -> None:
    """Everything outside or unknown counts as background."""
    rng = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(rng.normal(size=shape), smooth)
    mask = noise > level * noise.std()
    unknown = (rng.random(shape) < share) & ~mask
    medial = medial_surface(mask, unknown)
    assert not (medial & ~mask).any()
    assert betti(medial) == betti(mask)
    np.testing.assert_array_equal(medial_surface(medial, unknown) & ~medial, False)


def test_neither_the_border_nor_unknown_voxels_erode_a_sheet() -> None:
    z, y, x = grid()
    sheet = np.abs(wavy(z, y, x)) <= 2
    whole = medial_surface(sheet)
    assert whole[:, :, [0, -1]].any(axis=1).all()
    assert whole[[0, -1]].any(axis=1).all()
    for unknown in (x > 5, (z > 0) & (x > 0)):
        medial = medial_surface(sheet & ~unknown, unknown)
        wanted = whole & ~unknown
        assert ndimage.distance_transform_edt(~medial)[wanted].max() < 2
        assert ndimage.distance_transform_edt(~whole)[medial].max() < 2
    cut = sheet & ~(x > 5)
    last = [np.argwhere(found)[:, 2].max() for found in (cut, medial_surface(cut, x > 5), medial_surface(cut))]
    assert last[0] == last[1] == last[2] + 2  # where background is seen there is a rim


def test_the_order_in_memory_is_of_no_matter() -> None:
    sheet = np.abs(wavy(*grid())) <= 2
    wanted = medial_surface(sheet)
    for order in ((2, 1, 0), (1, 2, 0)):
        other = np.ascontiguousarray(sheet.transpose(order)).transpose(np.argsort(order))
        np.testing.assert_array_equal(medial_surface(other, ~other & False), wanted)


def test_nothing_and_everything() -> None:
    assert not medial_surface(np.zeros((3, 4, 5), bool)).any()
    assert medial_surface(np.ones((3, 4, 5), bool)).all()  # no background is seen: nothing says where the middle is
    assert medial_surface(np.zeros((0, 4, 5), bool)).shape == (0, 4, 5)


def test_too_large_a_volume_is_refused() -> None:
    huge = np.broadcast_to(np.zeros(1, bool), (2**11, 2**11, 2**11))
    with pytest.raises(ValueError, match="cut it"):
        medial_surface(huge)
