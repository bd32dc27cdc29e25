"""The selective scan and the causal convolution on a CPU, by Numba kernels on all of PyTorch's threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from runner_ssmunet.scan.gradients import keeps
from runner_ssmunet.threads import shared

LANES = 16
Array = np.ndarray[Any, np.dtype[np.float32]]
Sums = np.ndarray[Any, np.dtype[np.float64]]


@functools.cache
def unavailable() -> str | None:
    """Return why the kernels cannot be used here, or None. Numba may not import, or compile nothing on this machine."""
    try:
        x = torch.ones(1, 1, 1)
        selective_scan(x, x, -x[0], x, x, None, None, None, False)
    except Exception as error:  # any error: there is another implementation
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
    return None


def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
    delta_softplus: bool,
) -> torch.Tensor:
    """See `runner_ssmunet.scan.selective_scan`. Differentiable; computes in float32 whatever the inputs are."""
    if x.device.type != "cpu":
        raise ValueError(f"x is on {x.device}: Numba's kernels run on a CPU")
    dtype = x.dtype
    wide = [None if t is None else t.float() for t in (x, delta, A, B, C, D, z, delta_bias)]
    y: torch.Tensor = _Scan.apply(keeps(*wide), delta_softplus, *wide)
    return y.to(dtype)


def causal_conv_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """See `runner_ssmunet.scan.conv.causal_conv_silu`. Differentiable; computes in float32."""
    y: torch.Tensor = _Conv.apply(x.float(), weight.float(), bias.float())
    return y.to(x.dtype)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keep: bool, softplus: bool, x: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any
    ) -> Any:
        from runner_ssmunet.scan import kernels

        pixels, steps, channels = x.shape
        states = A.shape[1]
        y = x.new_empty(pixels, steps, channels)
        kept = x.new_empty((pixels, _blocks(channels), kernels.chunks(steps), states, LANES) if keep else 0)
        inputs = _scan_inputs(x, delta, A, B, C, D, z, bias, softplus)
        _in_threads(pixels, lambda first, last: kernels.scan_forward(first, last, *inputs, _flat(y), _flat(kept)))
        ctx.save_for_backward(x, delta, A, B, C, D, z, bias, kept)
        ctx.softplus = softplus
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        from runner_ssmunet.scan import kernels

        x, delta, A, B, C, D, z, bias, kept = ctx.saved_tensors
        (pixels, _, channels), states = x.shape, A.shape[1]
        inputs = _scan_inputs(x, delta, A, B, C, D, z, bias, ctx.softplus)
        dx, ddelta, dz = (x.new_empty(x.shape if of is not None else 0) for of in (x, delta, z))
        db, dc = x.new_empty(B.shape), x.new_empty(C.shape)
        written = [_flat(t) for t in (dx, ddelta, db, dc, dz)]
        grads = (*_strided(dy), _flat(kept))

        def part(first: int, last: int, totals: Sums) -> None:
            kernels.scan_backward(first, last, *inputs, *grads, *written, totals)

        sums = _summed(pixels, channels, states + 2, part)
        return (
            None, None, dx, ddelta, sums[:, :states], db, dc, None if D is None else sums[:, states],
            None if z is None else dz, None if bias is None else sums[:, states + 1],
        )  # fmt: skip


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        from runner_ssmunet.scan import kernels

        y = x.new_empty(x.shape)
        inputs = _conv_inputs(x, weight, bias)
        _in_threads(len(x), lambda first, last: kernels.conv_forward(first, last, *inputs, _flat(y)))
        ctx.save_for_backward(x, weight, bias)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        from runner_ssmunet.scan import kernels

        x, weight, bias = ctx.saved_tensors
        channels, width = weight.shape
        inputs = _conv_inputs(x, weight, bias)
        dx = x.new_empty(x.shape)
        written, grad = _flat(dx), _strided(dy)

        def part(first: int, last: int, totals: Sums) -> None:
            kernels.conv_backward(first, last, *inputs, *grad, written, totals)

        sums = _summed(len(x), channels, width + 1, part)
        return dx, sums[:, :width], sums[:, width]


# ---------------------------------------------------------------- tensors as kernels take them


def _scan_inputs(x: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any, softplus: bool) -> list[Any]:
    channels, states = A.shape
    blocks = _blocks(channels)
    decays = _padded(A / np.log(2), blocks * LANES).view(blocks, LANES, states).transpose(1, 2).contiguous()
    tensors = [part for tensor in (x, delta, B, C, x if z is None else z) for part in _strided(tensor)]
    per_channel = [_flat(_padded(x.new_zeros(0) if t is None else t, blocks * LANES)) for t in (D, bias)]
    return [x.shape[1], channels, states, *tensors, z is not None, _flat(decays), *per_channel, softplus]


def _conv_inputs(x: Any, weight: Any, bias: Any) -> list[Any]:
    channels, width = weight.shape
    padded = _blocks(channels) * LANES
    taps = _padded(weight, padded).t().contiguous()
    return [x.shape[1], channels, width, *_strided(x), _flat(taps), _flat(_padded(bias, padded))]


def _blocks(channels: int) -> int:
    return -(-channels // LANES)


def _padded(parameter: torch.Tensor, length: int) -> torch.Tensor:
    """Append zeros to a parameter's own channels (its first axis)."""
    out = parameter.new_zeros(length, *parameter.shape[1:])
    out[: len(parameter)] = parameter.detach()
    return out


def _strided(tensor: torch.Tensor) -> tuple[Array, int, int]:
    """Return (pixels, steps, channels) as a flat array, with the strides of the first two axes.

    The tensor is copied only if its channels are not adjacent.
    """
    tensor = tensor.detach()
    if tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,)).numpy(), tensor.stride(0), tensor.stride(1)


def _flat(tensor: torch.Tensor) -> Array:
    return tensor.view(-1).numpy()


# ---------------------------------------------------------------- threads


def _in_threads(pixels: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Run `work(first, last)` on each thread's share of the pixels, in order; the kernels release the interpreter."""
    return shared(range(pixels), lambda share: work(share[0], share[-1] + 1) if share else work(0, 0))


def _summed(pixels: int, channels: int, rows: int, work: Callable[[int, int, Sums], None]) -> torch.Tensor:
    """Return the sum over all pixels that `work(first, last, totals)` adds up: (channels, rows) float32.

    `totals` starts as (blocks, rows, 16) zeros.
    """

    def part(first: int, last: int) -> Sums:
        totals = np.zeros(_blocks(channels) * rows * LANES)
        work(first, last, totals)
        return totals

    total = torch.from_numpy(sum(_in_threads(pixels, part))).view(-1, rows, LANES)
    return total.transpose(1, 2).reshape(-1, rows)[:channels].float()
