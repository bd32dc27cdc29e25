"""Scores from confusion matrices: against counting, and the core's own metric."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runner_core import Confusion
from runner_ssmunet import scores

NAMES = ("a", "b", "c")
PIXELS = st.integers(0, 40).flatmap(
    lambda n: st.tuples(
        arrays(np.int64, n, elements=st.integers(-1, 2)), arrays(np.int64, n, elements=st.integers(-1, 2))
    )
)


@given(PIXELS)
@settings(max_examples=60, deadline=None)
def test_confusion_is_what_counting_gives(pixels: tuple[np.ndarray, np.ndarray]) -> None:
    predicted, true = pixels
    counts = scores.confusion(predicted, true, 3)
    for t in range(3):
        for column, p in enumerate((0, 1, 2, -1)):
            assert counts[t, column] == sum(a == p and b == t for a, b in zip(predicted, true, strict=True))
    assert counts.sum() == (true >= 0).sum()


@given(PIXELS)
@settings(max_examples=60, deadline=None)
def test_the_summary_equals_the_metric_of_the_validation(pixels: tuple[np.ndarray, np.ndarray]) -> None:
    predicted, true = pixels[0].clip(0), pixels[1]
    metric = Confusion(NAMES, lambda found, batch: (found, batch["target"]))
    metric.update(torch.from_numpy(predicted), {"target": torch.from_numpy(true)})
    expected, found = metric.compute(), scores.summary(scores.confusion(predicted, true, 3), NAMES)
    for name in ("miou", "macro_f1", "accuracy", "iou_a", "iou_b", "iou_c"):
        assert found[name] == pytest.approx(expected[name], nan_ok=True), name


def test_by_hand() -> None:
    """Class a: 3 right, 1 taken for b, 1 left out by the tissue mask; b: 2 right; c: nowhere."""
    true = np.array([0, 0, 0, 0, 0, 1, 1, -1])
    predicted = np.array([0, 0, 0, 1, -1, 1, 1, 2])
    found = scores.summary(scores.confusion(predicted, true, 3), NAMES)
    assert found["iou_a"] == pytest.approx(3 / 5)
    assert found["iou_b"] == pytest.approx(2 / 3)
    assert math.isnan(found["iou_c"])
    assert found["miou"] == pytest.approx((3 / 5 + 2 / 3) / 2)
    assert found["macro_f1"] == pytest.approx((6 / 8 + 4 / 5) / 2)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["pixels"] == 7


@given(PIXELS)
@settings(max_examples=60, deadline=None)
def test_a_core_is_scored_over_the_classes_of_its_annotation(pixels: tuple[np.ndarray, np.ndarray]) -> None:
    """Against the definition, set by set of pixels in float64: others than these, however predicted, count nowhere."""
    predicted, true = pixels
    found = scores.core_scores(scores.confusion(predicted, true, 3), NAMES)
    ious, f1s = [], []
    for k, name in enumerate(NAMES):
        own, taken = true == k, (predicted == k) & (true >= 0)
        if not own.any():
            assert math.isnan(found[f"iou_{name}"])
            continue
        ious.append(np.float64((own & taken).sum()) / (own | taken).sum())
        f1s.append(2 * np.float64((own & taken).sum()) / (own.sum() + taken.sum()))
        assert found[f"iou_{name}"] == pytest.approx(ious[-1])
    assert found["miou"] == pytest.approx(np.mean(ious) if ious else math.nan, nan_ok=True)
    assert found["macro_f1"] == pytest.approx(np.mean(f1s) if f1s else math.nan, nan_ok=True)


def test_a_stray_pixel_of_an_absent_class_moves_a_core_little_and_the_set_by_its_class() -> None:
    true = np.zeros(1000, int)
    predicted = true.copy()
    predicted[0] = 1
    core = scores.core_scores(scores.confusion(predicted, true, 3), NAMES)
    assert core["miou"] == pytest.approx(0.999)
    together = scores.pooled([core], NAMES)
    assert together["iou_b"] == 0
    assert together["miou"] == pytest.approx(0.999 / 2)


def test_a_set_is_scored_by_the_sum_of_its_counts() -> None:
    """Two cores, each of which shows one class only: the mean of their scores would hide that b is never found."""
    one = scores.confusion(np.zeros(10, int), np.zeros(10, int), 3)
    two = scores.confusion(np.zeros(5, int), np.ones(5, int), 3)
    cores = [scores.core_scores(one, NAMES), scores.core_scores(two, NAMES)]
    together = scores.pooled(cores, NAMES)
    assert together["iou_a"] == pytest.approx(10 / 15)
    assert together["iou_b"] == 0
    assert together["miou"] == pytest.approx(1 / 3)
    assert together["pixels_a_as_a"] == 10
    assert together["pixels_b_as_a"] == 5
    assert set(together) == set(cores[0])
    classes, confusion = scores.tables(cores, [], NAMES)
    assert "IoU of the baseline" not in classes.columns
    beside, _ = scores.tables(cores, cores, NAMES)
    place = beside.columns.index("IoU of the baseline")
    assert [row[place] for row in beside.rows][:2] == [pytest.approx(10 / 15), 0]
    assert [row[:2] for row in classes.rows] == [["a", 10.0], ["b", 5.0], ["c", 0.0]]
    assert [row[1:] for row in confusion.rows] == [[10, 0, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]]
    assert all(len(row) == len(table.columns) for table in (classes, confusion) for row in table.rows)


def test_no_annotated_pixel_is_no_score() -> None:
    found = scores.core_scores(np.zeros((3, 4), int), NAMES)
    assert all(math.isnan(found[name]) for name in ("miou", "macro_f1", "accuracy", "iou_a"))
    assert found["pixels"] == 0


def test_what_is_shown_is_a_score() -> None:
    assert set(scores.SHOWN) <= set(scores.core_scores(np.ones((3, 4), int), NAMES))
