"""Metrics on the device against NumPy, torchmetrics and MONAI."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput

torch = pytest.importorskip("torch")
from runner_core.engines.torch.metrics import (  # noqa: E402
    Confusion,
    MonaiMetric,
    Overlap,
    TorchFunctionMetric,
    TorchMetric,
    count_true,
)


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
    accuracy = TorchFunctionMetric("accuracy", lambda p, b: ((p > 0) == (b["mask"] > 0)).float().mean())
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


CLASSES = ("epithelium", "stroma", "blood", "nerve")


def confused(batches_of_classes, prefix=""):
    metric = Confusion(CLASSES, lambda p, b: (p, b["true"]), prefix)
    metric.reset()
    for predicted, true in batches_of_classes:
        metric.update(torch.from_numpy(predicted), {"true": torch.from_numpy(true)})
    return metric.compute()


@given(st.integers(0, 10**6), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_confusion_by_its_definition(seed, lengths, occurring):
    """In any batches, some classes never occurring, some pixels without an answer, unannotated ones with any."""
    rng = np.random.default_rng(seed)
    found = [(rng.integers(-1, occurring, (n, 3, 4)), rng.integers(-1, occurring, (n, 3, 4))) for n in lengths]
    predicted, true = (np.concatenate(parts).ravel() for parts in zip(*found, strict=True))
    predicted, true = predicted[true >= 0], true[true >= 0]
    iou, f1, expected = [], [], {}
    for number, name in enumerate(CLASSES):
        p, t = set(np.flatnonzero(predicted == number)), set(np.flatnonzero(true == number))
        expected[f"x_iou_{name}"] = len(p & t) / len(p | t) if p | t else np.nan
        expected[f"x_recall_{name}"] = len(p & t) / len(t) if t else np.nan
        if p | t:
            iou.append(len(p & t) / len(p | t))
            f1.append(2 * len(p & t) / (len(p) + len(t)))
    expected |= {"x_miou": np.mean(iou) if iou else np.nan, "x_macro_f1": np.mean(f1) if f1 else np.nan}
    expected["x_accuracy"] = (predicted == true).mean() if len(true) else np.nan
    assert confused(found, "x_") == pytest.approx(expected, nan_ok=True)


def test_confusion_agrees_with_torchmetrics():
    scores = pytest.importorskip("torchmetrics.classification")
    rng = np.random.default_rng(3)
    predicted, true = rng.integers(0, 4, (5, 16, 16)), rng.integers(-1, 4, (5, 16, 16))
    values = confused([(predicted, true)])
    for name, kind, average in (
        ("miou", scores.MulticlassJaccardIndex, "macro"),
        ("macro_f1", scores.MulticlassF1Score, "macro"),
        ("accuracy", scores.MulticlassAccuracy, "micro"),
    ):
        metric = kind(4, average=average, ignore_index=-1)
        assert values[name] == pytest.approx(float(metric(torch.from_numpy(predicted), torch.from_numpy(true)))), name


def test_confusion_of_nothing_is_no_number():
    nothing = (np.zeros((2, 3), np.int64), np.full((2, 3), -1))
    for found in ([], [nothing]):
        values = confused(found)
        assert len(values) == 11
        assert np.isnan(list(values.values())).all()


def test_confusion_forgets_at_reset():
    metric = Confusion(CLASSES, lambda p, b: (p, b["true"]))
    ones = torch.ones(4, dtype=torch.int64)
    metric.update(ones, {"true": ones * 0})
    metric.reset()
    metric.update(ones.to(torch.uint8), {"true": ones.to(torch.int32)})
    assert metric.compute()["accuracy"] == 1.0


@pytest.mark.parametrize(("predicted", "true"), [(4, 0), (-2, 0), (0, 4)])
def test_classes_that_are_not_there_are_refused(predicted, true):
    """Counted in a neighbour's cell they would go unnoticed."""
    with pytest.raises(BadInput, match=r"1 pixels have a predicted class outside 0…3.*epithelium"):
        confused([(np.array([predicted, 1]), np.array([true, 1]))])
    if true == 0:
        assert np.isnan(confused([(np.array([predicted]), np.array([-1]))])["miou"])


def test_confusion_of_other_shapes_is_refused():
    with pytest.raises(BadInput, match=r"the shape \(3,\), true ones \(3, 1\)"):
        confused([(np.zeros(3, np.int64), np.zeros((3, 1), np.int64))])
