"""Loss and metrics of numbers: value (B, 1), label (B,)."""

from typing import Any

from keras import ops
from runner_core import KerasFunctionMetric


def losses(value: Any, label: Any, spread: float) -> dict[str, Any]:
    """change this: terms that are added up. `spread` is that of the training labels: the loss has no unit."""
    away = ops.abs(value[:, 0] - ops.cast(label, "float32")) / spread
    return {"distance": ops.mean(ops.where(away < 1, 0.5 * away * away, away - 0.5))}


def metrics() -> list[KerasFunctionMetric]:
    """error: mean absolute difference, in the label's unit."""

    def error(value: Any, batch: dict[str, Any]) -> Any:
        return ops.mean(ops.abs(value[:, 0] - ops.cast(batch["label"], "float32")))

    return [KerasFunctionMetric("error", error)]
