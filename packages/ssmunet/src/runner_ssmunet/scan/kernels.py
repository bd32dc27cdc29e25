"""The selective scan and the causal convolution as Numba kernels, 16 channels at a time.

Tensors are flat float32 arrays with two strides, of a pixel and of a wavenumber; channels (or states) are adjacent. So
views (half of a projection's output) need no copy. Each call works on the pixels `first` to `last` and writes sums over
pixels to arrays of its own, so that threads do not interfere.

States stay in the first-level cache. The forward pass keeps them at every `CHUNK`-th step only. The backward pass goes
through the chunks from the end, recomputes the states of one chunk, and uses them up. No array has the size pixels ×
wavenumbers × channels × states.

h_t = e^(Δ_t A) h_(t-1) + Δ_t x_t B_t,  y_t = C_t·h_t + D x_t.  Gu & Dao, "Mamba: Linear-Time Sequence Modeling with
Selective State Spaces", 2023, with gradients by the chain rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from runner_ssmunet.scan import vectors
from runner_ssmunet.scan.vectors import (
    LANES,
    exp2,
    fma,
    load,
    load_first,
    load_splat,
    prefetch,
    row_sums,
    scratch,
    sigmoid,
    softplus,
    splat,
    store,
    store_first,
)

CHUNK = 64
"""Steps between kept states. With 16 states these are a quarter of an input's size."""
AHEAD = 8
"""Steps by which memory is requested ahead.

A step computes for so long that a processor does not see the reads of the next one in time. Without these requests, the
scan of tensors larger than the cache takes 3.5 times as long."""
_ZERO, _ONE, _LN2 = np.float32(0), np.float32(1), np.float32(np.log(2))


_SOURCE = hashlib.sha256(b"".join(Path(file).read_bytes() for file in (__file__, vectors.__file__))).hexdigest()[:12]


def _kernel(function: Callable[..., None]) -> Any:
    """Compile without the interpreter's lock, and cache on disk under the content of both sources.

    Numba's own cache would keep old machine code if only `vectors` changes, or if a file keeps its size and time.
    """
    function.__qualname__ += f"-{_SOURCE}"
    compiled = njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # neither this folder nor the user's own can be written to: compiled in each process
        compiled.enable_caching()
    return compiled


