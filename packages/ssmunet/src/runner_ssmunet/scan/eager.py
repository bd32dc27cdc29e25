"""The selective scan in plain PyTorch, any device and floating dtype, a chunk of the sequence at a time.

States (P, L, E, N) are never stored. The forward pass keeps the state at the start of every chunk of K ≥ N steps,
P·(L/K)·E·N ≤ P·L·E numbers. The backward pass recomputes the others, chunk by chunk, last one first. Within a chunk
everything but the recurrence itself is one operation on all its steps. Pixels are processed in blocks small enough for
the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from runner_ssmunet.scan.gradients import keeps
from runner_ssmunet.scan.reference import skip_and_gate, state_dtype, step_sizes

CHUNK = 16
"""Fewest steps between kept states."""
BLOCK = {"cpu": 2**17, "cuda": 2**25}
"""Numbers in the states of one chunk of one block of pixels: they fit easily into the cache, or the device's memory."""


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> Tensor:  # fmt: skip
    """See `runner_ssmunet.scan.selective_scan`. Keeps O(P·L·E) for the backward pass."""
    dtype = state_dtype(x)
    steps = step_sizes(delta, delta_bias, delta_softplus, dtype)
    inputs = [x.to(dtype), steps, A.to(dtype), B.to(dtype), C.to(dtype)]
    y = _Scan.apply(keeps(*inputs), *inputs)
    return skip_and_gate(y, x, D, z).to(x.dtype)


def _chunk_length(length: int, states: int) -> int:
    return min(length, max(CHUNK, states))


def _blocks(x: Tensor, states: int) -> Iterator[slice]:
    """Yield pixels in blocks whose states of one chunk fit `BLOCK`."""
    pixels, length, channels = x.shape
    of_one = max(1, _chunk_length(length, states) * channels * states)
    size = max(1, BLOCK.get(x.device.type, BLOCK["cuda"]) // of_one)
    for start in range(0, pixels, size):
        yield slice(start, min(start + size, pixels))


class _Chunk:
    """K steps of one block of pixels, with all decays and states (P, K, E, N)."""

    def __init__(self, x: Tensor, steps: Tensor, A: Tensor, B: Tensor, C: Tensor, start: Tensor) -> None:
        self.x, self.steps, self.A, self.B, self.C, self.start = x, steps, A, B, C, start
        self.decay = torch.exp_(steps[..., None] * A)
        self.pushed = steps * x  # (P, K, E)
        self.states = self.pushed[..., None] * B[:, :, None]
        h = start
        for a, s in zip(self.decay.unbind(1), self.states.unbind(1), strict=True):
            h = s.addcmul_(a, h)
        self.end = h

    def output(self) -> Tensor:
        """Return C_t·h_t (P, K, E)."""
        return _over_states(self.states, self.C)

    def backward(self, dy: Tensor, dend: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return gradients of x, steps, A, B, C and the starting state, from those of the output and the end state.

        With g_t = ∂/∂h_t = dy_t C_t + a_{t+1} g_{t+1}, `dend` is the g of the step after the chunk.
        """
        g = dy[..., None] * self.C[:, :, None]
        dC = _over_channels(self.states, dy)
        later = dend
        for a, now in zip(reversed(self.decay.unbind(1)), reversed(g.unbind(1)), strict=True):
            later = now.add_(later).mul(a)
        dpushed = _over_states(g, self.B)
        dB = _over_channels(g, self.pushed)
        # ∂/∂(Δ_t A) = g_t a_t h_{t-1}, in place of g
        g.mul_(self.decay)
        g[:, 1:].mul_(self.states[:, :-1])
        g[:, 0].mul_(self.start)
        dA = torch.einsum("pken,pke->en", g, self.steps)
        dsteps = torch.einsum("pken,en->pke", g, self.A).addcmul_(dpushed, self.x)
        return dpushed * self.steps, dsteps, dA, dB, dC, later


def _over_states(states: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_n states (P, K, E, N) · weights (P, K, N): (P, K, E)."""
    return torch.matmul(states, weights[..., None])[..., 0]


def _over_channels(states: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_e states (P, K, E, N) · weights (P, K, E): (P, K, N)."""
    return torch.matmul(weights[:, :, None], states)[:, :, 0]


class _Scan(torch.autograd.Function):
    """C_t·h_t with h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t, all of one dtype."""

    @staticmethod
    def forward(ctx: Any, keep: bool, x: Tensor, steps: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        (pixels, length, channels), states = x.shape, A.shape[1]
        chunk = _chunk_length(length, states)
        y = torch.empty_like(x)
        kept = x.new_empty(pixels if keep else 0, -(-length // chunk), channels, states)
        with torch.autocast(x.device.type, enabled=False):
            for p in _blocks(x, states):
                h = x.new_zeros(p.stop - p.start, channels, states)
                for i, first in enumerate(range(0, length, chunk)):
                    t = slice(first, first + chunk)
                    if keep:
                        kept[p, i] = h
                    part = _Chunk(x[p, t], steps[p, t], A, B[p, t], C[p, t], h)
                    y[p, t] = part.output()
                    h = part.end
        ctx.save_for_backward(x, steps, A, B, C, kept)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, steps, A, B, C, kept = ctx.saved_tensors
        length, chunk = x.shape[1], _chunk_length(x.shape[1], A.shape[1])
        dx, dsteps, dA, dB, dC = (torch.empty_like(each) for each in (x, steps, A, B, C))
        dA.zero_()
        with torch.autocast(x.device.type, enabled=False):
            for p in _blocks(x, A.shape[1]):
                dh = torch.zeros_like(kept[p, 0])
                for i in reversed(range(kept.shape[1])):
                    t = slice(i * chunk, min((i + 1) * chunk, length))
                    part = _Chunk(x[p, t], steps[p, t], A, B[p, t], C[p, t], kept[p, i])
                    dx[p, t], dsteps[p, t], more, dB[p, t], dC[p, t], dh = part.backward(dy[p, t], dh)
                    dA += more
        return None, dx, dsteps, dA, dB, dC
