"""Types of plain values: arrays, batches of them, an engine's tensors, and JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array on the host."""
Arrays = dict[str, Array]
"""Arrays by name."""
Tensors = dict[str, Any]
"""The engine's own tensors (torch, Keras) by name."""
Json = Any
"""Any JSON value: text, numbers, booleans, None, lists, and mappings with text keys."""


class HostBatch(NamedTuple):
    """A batch in a buffer of the ring; `release()` lets the ring refill the buffer."""

    arrays: Arrays
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    release: Callable[[], None]
