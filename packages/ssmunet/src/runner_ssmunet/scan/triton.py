"""The selective scan on a GPU by our own Triton kernels: parallel over pixels and channels, sequential over steps.

It suits many short sequences (thousands of pixels, hundreds of steps). The backward pass keeps the state before every
16th step (every Nth, if N is more): O(P·L·E).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from runner_ssmunet.scan.gradients import keeps
from runner_ssmunet.scan.triton_kernels import scan_backward, scan_forward

BLOCK_E = 16
STEPS = 8
"""Steps whose states the backward pass holds in registers."""
KEPT = 16
"""Fewest steps between kept states."""


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> Tensor:  # fmt: skip
    """See `runner_ssmunet.scan.selective_scan`; CUDA tensors (any, under TRITON_INTERPRET=1) of at most 32 bits."""
    if isinstance(scan_forward, triton.JITFunction) and not x.is_cuda:
        raise ValueError(f"x is on {x.device}: Triton's kernels run on a GPU")
    inputs = (x, delta, A, B, C, D, z, delta_bias)
    return _Scan.apply(keeps(*inputs), delta_softplus, *inputs)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keep: bool, softplus: bool, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
        D: Tensor | None, z: Tensor | None, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        (pixels, length, channels), states = x.shape, A.shape[1]
        blocks = triton.cdiv(channels, BLOCK_E)
        y = x.new_empty(x.shape)
        kept = None
        if keep:
            kept = x.new_empty((pixels, triton.cdiv(length, _every(states)), states, channels), dtype=torch.float32)
        inputs, strides = _inputs(x, delta, A, B, C, D, z, bias)
        if pixels:
            with _on(x):
                scan_forward[(pixels * blocks,)](
                    *inputs, y, kept, *strides, length, channels, states, blocks,
                    SOFTPLUS=softplus, EVERY=_every(states), **_block(states),
                )  # fmt: skip
        ctx.save_for_backward(x, delta, A, B, C, D, z, bias, kept)
        ctx.softplus = softplus
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, delta, A, B, C, D, z, bias, kept = ctx.saved_tensors
        (pixels, length, channels), states = x.shape, A.shape[1]
        blocks = triton.cdiv(channels, BLOCK_E)
        groups = min(blocks, max(1, channels // states))  # so that what each writes of dB and dC is O(P·L·E) together

        def partial(*shape: int) -> Tensor:
            return x.new_empty(shape, dtype=torch.float32)

        dx, ddelta = x.new_empty(x.shape), delta.new_empty(x.shape)
        dz = None if z is None else z.new_empty(x.shape)
        dA, dB, dC = partial(pixels, states, channels), partial(groups, *B.shape), partial(groups, *C.shape)
        dD, dbias = (None if of is None else partial(pixels, channels) for of in (D, bias))
        inputs, strides = _inputs(x, delta, A, B, C, D, z, bias)
        dy = _rows(dy)
        if pixels:
            with _on(x):
                scan_backward[(pixels * groups,)](
                    *inputs, kept, dy, dx, ddelta, dA, dB, dC, dD, dz, dbias, *strides, *dy.stride()[:2],
                    pixels, length, channels, states, blocks, groups,
                    SHARED=groups < blocks, SOFTPLUS=ctx.softplus,
                    STEPS=STEPS, PARTS=_every(states) // STEPS, **_block(states),
                )  # fmt: skip

        def total(of: Tensor | None, like: Tensor | None) -> Tensor | None:
            return None if of is None or like is None else of.sum(0).to(like.dtype)

        return (
            None, None,
            dx, ddelta, dA.sum(0).t().to(A.dtype), total(dB, B), total(dC, C), total(dD, D), dz, total(dbias, bias),
        )  # fmt: skip


def _every(states: int) -> int:
    """Return the steps between kept states: a multiple of STEPS, at least N."""
    return STEPS * triton.cdiv(max(KEPT, states), STEPS)


def _block(states: int) -> dict[str, int]:
    """Return a block's sizes, powers of two: 8 states per lane, 16 if eight warps cannot share fewer."""
    padded = triton.next_power_of_2(states)
    return {"BLOCK_E": BLOCK_E, "BLOCK_N": padded, "num_warps": min(8, max(1, padded // 16))}


def _inputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, bias: Tensor | None
) -> tuple[list[Tensor | None], list[int]]:
    """Return the first arguments of both kernels, and the strides of pixels and steps of x, delta, B, C and z."""
    x, delta, B, C = (_rows(of) for of in (x, delta, B, C))
    z = None if z is None else _rows(z)
    D, bias = (None if of is None else of.to(torch.float32).contiguous() for of in (D, bias))
    strides = [stride for of in (x, delta, B, C, x if z is None else z) for stride in of.stride()[:2]]
    return [x, delta, A.to(torch.float32).t().contiguous(), B, C, D, z, bias], strides


def _rows(of: Tensor) -> Tensor:
    """Return the tensor itself if its last axis is contiguous, whatever its other strides, else a copy."""
    return of if of.stride(-1) == 1 else of.contiguous()


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Return the context that makes x's device current: Triton launches there."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
