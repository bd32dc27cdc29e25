"""Losses as numbers, and weights that must stay finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner_core.protocols import Tensors


def read(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Numbers of 0-d tensors; one wait for the device."""
    try:
        return torch.stack(list(tensors)).tolist()
    except RuntimeError:  # of several shapes or devices
        return [float(tensor) for tensor in tensors]


class Weights:
    """Tensors that were finite at the start and should stay so (a mask of −inf may be a buffer by design)."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = {name: t.detach() for name, t in tensors.items() if t.numel() and bool(t.isfinite().all())}

    def first_nonfinite(self) -> str | None:
        """Name of the first tensor that holds NaN or an infinity; one wait for the device."""
        if not self._tensors:
            return None
        largest = torch._foreach_norm(list(self._tensors.values()), float("inf"))
        finite = torch.stack([norm.isfinite() for norm in largest]).tolist()
        return None if all(finite) else list(self._tensors)[finite.index(False)]
