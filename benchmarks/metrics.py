"""Validation metrics: accumulated over an epoch of predictions and read once, all with equal values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import Options, Result, Table, Turns, Way, compared

SEED, SIDE, BATCH = 0, 256, 16
Batch = tuple[Any, Any]
"""Logits and truth (samples, 1, SIDE, SIDE), of the contender's framework."""


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Discs of many sizes, and logits that are right about most of them."""
    rng = np.random.default_rng(SEED)
    y, x = np.ogrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    radius = rng.uniform(0.1, 0.9, (count * BATCH, 1, 1, 1))
    truth = (x**2 + y**2 < radius**2).astype(np.float32)
    logits = truth * 2 - 1 + rng.standard_normal(truth.shape, np.float32)
    return list(zip(np.split(logits, count), np.split(truth, count), strict=True))


# ---------------------------------------------------------------- mean Dice of the samples


def numpy_dice(data: Sequence[Batch]) -> Way:
    def epoch(turn: int) -> float:
        values = []
        for logits, truth in data:
            predicted, true = logits > 0, truth > 0.5
            both = (predicted & true).sum((1, 2, 3))
            values.append(2 * both / (predicted.sum((1, 2, 3)) + true.sum((1, 2, 3))))
        return float(np.concatenate(values).mean())

    return epoch


def runner_dice(data: Sequence[Batch]) -> Way:
    import torch
    from runner_core import Overlap

    metric = Overlap(lambda logits, batch: (logits > 0, batch["mask"] > 0.5))
    numbered = [
        (logits, {"mask": truth, "record": torch.arange(BATCH) + BATCH * i}) for i, (logits, truth) in enumerate(data)
    ]

    def epoch(turn: int) -> float:
        metric.reset()
        for logits, batch in numbered:
            metric.update(logits, batch)
        return metric.compute()["dice"]

    return epoch


def torchmetrics_dice(data: Sequence[Batch]) -> Way:
    from torchmetrics.classification import BinaryF1Score

    metric = BinaryF1Score(multidim_average="samplewise", validate_args=False)

    def epoch(turn: int) -> float:
        metric.reset()
        for logits, truth in data:
            metric.update(logits > 0, truth > 0.5)
        return float(metric.compute().mean())

    return epoch


def monai_dice(data: Sequence[Batch]) -> Way:
    from monai.metrics import DiceMetric

    metric = DiceMetric()

    def epoch(turn: int) -> float:
        metric.reset()
        for logits, truth in data:
            metric((logits > 0).float(), truth)
        return float(metric.aggregate())

    return epoch


# ---------------------------------------------------------------- mean absolute error


def numpy_error(data: Sequence[Batch]) -> Way:
    return lambda turn: float(np.mean([np.abs(logits - truth).mean() for logits, truth in data], dtype=np.float64))


def runner_torch_error(data: Sequence[Batch]) -> Way:
    from runner_core import TorchFunctionMetric

    return _runner_error(TorchFunctionMetric("mae", lambda logits, batch: (logits - batch["mask"]).abs().mean()), data)


def runner_keras_error(data: Sequence[Batch]) -> Way:
    from keras import ops
    from runner_core import KerasFunctionMetric

    return _runner_error(
        KerasFunctionMetric("mae", lambda logits, batch: ops.mean(ops.abs(logits - batch["mask"]))), data
    )


def _runner_error(metric: Any, data: Sequence[Batch]) -> Way:
    def epoch(turn: int) -> float:
        metric.reset()
        for logits, truth in data:
            metric.update(logits, {"mask": truth})
        return metric.compute()["mae"]

    return epoch


def torchmetrics_error(data: Sequence[Batch]) -> Way:
    from torchmetrics import MeanAbsoluteError

    return _stateful(MeanAbsoluteError(), lambda metric: metric.update, lambda metric: metric.compute(), data)


def monai_error(data: Sequence[Batch]) -> Way:
    from monai.metrics import MAEMetric

    return _stateful(MAEMetric(), lambda metric: metric, lambda metric: metric.aggregate(), data)


def keras_error(data: Sequence[Batch]) -> Way:
    from keras.metrics import MeanAbsoluteError

    metric = MeanAbsoluteError()
    metric.reset = metric.reset_state
    return _stateful(metric, lambda metric: lambda logits, truth: metric.update_state(truth, logits),
                     lambda metric: metric.result(), data)  # fmt: skip


def _stateful(metric: Any, update: Callable[[Any], Any], read: Callable[[Any], Any], data: Sequence[Batch]) -> Way:
    add = update(metric)

    def epoch(turn: int) -> float:
        metric.reset()
        for logits, truth in data:
            add(logits, truth)
        return float(read(metric))

    return epoch


# ----------------------------------------------------------------


def to_torch(arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Batch]:
    import torch

    torch.set_num_threads(1)
    return [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in arrays]


def to_tensorflow(arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Batch]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return [(tf.constant(a), tf.constant(b)) for a, b in arrays]


def to_numpy(arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Batch]:
    return list(arrays)


Contender = tuple[Callable[[Sequence[Any]], list[Batch]], Callable[[Sequence[Batch]], Way]]
DICE: dict[str, Contender] = {
    "plain NumPy": (to_numpy, numpy_dice),
    "runner (torch)": (to_torch, runner_dice),
    "torchmetrics": (to_torch, torchmetrics_dice),
    "MONAI": (to_torch, monai_dice),
}
ERROR: dict[str, Contender] = {
    "plain NumPy": (to_numpy, numpy_error),
    "runner (torch)": (to_torch, runner_torch_error),
    "torchmetrics": (to_torch, torchmetrics_error),
    "MONAI": (to_torch, monai_error),
    "runner (Keras)": (to_tensorflow, runner_keras_error),
    "Keras": (to_tensorflow, keras_error),
}


def run(options: Options) -> Result:
    count = 2 if options.quick else 32
    arrays = batches(count)
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    for title, contenders in (("mean Dice of the samples", DICE), ("mean absolute error", ERROR)):
        turns = Turns(2 if options.quick else 25, warmup=2)
        values: dict[str, float] = {}
        for name, (convert, make) in contenders.items():

            def once(name: str = name, convert: Any = convert, make: Any = make, values: Any = values) -> Way:
                way = make(convert(arrays))
                values[name] = way(0)
                return way

            turns.add(name, once)
        for name, value in values.items():
            np.testing.assert_allclose(value, values["plain NumPy"], rtol=2e-5, err_msg=name)
        tables.append(compared(turns.run(), "plain NumPy", title, ("samples", count * BATCH)))
        left_out |= turns.left_out
    return Result(
        title="Validation metrics",
        what=f"{count} batches of {BATCH} logits and masks of {SIDE}², in memory, go through the metric's update, then "
        "it is read. One thread; all values were compared with NumPy's and agree to five digits.",
        tables=tables,
        left_out=left_out,
        packages=("numpy", "torch", "torchmetrics", "monai", "keras", "tensorflow"),
    )
