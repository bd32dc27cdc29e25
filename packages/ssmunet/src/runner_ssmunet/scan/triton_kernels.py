"""The Triton kernels of the selective scan: a program walks the sequence of one pixel with its states in registers.

A program holds the states of 16 channels, transposed (N, channels), so that neighbouring lanes read neighbouring
channels and most of a sum over states stays in one lane. Sums run in a fixed order, without atomics: the same inputs
give the same bits. Padding needs no special case: if a step, a channel or a state does not exist, loads give 0, so Δ =
0, the decay is 1 and nothing is added.
"""

# Arguments are pointers and numbers that Triton types itself. Its language knows no `(*tuple, more)`, and decides an
# `is None` that stands alone before it compiles what depends on it.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, assignment"
# ruff: noqa: PLR0915, RUF005, SIM102

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softplus(v):
    """Return log(1 + exp(v)), exact for very negative v too (Kahan), linear above 20 like PyTorch's."""
    e = tl.exp(tl.minimum(v, 20.0))
    u = 1.0 + e
    less = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(v > 20.0, v, less)


@triton.jit
def _before(a, b, like):
    """Return a < b, once for each element of `like`: the interpreter's own numbers would not make a mask."""
    return tl.full(like.shape, a, tl.int32) < b


@triton.jit
def _row(pointer, t, stride, offsets, mask):
    """Load step `t` at `offsets` as float32, 0 outside `mask`. Steps may lie further apart than pixels."""
    return tl.load(pointer + t * tl.cast(stride, tl.int64) + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _parameter(pointer, offsets, mask):
    """Load a parameter of each channel, 0 if there is none."""
    if pointer is None:
        return tl.zeros(offsets.shape, tl.float32)
    else:
        return tl.load(pointer + offsets, mask=mask, other=0.0)


@triton.jit
def _step_size(delta, mask, bias, SOFTPLUS: tl.constexpr):
    """Return Δ from the step's `delta` row, and its derivative with respect to that row."""
    v = delta + bias
    if SOFTPLUS:
        return tl.where(mask, _softplus(v), 0.0), tl.where(v > 20.0, 1.0, tl.sigmoid(v))
    else:
        return tl.where(mask, v, 0.0), tl.full(v.shape, 1.0, tl.float32)


@triton.jit
def _advance(h, t, x, delta, B, x_l, delta_l, B_l, e, n, in_e, in_n, rates, bias, SOFTPLUS: tl.constexpr):
    """Return h_t (N, channels) from h_{t-1}; `rates` are A / ln 2."""
    steps, _ = _step_size(_row(delta, t, delta_l, e, in_e), in_e, bias, SOFTPLUS)
    pushed = steps * _row(x, t, x_l, e, in_e)
    return tl.exp2(steps[None, :] * rates) * h + pushed[None, :] * _row(B, t, B_l, n, in_n)[:, None]


@triton.jit
def scan_forward(
    x, delta, A, B, C, D, z, bias, y, kept,
    x_p, x_l, delta_p, delta_l, B_p, B_l, C_p, C_l, z_p, z_l,
    length, channels, states, blocks,
    SOFTPLUS: tl.constexpr, EVERY: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write y (P, L, E), and to `kept` (P, ⌈L/EVERY⌉, N, E) the state before every EVERYth step; A is (N, E).

    There is one program per pixel and block of channels. D, z, bias and kept may be None.
    """
    pixel = (tl.program_id(0) // blocks).to(tl.int64)
    e = (tl.program_id(0) % blocks) * BLOCK_E + tl.arange(0, BLOCK_E)
    n = tl.arange(0, BLOCK_N)
    in_e = e < channels
    in_n = n < states
    tile = n[:, None] * channels + e[None, :]
    in_tile = in_n[:, None] & in_e[None, :]
    x += pixel * x_p
    delta += pixel * delta_p
    B += pixel * B_p
    C += pixel * C_p
    y += pixel * length * channels
    if z is not None:
        z += pixel * z_p
    if kept is not None:
        kept += pixel * tl.cdiv(length, EVERY) * states * channels
    rates = tl.load(A + tile, mask=in_tile, other=0.0) * LOG2E
    skip = _parameter(D, e, in_e)
    shift = _parameter(bias, e, in_e)
    h = tl.zeros((BLOCK_N, BLOCK_E), tl.float32)
    for t in range(0, length):
        if kept is not None:
            if t % EVERY == 0:
                tl.store(kept + (t // EVERY) * states * channels + tile, h, mask=in_tile)
        h = _advance(h, t, x, delta, B, x_l, delta_l, B_l, e, n, in_e, in_n, rates, shift, SOFTPLUS)
        out = tl.sum(h * _row(C, t, C_l, n, in_n)[:, None], 0) + skip * _row(x, t, x_l, e, in_e)
        if z is not None:
            gate = _row(z, t, z_l, e, in_e)
            out *= gate * tl.sigmoid(gate)
        tl.store(y + t * channels + e, out.to(y.dtype.element_ty), mask=in_e)


@triton.jit
def scan_backward(
    x, delta, A, B, C, D, z, bias, kept, dy,
    dx, ddelta, dA, dB, dC, dD, dz, dbias,
    x_p, x_l, delta_p, delta_l, B_p, B_l, C_p, C_l, z_p, z_l, dy_p, dy_l,
    pixels, length, channels, states, blocks, groups,
    SHARED: tl.constexpr, SOFTPLUS: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write gradients, walking the sequence backwards in parts of STEPS steps whose states are recomputed.

    `kept` holds the state before every PARTS-th part. dx, ddelta, dz are (P, L, E). dA (P, N, E), dD and dbias (P, E)
    belong to each pixel, dB and dC (groups, P, L, N) to each group of channel blocks: the caller sums over pixels and
    groups. There is one program per pixel and group; SHARED if a group has several blocks.
    """
    group = tl.program_id(0) % groups
    pixel = (tl.program_id(0) // groups).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    in_n = n < states
    x += pixel * x_p
    delta += pixel * delta_p
    B += pixel * B_p
    C += pixel * C_p
    dy += pixel * dy_p
    dx += pixel * length * channels
    ddelta += pixel * length * channels
    dA += pixel * states * channels
    dB += (group * pixels + pixel) * length * states
    dC += (group * pixels + pixel) * length * states
    if z is not None:
        z += pixel * z_p
        dz += pixel * length * channels
    kept += pixel * tl.cdiv(length, STEPS * PARTS) * states * channels
    parts = tl.cdiv(length, STEPS)
    for block in range(group, blocks, groups):
        e = block * BLOCK_E + tl.arange(0, BLOCK_E)
        in_e = e < channels
        tile = n[:, None] * channels + e[None, :]
        in_tile = in_n[:, None] & in_e[None, :]
        rates = tl.load(A + tile, mask=in_tile, other=0.0) * LOG2E
        skip = _parameter(D, e, in_e)
        shift = _parameter(bias, e, in_e)
        later = tl.zeros((BLOCK_N, BLOCK_E), tl.float32)  # ∂/∂h_t from the steps after t
        sum_A = tl.zeros((BLOCK_N, BLOCK_E), tl.float32)
        sum_D = tl.zeros((BLOCK_E,), tl.float32)
        sum_bias = tl.zeros((BLOCK_E,), tl.float32)
        for i in range(0, parts):
            part = parts - 1 - i
            h = tl.load(kept + (part // PARTS) * states * channels + tile, mask=in_tile, other=0.0)
            for t in range((part // PARTS) * PARTS * STEPS, part * STEPS):
                h = _advance(h, t, x, delta, B, x_l, delta_l, B_l, e, n, in_e, in_n, rates, shift, SOFTPLUS)
            before = (h,)
            for k in tl.static_range(STEPS):
                t = part * STEPS + k
                in_step = in_e & _before(t, length, e)
                in_read = in_n & _before(t, length, n)
                h = _advance(h, t, x, delta, B, x_l, delta_l, B_l, e, n, in_step, in_read, rates, shift, SOFTPLUS)
                before = before + (h,)
            for k in tl.static_range(STEPS):
                t = part * STEPS + (STEPS - 1 - k)
                in_step = in_e & _before(t, length, e)
                in_read = in_n & _before(t, length, n)
                now = before[STEPS - k]
                x_t = _row(x, t, x_l, e, in_step)
                B_t = _row(B, t, B_l, n, in_read)
                C_t = _row(C, t, C_l, n, in_read)
                dy_t = _row(dy, t, dy_l, e, in_step)
                if z is not None:
                    gate = _row(z, t, z_l, e, in_step)
                    open_ = tl.sigmoid(gate)
                    ungated = tl.sum(now * C_t[:, None], 0) + skip * x_t
                    dgate = dy_t * ungated * open_ * (1.0 + gate * (1.0 - open_))
                    tl.store(dz + t * channels + e, dgate.to(dz.dtype.element_ty), mask=in_step)
                    dy_t *= gate * open_
                steps, slope = _step_size(_row(delta, t, delta_l, e, in_step), in_step, shift, SOFTPLUS)
                g = later + C_t[:, None] * dy_t[None, :]
                later = g * tl.exp2(steps[None, :] * rates)
                through = later * before[STEPS - 1 - k]  # ∂/∂(Δ_t A)
                sum_A += through * steps[None, :]
                dpushed = tl.sum(g * B_t[:, None], 0)
                # rates / LOG2E is A
                dv = (tl.sum(through * rates, 0) * (1.0 / LOG2E) + dpushed * x_t) * slope
                sum_bias += tl.where(in_step, dv, 0.0)
                sum_D += dy_t * x_t
                tl.store(ddelta + t * channels + e, dv.to(ddelta.dtype.element_ty), mask=in_step)
                tl.store(dx + t * channels + e, (dpushed * steps + skip * dy_t).to(dx.dtype.element_ty), mask=in_step)
                dB_t = tl.sum(g * (steps * x_t)[None, :], 1)
                dC_t = tl.sum(now * dy_t[None, :], 1)
                if SHARED:  # with blocks of this group before this one, whose stores the barrier below waited for
                    dB_t += _row(dB, t, states, n, in_read & _before(group, block, n))
                    dC_t += _row(dC, t, states, n, in_read & _before(group, block, n))
                tl.store(dB + t * states + n, dB_t, mask=in_read)
                tl.store(dC + t * states + n, dC_t, mask=in_read)
        tl.store(dA + tile, sum_A, mask=in_tile)
        if D is not None:
            tl.store(dD + pixel * channels + e, sum_D, mask=in_e)
        if bias is not None:
            tl.store(dbias + pixel * channels + e, sum_bias, mask=in_e)
        if SHARED:
            tl.debug_barrier()
