"""Loss and metrics of classes: logits (B, classes), label (B,)."""

from typing import Any

from keras import ops
from runner_core import KerasFunctionMetric


def losses(logits: Any, label: Any, spread: float) -> dict[str, Any]:
    """change this: terms that are added up."""
    entropy = ops.sparse_categorical_crossentropy(ops.cast(label, "int32"), logits, from_logits=True)
    return {"cross_entropy": ops.mean(entropy)}


def metrics() -> list[KerasFunctionMetric]:
    """accuracy: share of images whose class is found."""

    def accuracy(logits: Any, batch: dict[str, Any]) -> Any:
        hit = ops.cast(ops.argmax(logits, -1), "int32") == ops.cast(batch["label"], "int32")
        return ops.mean(ops.cast(hit, "float32"))

    return [KerasFunctionMetric("accuracy", accuracy)]