def chunks(steps: int) -> int:
    """Return the number of kept states of a sequence."""
    return -(-steps // CHUNK)


@njit(inline="always")
def _step_size(delta, place, lanes, bias, has_softplus):  # type: ignore[no-untyped-def]
    """Return Δ of 16 channels at one step."""
    raw = load_first(delta, place, lanes) + bias
    return softplus(raw) if has_softplus else raw


@njit(inline="always")
def _advance(h, place, decays, base, states, step, drive, b, b_place, c, c_place, y):  # type: ignore[no-untyped-def]
    """Advance all states of 16 channels by one step; return y + C·h."""
    for n in range(states):
        at = place + n * LANES
        state = fma(exp2(step * load(decays, base + n * LANES)), load(h, at), drive * load_splat(b, b_place + n))
        store(h, at, state)
        y = fma(state, load_splat(c, c_place + n), y)
    return y


@_kernel
def scan_forward(  # type: ignore[no-untyped-def]
    first, last, steps, channels, states,
    x, x_pixel, x_step, delta, delta_pixel, delta_step, b, b_pixel, b_step, c, c_pixel, c_step,
    z, z_pixel, z_step, has_z, decays, skip, bias, has_softplus, y, kept,
):  # fmt: skip
    """Write y (pixels, steps, channels), and the kept states if `kept` has room.

    `decays` is A / ln 2 as (blocks, states, 16); `skip` and `bias` are D and Δ's bias (blocks × 16). `kept` holds the
    states before each chunk: (pixels, blocks, chunks, states, 16).
    """
    blocks = (channels + LANES - 1) // LANES
    parts = (steps + CHUNK - 1) // CHUNK
    size = states * LANES
    h = scratch(size)
    for pixel in range(first, last):
        for block in range(blocks):
            channel = block * LANES
            lanes = min(LANES, channels - channel)
            d, own_bias = load(skip, channel), load(bias, channel)
            h[:] = _ZERO
            for t in range(steps):
                if kept.size and t % CHUNK == 0:
                    begin = ((pixel * blocks + block) * parts + t // CHUNK) * size
                    kept[begin : begin + size] = h
                value = load_first(x, pixel * x_pixel + t * x_step + channel, lanes)
                ahead = t + AHEAD
                prefetch(x, pixel * x_pixel + ahead * x_step + channel)
                prefetch(delta, pixel * delta_pixel + ahead * delta_step + channel)
                prefetch(b, pixel * b_pixel + ahead * b_step)
                prefetch(c, pixel * c_pixel + ahead * c_step)
                if has_z:
                    prefetch(z, pixel * z_pixel + ahead * z_step + channel)
                place = pixel * delta_pixel + t * delta_step + channel
                step = _step_size(delta, place, lanes, own_bias, has_softplus)
                out = _advance(
                    h, 0, decays, block * size, states, step, step * value,
                    b, pixel * b_pixel + t * b_step, c, pixel * c_pixel + t * c_step, d * value,
                )  # fmt: skip
                if has_z:
                    gate = load_first(z, pixel * z_pixel + t * z_step + channel, lanes)
                    out = out * gate * sigmoid(gate)
                store_first(y, (pixel * steps + t) * channels + channel, out, lanes)


@_kernel
def scan_backward(  # type: ignore[no-untyped-def]
    first, last, steps, channels, states,
    x, x_pixel, x_step, delta, delta_pixel, delta_step, b, b_pixel, b_step, c, c_pixel, c_step,
    z, z_pixel, z_step, has_z, decays, skip, bias, has_softplus, dy, dy_pixel, dy_step, kept,
    dx, ddelta, db, dc, dz, totals,
):  # fmt: skip
    """Write the gradients of `scan_forward`.

    dx, ddelta and dz are (pixels, steps, channels), db and dc (pixels, steps, states).

    The gradients of A are added to `totals` (blocks, states + 2, 16) float64, followed by a row for D and a last row
    for Δ's bias. They are summed in float32 over one pixel's steps only: over many pixels such a sum would stop
    growing, as each new term is less than its last bit.
    """
    blocks = (channels + LANES - 1) // LANES
    parts = (steps + CHUNK - 1) // CHUNK
    size = states * LANES
    rows = (states + LANES - 1) // LANES * LANES
    h, e = scratch((CHUNK + 1) * size), scratch(CHUNK * size)
    values, sizes = scratch(CHUNK * LANES), scratch(CHUNK * LANES)
    outs = scratch(CHUNK * LANES)
    g = scratch(blocks * size)
    b_sums, c_sums = scratch(CHUNK * rows * LANES), scratch(CHUNK * rows * LANES)
    sums = scratch(blocks * (size + 2 * LANES))
    ln2 = splat(_LN2)
    for pixel in range(first, last):
        g[:] = _ZERO
        sums[:] = _ZERO
        for part in range(parts - 1, -1, -1):
            begin = part * CHUNK
            length = min(CHUNK, steps - begin)
            b_sums[:] = _ZERO
            c_sums[:] = _ZERO
            for block in range(blocks):
                channel = block * LANES
                base = block * size
                sum_at = block * (size + 2 * LANES)
                lanes = min(LANES, channels - channel)
                d, own_bias = load(skip, channel), load(bias, channel)
                at = ((pixel * blocks + block) * parts + part) * size
                h[:size] = kept[at : at + size]
                for i in range(length):  # the states of the chunk once more
                    t = begin + i
                    ahead = t + AHEAD
                    prefetch(x, pixel * x_pixel + ahead * x_step + channel)
                    prefetch(delta, pixel * delta_pixel + ahead * delta_step + channel)
                    prefetch(b, pixel * b_pixel + ahead * b_step)
                    prefetch(c, pixel * c_pixel + ahead * c_step)
                    value = load_first(x, pixel * x_pixel + t * x_step + channel, lanes)
                    place = pixel * delta_pixel + t * delta_step + channel
                    step = _step_size(delta, place, lanes, own_bias, has_softplus)
                    store(values, i * LANES, value)
                    store(sizes, i * LANES, step)
                    drive, out = step * value, d * value
                    b_at, c_at = pixel * b_pixel + t * b_step, pixel * c_pixel + t * c_step
                    for n in range(states):
                        own = i * size + n * LANES
                        decay = exp2(step * load(decays, base + n * LANES))
                        store(e, own, decay)
                        state = fma(decay, load(h, own), drive * load_splat(b, b_at + n))
                        store(h, own + size, state)
                        if has_z:
                            out = fma(state, load_splat(c, c_at + n), out)
                    store(outs, i * LANES, out)
                skip_sum, bias_sum = load(sums, sum_at + size), load(sums, sum_at + size + LANES)
                for i in range(length - 1, -1, -1):
                    t = begin + i
                    prefetch(dy, pixel * dy_pixel + (t - AHEAD) * dy_step + channel)
                    if has_z:
                        prefetch(z, pixel * z_pixel + (t - AHEAD) * z_step + channel)
                    grad = load_first(dy, pixel * dy_pixel + t * dy_step + channel, lanes)
                    target = (pixel * steps + t) * channels + channel
                    if has_z:
                        gate = load_first(z, pixel * z_pixel + t * z_step + channel, lanes)
                        s = sigmoid(gate)
                        slope = s * fma(gate, splat(_ONE) - s, splat(_ONE))
                        store_first(dz, target, grad * load(outs, i * LANES) * slope, lanes)
                        grad = grad * gate * s
                    value, step = load(values, i * LANES), load(sizes, i * LANES)
                    drive = step * value
                    skip_sum = fma(grad, value, skip_sum)
                    to_drive, to_step = splat(_ZERO), splat(_ZERO)
                    b_at, c_at = pixel * b_pixel + t * b_step, pixel * c_pixel + t * c_step
                    for n in range(states):
                        own = n * LANES
                        chunk_at, sums_at = i * size + own, (i * rows + n) * LANES
                        to_state = fma(grad, load_splat(c, c_at + n), load(g, base + own))
                        store(c_sums, sums_at, fma(grad, load(h, chunk_at + size), load(c_sums, sums_at)))
                        store(b_sums, sums_at, fma(to_state, drive, load(b_sums, sums_at)))
                        to_drive = fma(to_state, load_splat(b, b_at + n), to_drive)
                        to_before = to_state * load(e, chunk_at)
                        store(g, base + own, to_before)
                        to_decay = to_before * load(h, chunk_at)
                        to_step = fma(to_decay, load(decays, base + own), to_step)
                        store(sums, sum_at + own, fma(to_decay, step, load(sums, sum_at + own)))
                    store_first(dx, target, fma(to_drive, step, d * grad), lanes)
                    to_step = fma(to_step, ln2, to_drive * value)
                    if has_softplus:  # not 1 - e^-Δ, which loses all digits if Δ is small
                        place = pixel * delta_pixel + t * delta_step + channel
                        to_step = to_step * sigmoid(load_first(delta, place, lanes) + own_bias)
                    bias_sum = bias_sum + to_step
                    store_first(ddelta, target, to_step, lanes)
                store(sums, sum_at + size, skip_sum)
                store(sums, sum_at + size + LANES, bias_sum)
            for i in range(length):
                row = (pixel * steps + begin + i) * states
                for n in range(0, states, LANES):
                    count = min(LANES, states - n)
                    place = (i * rows + n) * LANES
                    store_first(db, row + n, row_sums(b_sums, place), count)
                    store_first(dc, row + n, row_sums(c_sums, place), count)
        totals += sums


@_kernel
def conv_forward(first, last, steps, channels, width, x, x_pixel, x_step, weight, bias, y):  # type: ignore[no-untyped-def]
    """Write y_t = silu(bias + Σ_k weight_k x_(t + k - width + 1)), with x = 0 before the start.

    `weight` is (width, blocks × 16), y (pixels, steps, channels).
    """
    blocks = (channels + LANES - 1) // LANES
    for pixel in range(first, last):
        for block in range(blocks):
            channel = block * LANES
            lanes = min(LANES, channels - channel)
            for t in range(steps):
                prefetch(x, pixel * x_pixel + (t + AHEAD) * x_step + channel)
                out = load(bias, channel)
                for k in range(max(0, width - 1 - t), width):
                    value = load_first(x, pixel * x_pixel + (t + k - width + 1) * x_step + channel, lanes)
                    out = fma(load(weight, k * blocks * LANES + channel), value, out)
                store_first(y, (pixel * steps + t) * channels + channel, out * sigmoid(out), lanes)


@_kernel
def conv_backward(  # type: ignore[no-untyped-def]
    first, last, steps, channels, width, x, x_pixel, x_step, weight, bias, dy, dy_pixel, dy_step, dx, totals
):  # fmt: skip
    """Write the gradients of `conv_forward`.

    Those of the weights, and in the last row of the bias, are added to `totals` (blocks, width + 1, 16) float64. They
    are summed in float32 over one pixel's steps only, as in `scan_backward`.
    """
    blocks = (channels + LANES - 1) // LANES
    rows = (width + 1) * LANES
    slopes = scratch((steps + width) * LANES)
    sums = scratch(blocks * rows)
    slopes[steps * LANES :] = _ZERO  # nothing comes after the end
    for pixel in range(first, last):
        sums[:] = _ZERO
        for block in range(blocks):
            channel = block * LANES
            lanes = min(LANES, channels - channel)
            bias_sum = splat(_ZERO)
            for t in range(steps):
                prefetch(x, pixel * x_pixel + (t + AHEAD) * x_step + channel)
                out = load(bias, channel)
                for k in range(max(0, width - 1 - t), width):
                    value = load_first(x, pixel * x_pixel + (t + k - width + 1) * x_step + channel, lanes)
                    out = fma(load(weight, k * blocks * LANES + channel), value, out)
                s = sigmoid(out)
                prefetch(dy, pixel * dy_pixel + (t + AHEAD) * dy_step + channel)
                grad = load_first(dy, pixel * dy_pixel + t * dy_step + channel, lanes)
                grad = grad * s * fma(out, splat(_ONE) - s, splat(_ONE))
                store(slopes, t * LANES, grad)
                bias_sum = bias_sum + grad
                for k in range(max(0, width - 1 - t), width):
                    value = load_first(x, pixel * x_pixel + (t + k - width + 1) * x_step + channel, lanes)
                    at = block * rows + k * LANES
                    store(sums, at, fma(grad, value, load(sums, at)))
            store(sums, block * rows + width * LANES, bias_sum)
            for t in range(steps):
                out = splat(_ZERO)
                for k in range(width):
                    out = fma(
                        load(weight, k * blocks * LANES + channel), load(slopes, (t - k + width - 1) * LANES), out
                    )
                store_first(dx, (pixel * steps + t) * channels + channel, out, lanes)
        totals += sums
