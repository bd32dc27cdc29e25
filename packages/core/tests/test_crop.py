"""Croppers against brute force and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from runner_core import BadInput, Box, DataSet, RunConfig
from runner_core.config import CropConfig
from runner_core.data.crop import (
    BodyCrop,
    CentreCrop,
    ForegroundCrop,
    NoCrop,
    default_cropper,
    largest_object,
    otsu_threshold,
)

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9)
MASKS = hnp.arrays(bool, SHAPES)


@settings(deadline=None)  # the machine is shared
@given(MASKS)
def test_restore_puts_the_crop_back_where_it_was(mask):
    box = ForegroundCrop(0.0, margin=0).box(mask.astype(np.uint8), (1.0,) * mask.ndim)
    restored = box.restore(box.crop(mask))
    assert np.array_equal(restored, mask)  # nothing of the foreground was outside
    if mask.any():  # and the box is as small as it can be
        for axis in range(mask.ndim):
            planes = np.moveaxis(box.crop(mask), axis, 0)
            assert planes[0].any()
            assert planes[-1].any()


@settings(deadline=None)  # the machine is shared
@given(mask=MASKS, margin=st.integers(0, 4))
def test_margin_grows_the_box_within_the_grid(mask, margin):
    tight, wide = (ForegroundCrop(0.5, m).box(mask * 1.0, (1.0,) * mask.ndim) for m in (0, margin))
    if mask.any():
        assert wide.start == tuple(max(0, a - margin) for a in tight.start)
        assert wide.stop == tuple(min(n, b + margin) for b, n in zip(tight.stop, mask.shape, strict=True))
    else:
        assert wide == Box((0,) * mask.ndim, mask.shape, mask.shape)


@settings(deadline=None)  # the machine is shared
@given(MASKS)
def test_largest_object_agrees_with_scipy(mask):
    ndimage = pytest.importorskip("scipy.ndimage")
    labels, count = ndimage.label(mask)
    ours = largest_object(mask)
    if not count:
        assert not ours.any()
        return
    sizes = np.bincount(labels.ravel())[1:]
    found = np.unique(labels[ours])
    assert found.size == 1  # one object, whole, and none is larger
    assert ours.sum() == sizes[found[0] - 1] == sizes.max()


def test_largest_object_follows_a_winding_path():
    spiral = np.zeros((21, 21), bool)
    for i in range(0, 21, 2):
        spiral[i] = True
        spiral[min(i + 1, 20), 20 if i % 4 == 0 else 0] = True
    spiral[1, 5] = False
    spiral[20] = False
    assert np.array_equal(largest_object(spiral), spiral)


@settings(deadline=None)  # the machine is shared
@given(hnp.arrays(np.uint8, st.integers(2, 60), elements=st.integers(0, 40)))
def test_otsu_maximises_the_variance_between_classes(values):
    values = values.astype(float)
    if np.ptp(values) == 0:
        return
    ours = _between(values, otsu_threshold(values, bins=2048))
    best = max(_between(values, t) for t in np.unique(values)[:-1])
    assert ours == pytest.approx(best, rel=0.02)


def _between(values, threshold):
    low, high = values[values <= threshold], values[values > threshold]
    return len(low) * len(high) * (low.mean() - high.mean()) ** 2 if len(low) and len(high) else 0.0


@pytest.mark.parametrize("side", [40, 200])  # below and above the coarse grid
def test_body_finds_the_head_and_not_the_specks(side):
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, side)] * 3, indexing="ij"))
    head = (grid**2).sum(0) < 0.3
    guide = head * 100.0 + rng.normal(0, 3, head.shape)
    guide[0, 0, 0] = guide[-1, -1, -1] = 300.0  # noise in the corners: foreground, but no head
    box = BodyCrop(margin=0).box(guide, (1.0, 1.0, 1.0))
    assert box.crop(head).sum() == head.sum()
    assert np.prod(box.crop(head).shape) < 1.2 * np.ptp(np.argwhere(head), axis=0).prod() + 0.1 * head.size
    assert box == BodyCrop(margin=0).box(guide, (1.0, 1.0, 1.0))


def test_centre_and_channels_after_the_grid():
    assert CentreCrop((4, 6)).box(np.zeros((10, 5, 3)), (1.0, 1.0)) == Box((3, 0), (7, 5), (10, 5))
    channels = np.zeros((8, 8, 2))
    channels[2:4, 5, 1] = 1
    assert ForegroundCrop(0.0, 0).box(channels, (1.0, 1.0)) == Box((2, 5), (4, 6), (8, 8))
    with pytest.raises(BadInput, match=r"crop\.size has 2 numbers"):
        CentreCrop((4, 6)).box(np.zeros((3, 3, 3)), (1.0,) * 3)


class _Project:
    dataset = DataSet(crop="body")


@pytest.mark.parametrize(
    "settings_, expected",
    [
        (CropConfig(), BodyCrop(4)),
        (CropConfig(mode="none"), NoCrop()),
        (CropConfig(mode="centre", size=(3, 4)), CentreCrop((3, 4))),
        (CropConfig(mode="foreground", threshold=2.0, margin=1), ForegroundCrop(2.0, 1)),
    ],
)
def test_default_cropper_follows_the_settings(settings_, expected):
    assert default_cropper(_Project(), RunConfig(crop=settings_)) == expected


def test_centre_needs_a_size():
    with pytest.raises(BadInput, match=r"crop\.size"):
        default_cropper(_Project(), RunConfig(crop=CropConfig(mode="centre")))


def test_settings_tell_croppers_apart():
    croppers = [NoCrop(), CentreCrop((2, 2)), CentreCrop((2, 3)), ForegroundCrop(), ForegroundCrop(1.0), BodyCrop(2)]
    assert len({repr(dict(c.settings)) for c in croppers}) == len(croppers)
