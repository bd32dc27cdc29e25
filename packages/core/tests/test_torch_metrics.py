"""Metrics on the device against NumPy, torchmetrics and MONAI."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from runner_core.engines.torch.metrics import Function, MonaiMetric, Overlap, TorchMetric, count_true  # noqa: E402


def batches(seed, lengths=(5, 1, 4), records=3, empty=False):
    """Slices of a few records, shuffled into batches; and all of them together."""
    rng = np.random.default_rng(seed)
    found = []
    for length in lengths:
        prediction = rng.random((length, 1, 6, 7)) < (0.0 if empty else 0.4)
        mask = rng.random((length, 1, 6, 7)) < (0.0 if empty else 0.5)
        found.append((prediction, mask, rng.integers(0, records, length) * 1000))
    return found


def fed(metric, found):
    metric.reset()
    for prediction, mask, record in found:
        logits = torch.from_numpy(prediction).float() * 4 - 2
        metric.update(logits, {"mask": torch.from_numpy(mask).byte(), "record": torch.from_numpy(record)})
    return metric.compute()


def read(prediction, batch):
    return prediction > 0, batch["mask"] > 0


@given(st.integers(0, 10**6), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_overlap_is_that_of_whole_records(seed, lengths, records):
    """Slices of a record may come in any batch: Dice and IoU are of the record, then averaged over records."""
    found = batches(seed, lengths, records)
    predicted, true, record = (np.concatenate(parts) for parts in zip(*found, strict=True))
    dice, iou = [], []
    for number in np.unique(record):
        p, t = predicted[record == number], true[record == number]
        dice.append(2 * (p & t).sum() / (p.sum() + t.sum()))
        iou.append((p & t).sum() / (p | t).sum())
    values = fed(Overlap(read, prefix="brain_"), found)
    assert values == pytest.approx({"brain_dice": np.mean(dice), "brain_iou": np.mean(iou)})


def test_overlap_of_nothing_with_nothing_is_one():
    assert fed(Overlap(read), batches(0, empty=True)) == {"dice": 1.0, "iou": 1.0}


@given(st.integers(0, 4), st.integers(0, 9000), st.floats(0, 1), st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_counts_in_lanes(samples, size, share, offset):
    """All sizes and memory offsets: all true, so that lanes are as full as they can be, included."""
    values = np.random.default_rng(size).random(samples * size + offset) <= share
    mask = torch.from_numpy(values)[offset:].view(samples, size)
    assert count_true(mask).tolist() == values[offset:].reshape(samples, size).sum(1).tolist()
    assert count_true(~mask[:, ::2]).tolist() == (~mask[:, ::2]).numpy().sum(1).tolist()


def test_reset_forgets():
    metric = Overlap(read)
    fed(metric, batches(0))
    assert fed(metric, batches(1)) == fed(Overlap(read), batches(1))


def test_large_counts_are_exact():
    """Beyond float32's 2²⁴: counts are integers."""
    metric = Overlap(lambda p, b: (p, b["mask"]))
    ones = torch.ones(3, 3000, 3000, dtype=torch.bool)
    mask = ones.clone()
    mask[0, 0, 0] = False
    metric.update(ones, {"mask": mask, "record": torch.zeros(3, dtype=torch.int64)})
    n = 27_000_000
    assert metric.compute()["dice"] == 2 * (n - 1) / (2 * n - 1)


def test_function_weights_by_samples():
    found = batches(3)
    accuracy = Function("accuracy", lambda p, b: ((p > 0) == (b["mask"] > 0)).float().mean())
    predicted, true, _ = (np.concatenate(parts) for parts in zip(*found, strict=True))
    assert fed(accuracy, found) == pytest.approx({"accuracy": (predicted == true).mean()})


def test_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    found = batches(4)
    predicted, true, _ = (np.concatenate(parts) for parts in zip(*found, strict=True))
    one = TorchMetric(torchmetrics.classification.BinaryAccuracy(), read, "accuracy")
    assert fed(one, found) == pytest.approx({"accuracy": (predicted == true).mean()})
    assert fed(one, batches(5)) != fed(one, found)
    many = TorchMetric(
        torchmetrics.MetricCollection(
            [torchmetrics.classification.BinaryAccuracy(), torchmetrics.classification.BinaryRecall()]
        ),
        read,
    )
    recall = (predicted & true).sum() / true.sum()
    assert fed(many, found) == pytest.approx({"BinaryAccuracy": (predicted == true).mean(), "BinaryRecall": recall})


def test_monai():
    monai = pytest.importorskip("monai.metrics")
    found = batches(6)
    metric = MonaiMetric(monai.DiceMetric(), lambda p, b: ((p > 0).float(), b["mask"].float()), "slice_dice")
    dice = [2 * (p & t).sum() / (p.sum() + t.sum()) for ps, ts, _ in found for p, t in zip(ps, ts, strict=True)]
    assert fed(metric, found) == pytest.approx({"slice_dice": np.mean(dice)})
    assert fed(metric, batches(7)) != fed(metric, found)


def test_vectors_get_numbered_names():
    class PerClass:
        def reset(self):
            pass

        def to(self, device):
            pass

        def update(self, predicted, true):
            pass

        def compute(self):
            return torch.tensor([0.25, 0.5])

    assert fed(TorchMetric(PerClass(), read, "f1"), batches(0)) == {"f1_0": 0.25, "f1_1": 0.5}
