"""Check that a checkpoint gives back the network that was validated, and that weights change."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Step
from runner_core.engines.torch.gradient_norms import tensors_in
from runner_core.engines.torch.parallel import own

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return a number that changes with any bit of this process's parameters, or None if there are none.

    Waits for the device once.
    """
    if not parameters:
        return None
    sums = [own(p.detach()).view(_BITS[p.element_size()]).sum(dtype=torch.int64) for p in parameters]
    return zlib.crc32(repr(torch.stack(sums).tolist()).encode())


def other_weights(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that are not bitwise equal in both."""
    first, second = one.state_dict(), other.state_dict()
    return [name for name in {**first, **second} if not _equal(first.get(name), second.get(name))]


def _equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other)  # a module's extra state is not compared
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and bool(torch.equal(one, other.to(one.device)))


def distance(one: Step, other: Step) -> float:
    """Return the largest difference between two predictions (or losses), as a share of the first one's range.

    It is infinite if their shapes differ.
    """
    first, second = ([*tensors_in(step.prediction)] or [step.loss] for step in (one, other))
    if [t.shape for t in first] != [t.shape for t in second]:
        return math.inf
    return max((_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _difference(one: Tensor, other: Tensor) -> float:
    if not one.numel() or torch.equal(one, other):
        return 0.0
    one, other = one.double(), other.double()
    span = float(one.max() - one.min()) or float(one.abs().max()) or 1.0
    return float((one - other).abs().max()) / span
