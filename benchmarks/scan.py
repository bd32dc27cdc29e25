"""The selective scan on a CPU: forward and backward pass of the same pixels, on one thread, with equal results.

L = 425 wavenumbers, 48 channels, 16 states: one Mamba layer of ssmunet with 24 filters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Options, Result, Table, Times, Turns, Way, at_least, number

LENGTH, CHANNELS, STATES = 425, 48, 16
KERNEL, EAGER = "runner (Numba)", "runner, plain PyTorch (chunks)"
LOOP, SLOW = "textbook loop", "transformers, slow path"
PARALLEL = "parallel scan in PyTorch (mambapy)"
Scan = Callable[..., torch.Tensor]


def inputs(pixels: int, length: int) -> dict[str, torch.Tensor]:
    """Return the tensors that a Mamba layer gives to its scan, channels last."""
    made = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made)

    wide, of_step = (pixels, length, CHANNELS), (pixels, length, STATES)
    rates = torch.arange(1, STATES + 1, dtype=torch.float32).repeat(CHANNELS, 1)
    return {
        "x": random(*wide), "delta": random(*wide) - 3, "A": -rates, "B": random(*of_step), "C": random(*of_step),
        "D": torch.ones(CHANNELS), "z": random(*wide), "delta_bias": random(CHANNELS) / 10,
    }  # fmt: skip


def ours(how: str) -> Scan:
    from runner_ssmunet.scan import selective_scan

    return lambda **given: selective_scan(**given, delta_softplus=True, how=how)


def transformers(parallel: bool) -> Scan:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    if parallel:
        import mambapy.pscan  # noqa: F401  # without it, transformers takes its loop and says nothing

    def scan(**given: torch.Tensor) -> torch.Tensor:
        x, delta, B, C, z = (given[name].transpose(1, 2) for name in ("x", "delta", "B", "C", "z"))
        y = mamba_selective_scan(
            x, delta, given["A"], B, C, given["D"], z, given["delta_bias"], delta_softplus=True, use_mambapy=parallel
        )
        return y.transpose(1, 2)

    return scan


SCANS: dict[str, tuple[Callable[[], Scan], float]] = {
    KERNEL: (lambda: ours("cpu"), 1.0),
    EAGER: (lambda: ours("eager"), 0.25),
    PARALLEL: (lambda: transformers(parallel=True), 0.125),
    SLOW: (lambda: transformers(parallel=False), 0.125),
    LOOP: (lambda: ours("reference"), 0.125),
}
"""Ways to scan, and the share of the pixels that each gets: the slow ones would take minutes."""


def learned(scan: Scan, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Output and gradients."""
    wanted = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    y = scan(**wanted)
    return y, *torch.autograd.grad(y, list(wanted.values()), torch.ones_like(y))


def kept_bytes(scan: Scan, given: dict[str, torch.Tensor]) -> int:
    """Return the bytes that autograd keeps between the passes, each piece of memory once, inputs included."""
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = scan(**{name: tensor.requires_grad_() for name, tensor in given.items()})
        del y
    return sum(seen.values())


def run(options: Options) -> Result:
    most, length = (8, 33) if options.quick else (64, LENGTH)
    pixels = {name: max(1, int(most * share)) for name, (_, share) in SCANS.items()}
    turns = Turns(2 if options.quick else 6)
    few = inputs(2, length)
    kept: dict[str, float] = {}
    expected = learned(ours("reference"), {name: tensor.double() for name, tensor in few.items()})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def contender(name: str, make: Callable[[], Scan]) -> Way:
        scan = make()
        for found, true in zip(learned(scan, few), expected, strict=True):
            torch.testing.assert_close(
                found.detach().double(), true.detach(), rtol=1e-3, atol=1e-3 * float(true.detach().abs().max())
            )
        kept[name] = kept_bytes(scan, inputs(2, length)) / 2
        given = inputs(pixels[name], length)
        return lambda turn: learned(scan, given)

    try:
        for name, (make, _) in SCANS.items():
            turns.add(name, lambda name=name, make=make: contender(name, make), every=1 if name == KERNEL else 2)
        times = per_pixel(turns.run(), pixels)
    finally:
        torch.set_num_threads(threads)
    rows: list[list[Any]] = [
        [name, t.median * 1e3, " – ".join(number(s * 1e3) for s in t.quartiles), t.median / times[KERNEL].median,
         kept[name] / 1e3]
        for name, t in sorted(times.items(), key=lambda item: item[1].median)
    ]  # fmt: skip
    columns = ["scan", "ms a pixel (median)", "quartiles", f"time, {KERNEL} = 1", "kB kept for the gradient, a pixel"]
    aims = at_least(times, KERNEL, LOOP, 100) + at_least(times, KERNEL, PARALLEL, 15)
    return Result(
        title="Selective scan on a CPU",
        what=f"Forward and backward pass, one thread, {length} wavenumbers, {CHANNELS} channels, {STATES} states, "
        f"float32; {most} pixels at once ({pixels[LOOP]} for the slow ones). Outputs and gradients of all agree with "
        "the textbook loop in float64.",
        tables=[Table(columns, rows)],
        aims=aims,
        remarks=["The kernel keeps the states at every 64th step; the others keep them all, or compute chunks anew."],
        left_out=turns.left_out,
        packages=("torch", "numba", "transformers", "mambapy"),
    )


def per_pixel(times: dict[str, Times], pixels: dict[str, int]) -> dict[str, Times]:
    found = {}
    for name, taken in times.items():
        found[name] = Times()
        found[name].by_turn = {turn: seconds / pixels[name] for turn, seconds in taken.by_turn.items()}
    return found
