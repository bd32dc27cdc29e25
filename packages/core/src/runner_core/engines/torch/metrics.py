"""Metrics that accumulate on the device and are read once: record overlap, class confusion, and adapters.

All take the project's prediction and the batch that `Project.on_device` returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from runner_core.base.errors import BadInput
from runner_core.contract import Arrays, Tensors, added
from runner_core.engines.torch.accelerator import wide

Read = Callable[[Any, Tensors], tuple[Any, Any]]
"""Maps (prediction, batch) to the two things that the metric compares: (predicted, true)."""


class TorchFunctionMetric:
    """Mean over samples of a function (prediction, batch) → its mean over that batch (0-d tensor)."""

    def __init__(self, name: str, function: Callable[[Any, Tensors], torch.Tensor]) -> None:
        self.name = name
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._sum: Any = 0.0
        self._count = 0

    def update(self, prediction: Any, batch: Tensors) -> None:
        count = _batch_length(batch)
        self._sum = self._sum + wide(self._function(prediction, batch)) * count
        self._count += count

    def compute(self) -> dict[str, float]:
        return {self.name: float(self._sum) / max(1, self._count)}

    def state(self) -> Arrays:
        return {"sum": np.array(float(self._sum)), "count": np.array(self._count)}

    def merge(self, states: Sequence[Arrays]) -> None:
        total = added(states)
        self._sum, self._count = float(total["sum"]), int(total["count"])


class Overlap:
    """Dice and IoU of whole records, from slices in any order and any batch.

    Per record, voxels predicted and true (tp), predicted (p) and true (t) are counted on the device; Dice = 2tp / (p +
    t) and IoU = tp / (p + t - tp), 1 if both are empty, averaged over the records seen. `read` returns two boolean
    tensors (samples, …); `batch["record"]` holds the record of each sample. The names are PREFIXdice and PREFIXiou.
    """

    def __init__(self, read: Read, prefix: str = "") -> None:
        self._read = read
        self._prefix = prefix
        self.reset()

    def reset(self) -> None:
        self._counts: list[torch.Tensor] = []
        self._records: list[torch.Tensor] = []

    def update(self, prediction: Any, batch: Tensors) -> None:
        predicted, true = self._read(prediction, batch)
        counts = [count_true(mask) for mask in (predicted & true, predicted, true)]
        self._counts.append(torch.stack(counts, dim=1))
        self._records.append(batch["record"].clone())  # a copy, because the loader reuses its memory

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN if nothing was seen."""
        if not self._records:
            return {f"{self._prefix}dice": float("nan"), f"{self._prefix}iou": float("nan")}
        tp, p, t = wide(self._sums()[1]).unbind(1)
        empty = p + t == 0
        dice = torch.where(empty, 1.0, 2 * tp / (p + t)).mean()
        iou = torch.where(empty, 1.0, tp / (p + t - tp)).mean()
        values = torch.stack([dice, iou]).tolist()
        return {f"{self._prefix}dice": values[0], f"{self._prefix}iou": values[1]}

    def _sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the records (R,), and their counts (R, 3)."""
        records, place = torch.cat(self._records).unique(return_inverse=True)
        sums = torch.zeros(len(records), 3, dtype=torch.int64, device=records.device)
        return records, sums.index_add_(0, place, torch.cat(self._counts))

    def state(self) -> Arrays:
        if not self._records:
            return {}
        records, sums = self._sums()
        return {"records": records.cpu().numpy(), "counts": sums.cpu().numpy()}

    def merge(self, states: Sequence[Arrays]) -> None:
        self._records = [torch.from_numpy(state["records"]) for state in states if state]
        self._counts = [torch.from_numpy(state["counts"]) for state in states if state]


class Confusion:
    """One confusion matrix over all pixels (voxels, samples) of the split: K × K classes, counted on the device.

    `read` returns two integer tensors of the same shape: the predicted class, 0…K-1, and the true one. A predicted
    class of -1 is no answer (the pixel counts as missed). A true class of -1 is not annotated (the pixel is ignored).
    For each class, tp pixels are predicted and true, p predicted, and t true:

    - miou: mean of tp / (p + t - tp) over the classes that occur, in the truth or in the prediction
    - macro_f1: mean of 2tp / (p + t) over the same classes
    - accuracy: share of correct pixels
    - iou_NAME, recall_NAME (tp / t) of each class in `classes`

    All names begin with `prefix`. Values are NaN if there is no pixel to count. `compute` raises BadInput for classes
    beyond K-1.
    """

    def __init__(self, classes: Sequence[str], read: Read, prefix: str = "") -> None:
        self._classes = tuple(classes)
        self._read = read
        self._prefix = prefix
        self.reset()

    def reset(self) -> None:
        self._counts: torch.Tensor | None = None

    def update(self, prediction: Any, batch: Tensors) -> None:
        predicted, true = self._read(prediction, batch)
        if predicted.shape != true.shape:
            raise BadInput(f"predicted classes have the shape {tuple(predicted.shape)}, true ones {tuple(true.shape)}")
        number, predicted = len(self._classes), predicted.long()
        size = number * (number + 1)
        cell = true.long() * (number + 1) + torch.where(predicted == -1, number, predicted)
        wrong = (true >= number) | (predicted < -1) | (predicted >= number)
        cell = torch.where(wrong, size, cell)
        cell = torch.where(true < 0, size + 1, cell).flatten()
        if self._counts is None:
            self._counts = torch.zeros(size + 2, dtype=torch.int64, device=cell.device)
        self._counts.scatter_add_(0, cell, torch.ones_like(cell))  # not bincount, which waits for the device

    def compute(self) -> dict[str, float]:
        number = len(self._classes)
        counts = torch.zeros(number * (number + 1) + 2) if self._counts is None else self._counts.cpu()
        if counts[-2]:
            raise BadInput(
                f"{int(counts[-2])} pixels have a predicted class outside 0…{number - 1}, or a true one above it: a "
                f"confusion of {number} classes ({', '.join(self._classes)}) cannot count them"
            )
        matrix = wide(counts[:-2]).view(number, number + 1)
        tp, p, t = matrix.diagonal(), matrix[:, :-1].sum(0), matrix.sum(1)
        occurs = p + t > 0
        iou, recall = tp / (p + t - tp), tp / t
        values = {
            "miou": iou[occurs].mean(),
            "macro_f1": (2 * tp / (p + t))[occurs].mean(),
            "accuracy": tp.sum() / t.sum(),
            **{f"iou_{name}": value for name, value in zip(self._classes, iou, strict=True)},
            **{f"recall_{name}": value for name, value in zip(self._classes, recall, strict=True)},
        }
        return {f"{self._prefix}{name}": float(value) for name, value in values.items()}

    def state(self) -> Arrays:
        return {} if self._counts is None else {"counts": self._counts.cpu().numpy()}

    def merge(self, states: Sequence[Arrays]) -> None:
        total = added(states)
        self._counts = torch.from_numpy(total["counts"]) if total else None


class TorchMetric:
    """A torchmetrics metric (or collection); `read` returns its arguments (preds, target)."""

    def __init__(self, metric: Any, read: Read, name: str = "") -> None:
        self._metric = metric
        self._read = read
        self._name = name or type(metric).__name__

    def reset(self) -> None:
        self._metric.reset()

    def update(self, prediction: Any, batch: Tensors) -> None:
        predicted, true = self._read(prediction, batch)
        self._metric.to(predicted.device)
        self._metric.update(predicted, true)

    def compute(self) -> dict[str, float]:
        return _named(self._metric.compute(), self._name)


class MonaiMetric:
    """A MONAI CumulativeIterationMetric; `read` returns its arguments (y_pred, y), channels first and one-hot."""

    def __init__(self, metric: Any, read: Read, name: str = "") -> None:
        self._metric = metric
        self._read = read
        self._name = name or type(metric).__name__

    def reset(self) -> None:
        self._metric.reset()

    def update(self, prediction: Any, batch: Tensors) -> None:
        self._metric(*self._read(prediction, batch))

    def compute(self) -> dict[str, float]:
        value = self._metric.aggregate()
        return _named(value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value, self._name)


def _named(value: Any, name: str) -> dict[str, float]:
    """Return a scalar, a vector (NAME_0, NAME_1, …) or a mapping as named numbers."""
    if isinstance(value, Mapping):
        return {key: float(item) for key, item in value.items()}
    numbers = wide(torch.as_tensor(value)).flatten().tolist()
    return {name: numbers[0]} if len(numbers) == 1 else {f"{name}_{i}": n for i, n in enumerate(numbers)}


def count_true(mask: torch.Tensor) -> torch.Tensor:
    """Count the true elements of each sample of a boolean tensor (samples, …), int64.

    If possible, it adds eight bytes at once as one integer, at most 255 of them, so that no byte overflows into the
    next. On a CPU this is 15 times as fast as `mask.sum()`.
    """
    flat = mask.flatten(1)
    samples, size = flat.shape
    if size % 8 or not size or flat.storage_offset() % 8 or not flat.is_contiguous():
        return flat.sum(1)
    words = flat.view(torch.int64)
    lanes = -(-words.shape[1] // 255)
    rows = words.shape[1] // lanes
    sums = words[:, : rows * lanes].reshape(samples, rows, lanes).sum(1)
    return sums.view(torch.uint8).sum(1) + flat[:, 8 * rows * lanes :].sum(1)


def _batch_length(batch: Tensors) -> int:
    return next(len(t) for t in batch.values() if isinstance(t, torch.Tensor) and t.ndim)
