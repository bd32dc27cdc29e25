"""Types of plain values: arrays, an engine's tensors, and JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array on the host."""
Arrays = dict[str, Array]
"""Arrays by name."""
Tensors = dict[str, Any]
"""The engine's own tensors (torch, Keras) by name."""
Json = Any
"""Any JSON value: text, numbers, booleans, None, lists, and mappings with text keys."""
