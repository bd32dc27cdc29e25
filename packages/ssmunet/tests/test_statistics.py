"""z-scores, class counts and weights of the training records, and one axis for all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput
from runner_ssmunet.statistics import Moments, axes_differ, balanced, common_axis, fit

AXIS = np.arange(1000.0, 1040.0, 8)
CLASSES = ("red", "green", "blue")


class Stored:
    """An array of every record, as the cache gives it."""

    def __init__(self, records: list[np.ndarray], reads: list[int]) -> None:
        self.records, self.reads = records, reads
        self.shapes, self.dtype = [record.shape for record in records], records[0].dtype

    def read(self, record: int, region: Any = None) -> np.ndarray:
        self.reads.append(record)
        return self.records[record]


@pytest.fixture
def store() -> Callable[..., Any]:
    """store(count) → what `fit` reads of a cache: records of different sizes."""

    def make(count: int = 4, seed: int = 0) -> Any:
        rng = np.random.default_rng(seed)
        shapes = [(5 + i, 9 - i) for i in range(count)]
        reads: list[int] = []
        arrays = {
            "spectra": [rng.normal(5, [1, 0.01, 3, 0.1, 0], (*shape, 5)).astype(np.float16) for shape in shapes],
            "tissue": [(rng.random(shape) < 0.6).astype(np.uint8) for shape in shapes],
            "label": [(rng.integers(0, 4, shape) * (rng.random(shape) < 0.4)).astype(np.uint8) for shape in shapes],
        }
        keys = [f"core_{i}" for i in range(count)]
        meta = [{"wavenumbers": AXIS.tolist(), "core": key} for key in keys]
        stored = {name: Stored(own, reads) for name, own in arrays.items()}
        return SimpleNamespace(keys=keys, meta=meta, arrays=stored, reads=reads)

    return make


def test_statistics_are_those_of_all_tissue_pixels_at_once(store) -> None:
    own = store()
    training = [0, 2, 3]
    found = fit(own, training, CLASSES, 0, 10)
    spectra, tissue, label = (own.arrays[name].records for name in ("spectra", "tissue", "label"))
    pixels = np.concatenate([spectra[r][tissue[r] > 0] for r in training]).astype(np.float64)
    np.testing.assert_allclose(found["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["std"][:4], pixels[:, :4].std(0), rtol=1e-10)
    assert found["std"][4] == 1  # a channel that never varies
    labels = np.concatenate([label[r][tissue[r] > 0] for r in training])
    off = np.concatenate([label[r][tissue[r] == 0] for r in training])
    assert found["off_tissue"] == (off > 0).sum() > 0
    assert found["class_counts"].tolist() == [int((labels == k).sum()) for k in (1, 2, 3)]
    np.testing.assert_array_equal(found["wavenumbers"], AXIS)


def test_records_outside_the_training_split_are_not_read(store) -> None:
    own = store()
    fit(own, [1, 3], CLASSES, 0, 10)
    assert set(own.reads) == {1, 3}


def test_without_an_ignored_label_the_unannotated_are_counted(store) -> None:
    own = store()
    found = fit(own, [0, 1], CLASSES, None, 10)
    label, tissue = (own.arrays[name].records for name in ("label", "tissue"))
    there = np.concatenate([label[r][tissue[r] > 0] for r in (0, 1)])
    assert found["class_counts"].tolist() == np.bincount(there, minlength=4).tolist()
    assert found["class_weights"].argmin() == 0


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.integers(0, 40), min_size=1, max_size=6), offset=st.sampled_from([0.0, 1.0, 1e3]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_moments_added_in_parts_are_those_of_the_whole(parts: list[int], offset: float, seed: int) -> None:
    """Also where the mean is a hundred thousand deviations, which costs plain sums of squares ten digits."""
    rng = np.random.default_rng(seed)
    pixels = [offset + rng.normal(0, 0.01, (count, 3)) for count in parts]
    moments = Moments(3)
    for part in pixels:
        moments.add(part)
    whole = np.concatenate(pixels)
    assert moments.count == len(whole)
    if len(whole) > 1:
        np.testing.assert_allclose(moments.mean, whole.mean(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(moments.std(), whole.std(0), rtol=1e-7)


def test_many_pixels_are_added_a_few_at_once(monkeypatch) -> None:
    pixels = np.random.default_rng(0).normal(3, 2, (100, 4)).astype(np.float16)
    monkeypatch.setattr("runner_ssmunet.statistics._ROWS", 7)
    moments = Moments(4)
    moments.add(pixels)
    np.testing.assert_allclose(moments.std(), pixels.astype(np.float64).std(0))


def test_weights_make_every_class_count_the_same() -> None:
    counts = np.array([400, 100, 50])
    np.testing.assert_allclose(balanced(counts, 10) * counts, 100)
    assert balanced(np.array([1000, 1000, 1]), 10).tolist() == [1, 1, 10]
    assert balanced(np.array([5, 0, 5]), 10).tolist() == [1, 1, 1]


def test_nothing_to_learn_from(store) -> None:
    own = store(2)
    for label in own.arrays["label"].records:
        label[...] = 0
    with pytest.raises(BadInput, match="none of the 2 training records has an annotated pixel"):
        fit(own, [0, 1], CLASSES, 0, 10)
    own.arrays["tissue"].records[1][...] = 0
    with pytest.raises(BadInput, match="none of the 1 training record has a tissue pixel"):
        fit(own, [1], CLASSES, 0, 10)


def test_a_single_class_is_nothing_to_learn(store) -> None:
    own = store(2)
    for label in own.arrays["label"].records:
        label[label > 0] = 2
    with pytest.raises(BadInput, match="one class only is annotated in the 2 training records, green"):
        fit(own, [0, 1], CLASSES, 0, 10)
    assert fit(own, [0, 1], CLASSES, None, 10)["class_counts"].tolist()[3] == 0


def test_axes_that_differ_name_both_cores_and_the_remedy(store) -> None:
    own = store()
    own.meta[3]["wavenumbers"][2] += 2
    message = (
        r"core_0 and core_3 have different wavenumbers: number 3 is 1016 and 1018 cm⁻¹\. Set data.step \(8 cm⁻¹, say\)"
    )
    with pytest.raises(BadInput, match=message):
        fit(own, [0, 1], CLASSES, 0, 10)  # the record that differs is not even one to train on
    own.meta[3]["wavenumbers"] = AXIS[:-1].tolist()
    with pytest.raises(BadInput, match="5 wavenumbers from 1000 to 1032 cm⁻¹ and 4 wavenumbers from 1000 to 1024"):
        fit(own, [0, 1], CLASSES, 0, 10)


def test_axes_may_differ_by_rounding() -> None:
    assert not axes_differ(AXIS, np.round(AXIS + 0.4))
    assert axes_differ(AXIS, AXIS + 1)
    np.testing.assert_array_equal(common_axis([("a", {"wavenumbers": [1.0]}), ("b", {"wavenumbers": [1.05]})]), [1.0])
