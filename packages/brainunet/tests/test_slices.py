"""Volumes as stacks of slices, robust scaling, Otsu."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_brainunet.slices import AXIS, Layout, otsu, to_uint8, windows
from runner_core.testing import open_store, prepared
from scipy import ndimage

VIEWS = ("axial", "coronal", "sagittal")


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(*[st.integers(2, 24)] * 3), st.sampled_from([8, 16]),
    st.lists(st.sampled_from(VIEWS), min_size=1, unique=True), st.integers(0, 2),
)  # fmt: skip
def test_fuse_undoes_slices_wherever_a_square_reaches(shape, size, views, gap) -> None:
    layout = Layout(shape, size, tuple(views), gap)
    volume = np.random.default_rng(0).integers(1, 255, shape).astype(np.float32)
    rows = layout.slices(volume)
    assert rows.shape == (layout.rows, size, size)
    assert rows.flags.c_contiguous
    assert layout.view_of_row().shape == (layout.rows, 1)
    back = layout.fuse(rows)
    kept = back > 0
    assert np.allclose(back[kept], volume[kept])
    assert kept.sum() == np.prod([min(n, size) for n in shape])


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(*[st.integers(2, 40)] * 3), st.sampled_from([8, 16, 32]), st.sampled_from([1, 2, 4, 8]),
    st.lists(st.sampled_from(VIEWS), min_size=1, unique=True), st.integers(0, 2),
)  # fmt: skip
def test_the_parts_of_squares_hold_the_whole_head(shape, size, multiple, views, gap) -> None:
    layout = Layout(shape, size, tuple(views), gap)
    rows = layout.slices(np.ones(shape, np.uint8))
    filled = rows.copy()
    for block, *sides in layout.parts(multiple):
        for side, axis in zip(sides, (1, 2), strict=True):
            assert side.start % multiple == side.stop % multiple == 0
            assert 0 <= side.start < side.stop <= size
            first = int(rows[block].any(axis=(0, 3 - axis)).argmax())
            assert side.start <= max(0, first - multiple), "with air around it"
        filled[(block, *sides)] = 0
    assert not filled.any()


def test_a_tall_volume_loses_its_lower_end() -> None:
    volume = np.zeros((4, 4, 20), np.float32)
    volume[:, :, 19] = 1
    assert Layout((4, 4, 20), 8, ("coronal",), 0).fuse(Layout((4, 4, 20), 8, ("coronal",), 0).slices(volume)).any()


def test_axes_of_each_view() -> None:
    """Axial slices are (y, x), coronal (z, x), sagittal (z, y)."""
    volume = np.arange(2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6) + 1
    for view, order in (("axial", (2, 1, 0)), ("coronal", (1, 2, 0)), ("sagittal", (0, 2, 1))):
        rows = Layout(volume.shape, 8, (view,), 0).slices(volume)
        expected = volume.transpose(order)
        assert rows.shape[0] == volume.shape[AXIS[view]]
        for row, slice_ in zip(rows, expected, strict=True):
            assert np.array_equal(row[row > 0], slice_.ravel())


def test_windows_match_what_training_reads(project, write_head) -> None:
    """Prediction's windows are the rows that training gathers: the same neighbours at every end."""
    project.config.cache.mode = "memory"
    write_head()
    records = project.records(write_head("sub-02/sub-02_ses-1_T1w").parent.parent)
    store = open_store(project, records)
    samples = project.samples(store, [1], "train")
    out = {name: np.empty((len(samples), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    numbers = np.arange(len(samples))
    samples.fill(numbers, numbers, seed=0, epoch=0, out=out)
    arrays = prepared(project, records[1]).arrays
    assert np.array_equal(out["image"], windows(arrays["image"], 3))
    assert np.array_equal(out["mask"][:, 0], arrays["mask"])
    assert np.array_equal(out["view"].reshape(-1, 1), arrays["view"])
    assert set(out["record"]) == {1}


def test_no_slice_has_a_neighbour_of_another_view() -> None:
    layout = Layout((6, 6, 6), 8, VIEWS, 1)
    numbered = layout.view_of_row()[:, 0].astype(int) + 1
    filled = layout.slices(np.ones((6, 6, 6), np.float32)).any(axis=(1, 2))
    around = windows((numbered * filled)[:, None, None], 3)[filled][:, :, 0, 0]
    assert all(set(w) <= {0, w[1]} for w in around)


@settings(max_examples=50, deadline=None)
@given(st.tuples(*[st.integers(2, 24)] * 3), st.sampled_from([8, 16]), st.integers(0, 2))
def test_mirrored_slices_are_those_of_the_mirrored_head(shape, size, gap) -> None:
    """Also where the head is cut: what the squares hold is mirrored, and mirrored back it is where it was."""
    layout = Layout(shape, size, VIEWS, gap)
    rows = layout.slices(np.random.default_rng(0).random(shape).astype(np.float32))
    turned = layout.mirrored_slices(rows)
    np.testing.assert_allclose(turned, layout.slices(layout.mirrored(layout.fuse(rows))), rtol=1e-6)
    assert np.array_equal(layout.mirrored_slices(turned), rows)
    if shape[0] <= size:
        assert np.array_equal(layout.mirrored(layout.fuse(rows)), layout.fuse(rows)[::-1])


@given(st.floats(0.01, 1000), st.floats(-500, 500))
@settings(max_examples=30, deadline=None)
def test_scaling_ignores_gain_and_offset(gain: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    volume = ndimage.gaussian_filter(rng.random((20, 20, 20)), 2) * 100
    volume[:8] = 0
    a, b = to_uint8(volume.astype(np.float32)), to_uint8((volume * gain + offset).astype(np.float64))
    assert np.abs(a.astype(int) - b.astype(int)).max() <= 1
    assert a.max() == 255
    assert a.min() == 0


def test_few_hot_voxels_do_not_darken_the_head() -> None:
    volume = np.zeros((30, 30, 30), np.float32)
    volume[5:25, 5:25, 5:25] = 100
    hot = volume.copy()
    hot[10, 10, 10:14] = 1e6
    assert np.abs(to_uint8(hot)[6:9].astype(int) - to_uint8(volume)[6:9].astype(int)).max() <= 3


def test_otsu_maximises_the_variance_between_classes() -> None:
    """Against the definition, tried at every threshold."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(20, 5, 4000), rng.normal(90, 15, 2000)]).clip(0)

    def between(t: float) -> float:
        low, high = values[values <= t], values[values > t]
        return len(low) * len(high) * (low.mean() - high.mean()) ** 2

    best = max(np.linspace(5, 110, 400), key=between)
    assert otsu(values) == pytest.approx(best, abs=1.0)
