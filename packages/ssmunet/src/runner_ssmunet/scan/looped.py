"""The selective scan as one loop over the steps that exporters know: ONNX has it as the operator Scan."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from runner_ssmunet.scan.reference import skip_and_gate, step_sizes


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> Tensor:  # fmt: skip
    """See `runner_ssmunet.scan.selective_scan`. For inference in float32."""
    steps = step_sizes(delta, delta_bias, delta_softplus, x.dtype)
    inputs = (steps, steps * x, B, C)

    def step(h: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        size, pushed, b, c = now
        h = torch.exp(size[..., None] * A) * h + pushed[..., None] * b[:, None]
        return h, (h * c[:, None]).sum(-1)

    begin = x.new_zeros(x.shape[0], *A.shape)
    _, y = scan(step, begin, tuple(tensor.transpose(0, 1) for tensor in inputs))
    return skip_and_gate(y.transpose(0, 1), x, D, z)
