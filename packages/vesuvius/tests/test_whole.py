"""Windows over a volume: what they add up to, and how much memory they hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import Arrays
from runner_vesuvius.whole import SIGMA, calls, predict

SHAPE = st.tuples(*[st.integers(1, 24)] * 3)
PATCH = st.tuples(*[st.integers(1, 12)] * 3)
OVERLAP = st.floats(0, 0.9)


def answer(arrays: Arrays) -> Arrays:
    """Stands in for a network that sees its surroundings: depends on the whole window and on the place in it."""
    windows = arrays["image"].astype(np.float64) / 255
    around = windows.mean(axis=(1, 2, 3), keepdims=True)
    ramp = np.linspace(0, 1, windows.shape[1])[:, None, None]
    return {"prediction": (0.5 * windows + 0.3 * around + 0.2 * ramp)[:, None].astype(np.float32)}


def constant(value: float) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {"prediction": np.full((len(arrays["image"]), 1, *arrays["image"].shape[1:]), value, "f4")}


def reference(image: np.ndarray, patch: tuple[int, ...], overlap: float) -> np.ndarray:
    """The definition: the padded volume, a float64 accumulator of it and one of the weights."""
    before = [max(0, side - n) // 2 for n, side in zip(image.shape, patch, strict=True)]
    beyond = [(b, max(0, side - n) - b) for b, n, side in zip(before, image.shape, patch, strict=True)]
    padded = np.pad(image, beyond, mode="reflect")
    gauss = [np.exp(-0.5 * ((np.arange(p) - (p - 1) / 2) / (SIGMA * p)) ** 2) for p in patch]
    weight = gauss[0][:, None, None] * gauss[1][:, None] * gauss[2]
    starts = []
    for n, side in zip(padded.shape, patch, strict=True):
        step = max(1, int(np.floor(side * (1 - overlap) + 1e-9)))
        starts.append(np.rint(np.linspace(0, n - side, 1 + int(np.ceil((n - side) / step)))).astype(int))
    total, weights = np.zeros(padded.shape), np.zeros(padded.shape)
    for place in product(*starts):
        region = tuple(slice(s, s + p) for s, p in zip(place, patch, strict=True))
        total[region] += weight * answer({"image": padded[region][None]})["prediction"][0, 0]
        weights[region] += weight
    inside = tuple(slice(b, b + n) for b, n in zip(before, image.shape, strict=True))
    return (255 * total / weights)[inside]


@settings(max_examples=60, deadline=None)
@given(SHAPE, PATCH, OVERLAP, st.integers(1, 5))
def test_windows_add_up_to_the_definition(shape, patch, overlap, batch) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = predict(image, answer, patch, overlap, batch)
    assert found.dtype == np.uint8
    assert np.abs(found - reference(image, patch, overlap)).max() <= 0.5 + 2e-3


@settings(max_examples=30, deadline=None)
@given(SHAPE, PATCH, OVERLAP, st.integers(0, 255))
def test_a_constant_network_gives_a_constant_volume(shape, patch, overlap, value) -> None:
    found = predict(np.zeros(shape, np.uint8), constant(value / 255), patch, overlap, 2)
    assert (found == value).all()


def test_an_undecided_network_is_undecided_in_the_same_way_everywhere() -> None:
    """The last digit of the answer, rounded to half a step, must not become a pattern."""
    found = predict(np.zeros((30, 30, 30), np.uint8), constant(0.5), (8, 9, 10), 0.4, 3)
    assert (found == 128).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 50), OVERLAP)
def test_neighbours_share_what_was_asked_and_every_voxel_is_seen(n, side, overlap) -> None:
    from runner_vesuvius.whole import Axis

    axis = Axis(n, side, overlap)
    assert axis.starts[0] == 0
    assert axis.starts[-1] + axis.kept == n
    assert (np.diff(axis.starts) <= max(1, side * (1 - overlap)) + 1).all()
    assert (np.diff(axis.starts) > 0).all()
    assert (axis.sum > 0).all()


def test_windows_come_in_batches_of_the_size_that_was_asked() -> None:
    sizes = []

    def infer(arrays: Arrays) -> Arrays:
        assert arrays["image"].dtype == np.uint8
        assert arrays["image"].shape[1:] == (8, 8, 8)
        sizes.append(len(arrays["image"]))
        return answer(arrays)

    predict(np.zeros((20, 20, 20), np.uint8), infer, (8, 8, 8), 0.5, 4)
    assert max(sizes) == 4
    assert sum(sizes) == 4**3


def test_values_beyond_0_and_1_stay_in_range() -> None:
    """Rounding in bfloat16 may leave them."""
    image = np.zeros((9, 9, 9), np.uint8)
    assert (predict(image, constant(1.01), (4, 4, 4), 0.5, 8) == 255).all()
    assert (predict(image, constant(-0.01), (4, 4, 4), 0.5, 8) == 0).all()


class Endless:
    """An image that is nowhere: only the windows that are asked for exist."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def __getitem__(self, region: tuple[slice, slice, slice]) -> np.ndarray:
        return np.full([part.stop - part.start for part in region], 7, np.uint8)


@pytest.mark.parametrize("depth", [64, 1024])
def test_memory_does_not_grow_with_the_volume_beyond_its_answer(depth) -> None:
    """The answer (uint8), 16 open planes of float32, 2 windows; float32 of the whole would be 4 × the answer."""
    shape, patch = (depth, 96, 96), (16, 32, 32)
    tracemalloc.start()
    found = predict(Endless(shape), constant(0.5), patch, 0.0, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    planes, windows = 4 * 16 * 96 * 96, 2 * 16 * 32 * 32
    assert peak < found.nbytes + planes + 40 * windows


@given(SHAPE, PATCH, OVERLAP, st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_calls_are_counted_before_the_first(shape, patch, overlap, batch) -> None:
    done = []

    def infer(arrays: Arrays) -> Arrays:
        done.append(len(arrays["image"]))
        return constant(0.5)(arrays)

    predict(np.zeros(shape, np.uint8), infer, patch, overlap, batch)
    assert len(done) == calls(shape, patch, overlap, batch)
