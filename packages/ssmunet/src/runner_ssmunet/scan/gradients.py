"""Decide whether an implementation must keep anything for its backward pass."""

from __future__ import annotations

import torch
from torch import Tensor


def keeps(*inputs: Tensor | None) -> bool:
    """Return whether a backward pass may follow.

    Call this before `apply`: inside it, gradients are off, and under `torch.no_grad` the context's `needs_input_grad`
    says the same as without.
    """
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs)
