"""What is said of losses and weights that are no numbers."""

from __future__ import annotations


def not_finite(step: int, term: str) -> str:
    """Message for a loss that became NaN or infinite in optimizer step `step` (from 1)."""
    return (
        f"{term} was NaN or infinite in step {step}, for the first time. No checkpoint holds such weights. Likely "
        "remedies: a lower train.learning_rate, train.clip, precision.mode float32 (or bfloat16 instead of float16), "
        "or a look at the data (`check`)"
    )


def weight_not_finite(name: str) -> str:
    """Message for a weight that became NaN or infinite."""
    return (
        f"{name} (a weight) became NaN or infinite while the loss was finite: a gradient overflowed. No "
        "checkpoint holds such weights; set train.clip or a lower train.learning_rate"
    )
