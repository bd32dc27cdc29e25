"""Reduce the decision for a sample to one number that differs between samples, for any engine.

A mean would not do, because the mean of normalised features is the same for every sample. So each position has its own
weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from runner_core.contract import Array


@lru_cache(maxsize=8)
def weights(shape: Sequence[int]) -> Array:
    """Return weights (float32, `shape`) between -1 and 1 without a pattern, the same in every process."""
    count = int(np.prod(shape, dtype=np.int64))
    scattered = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761)  # Knuth's multiplicative hash
    scattered ^= scattered >> np.uint32(15)
    scattered *= np.uint32(2246822519)
    return (scattered.astype(np.float32) / np.float32(2**31) - 1).reshape(shape)
