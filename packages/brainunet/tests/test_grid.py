"""From any scanner's grid to the network's and back: nothing moves by more than half a voxel."""

from __future__ import annotations

import nibabel
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_brainunet.grid import Grid
from scipy import ndimage


@st.composite
def affines(draw) -> tuple[np.ndarray, tuple[float, ...]]:
    """Any order and direction of axes, oblique up to 25°, voxels of 0.8 to 4 mm."""
    order = draw(st.permutations(range(3)))
    spacing = draw(st.tuples(*[st.floats(0.8, 4)] * 3))
    angles = draw(st.tuples(*[st.floats(-25, 25)] * 3))
    matrix = np.zeros((3, 3))
    for column, row in enumerate(order):
        matrix[row, column] = draw(st.sampled_from([-1, 1])) * spacing[column]
    for axis, angle in enumerate(np.radians(angles)):
        a, b = {0, 1, 2} - {axis}
        turn = np.eye(3)
        turn[a, a] = turn[b, b] = np.cos(angle)
        turn[a, b], turn[b, a] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    affine = np.eye(4)
    affine[:3, :3] = matrix
    affine[:3, 3] = draw(st.tuples(*[st.floats(-100, 100)] * 3))
    return affine, spacing


def blob(shape: tuple[int, ...], spacing: tuple[float, ...], radius: float = 14.0) -> np.ndarray:
    """A smooth ball off the middle, as a probability."""
    axes = np.meshgrid(*[(np.arange(n) - n * 0.55) * s for n, s in zip(shape, spacing, strict=True)], indexing="ij")
    return (1 / (1 + np.exp((np.sqrt(sum(a**2 for a in axes)) - radius) / 2))).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(affines(), st.floats(0.9, 3.0))
def test_there_and_back_restores_place_and_size(drawn, spacing: float) -> None:
    affine, own = drawn
    shape = tuple(int(80 / s) for s in own)
    volume = blob(shape, own)
    grid = Grid.of(shape, affine, spacing)
    back = grid.to_scanner(grid.to_model(volume))
    assert back.shape == shape
    before, after = (np.array(ndimage.center_of_mass(v > 0.5)) for v in (volume, back))
    assert np.abs((before - after) * own).max() < 0.5 * min(*own, spacing)
    overlap = 2 * np.sum((volume > 0.5) & (back > 0.5)) / (np.sum(volume > 0.5) + np.sum(back > 0.5))
    assert overlap > 0.9


@settings(max_examples=40, deadline=None)
@given(affines())
def test_the_models_grid_is_ras_and_where_the_world_says(drawn) -> None:
    """The oracle is nibabel's as_closest_canonical: the same voxels in the same order."""
    affine, _ = drawn
    data = np.random.default_rng(0).random((5, 6, 7), np.float32)
    canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, affine))
    grid = Grid.of(data.shape, affine, 1.0)
    assert np.array_equal(grid.to_ras(data), np.asarray(canonical.dataobj))
    assert np.allclose(grid.spacing, nibabel.affines.voxel_sizes(canonical.affine))
    assert grid.ras_shape == canonical.shape


def test_equal_spacing_changes_no_value() -> None:
    data = np.random.default_rng(0).random((9, 8, 7), np.float32)
    grid = Grid.of(data.shape, np.diag([-1.0, 1.0, 1.004, 1.0]), 1.0)
    assert np.array_equal(grid.to_scanner(grid.to_model(data)), data)


def test_a_linear_ramp_stays_linear() -> None:
    """Linear interpolation, up and down, reproduces a ramp (away from the border)."""
    ramp = np.broadcast_to(np.arange(60, dtype=np.float32)[:, None, None], (60, 4, 4))
    for spacing in (0.7, 2.3):
        grid = Grid.of(ramp.shape, np.eye(4), spacing)
        out = grid.to_model(np.ascontiguousarray(ramp))[:, 1, 1]
        inner = out[4:-4]
        assert np.allclose(np.diff(inner), spacing, atol=1e-3)
        middle = (out[(len(out) - 1) // 2] + out[len(out) // 2]) / 2
        assert abs(middle - 29.5) < 1e-3


def test_shrinking_does_not_alias() -> None:
    """A checkerboard of single voxels becomes an even grey, not a pattern."""
    board = (np.indices((60, 60, 8)).sum(0) % 2).astype(np.float32)
    out = Grid.of(board.shape, np.eye(4), 2.5).to_model(board)
    assert np.ptp(out[3:-3, 3:-3, 1:-1]) < 0.1


def test_units_other_than_millimetres() -> None:
    grid = Grid.of((10, 10, 10), np.diag([0.002, 0.002, 0.002, 1]), 1.0, unit=1000.0)
    assert np.allclose(grid.spacing, 2)
    assert grid.model_shape == (20, 20, 20)


def test_json_journey() -> None:
    import json
    from dataclasses import asdict

    grid = Grid.of((4, 5, 6), np.diag([-1.0, 2.0, 3.0, 1.0]), 1.5)
    assert Grid.from_json(json.loads(json.dumps(asdict(grid)))) == grid
