"""The teacher: an exponential moving average of the student (Tarvainen & Valpola 2017, arXiv:1703.01780)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move the teacher: teacher ← momentum · teacher + (1 − momentum) · student.

    This covers all parameters, in the teacher's order. If they are sharded, each process moves its own part: both must
    be sharded alike. After a step of float16 that changed nothing, the teacher still moves towards the student, which
    is where it should go.
    """
    torch._foreach_lerp_(_tensors(teacher), _tensors(student), 1 - momentum)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [p.to_local() if isinstance(p, DTensor) else p.detach() for p in network.parameters()]
