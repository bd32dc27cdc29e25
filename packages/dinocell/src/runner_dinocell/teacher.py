"""The teacher: an exponential moving average of the student (Tarvainen & Valpola 2017, arXiv:1703.01780)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """teacher ← momentum · teacher + (1 − momentum) · student, of all parameters, in the teacher's order.

    Of sharded ones each process moves its own part: both must be sharded alike. After a step of float16 that changed
    nothing it moves towards the student all the same, which is where it should be going.
    """
    torch._foreach_lerp_(_tensors(teacher), _tensors(student), 1 - momentum)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [p.to_local() if isinstance(p, DTensor) else p.detach() for p in network.parameters()]
