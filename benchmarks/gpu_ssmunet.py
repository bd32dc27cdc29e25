"""GPU cases of ssmunet besides its preset: patches full of tissue (its phantom's cores are smaller than a patch), and
the selective scan alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpucase import Case, chunks, copy_rate, waiter

if TYPE_CHECKING:
    import torch

PIXELS, LENGTH, CHANNELS, STATES = 16384, 425, 48, 16
"""One Mamba layer of 24 filters over a patch of 128²."""
Given = dict[str, "torch.Tensor"]


def full_cores(folder: Path) -> None:
    """Four cores of 128 × 128 pixels that are all tissue: the phantom's, side by side."""
    import json

    import numpy as np
    from runner_ssmunet import phantom

    rng = np.random.default_rng(0)
    axis = np.linspace(900, 1800, phantom.CHANNELS)
    components = phantom.component_spectra(axis, rng)
    times = -(-128 // phantom.SIDE)
    for number in range(4):
        arrays = phantom.make_core(axis, components, rng.permutation(8), rng)
        wide: dict[str, Any] = {
            n: np.tile(a, (times, times, *[1] * (a.ndim - 2)))[:128, :128] for n, a in arrays.items()
        }
        wide["tissue_mask"] = np.ones((128, 128), bool)
        np.savez(folder / f"core_{number}.npz", **wide, wn=axis, meta=json.dumps({"patient_id": str(number)}))


def inputs(pixels: int, length: int, dtype: torch.dtype, device: str) -> Given:
    """Return the tensors that a Mamba layer gives to its scan, channels last."""
    import torch

    made = torch.Generator(device).manual_seed(0)

    def random(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=made, device=device, dtype=kind)

    wide, of_step = (pixels, length, CHANNELS), (pixels, length, STATES)
    rates = torch.arange(1, STATES + 1, dtype=torch.float32, device=device).repeat(CHANNELS, 1)
    return {
        "x": random(*wide), "delta": random(*wide) - 3, "A": -rates, "B": random(*of_step), "C": random(*of_step),
        "D": torch.ones(CHANNELS, device=device), "z": random(*wide),
        "delta_bias": random(CHANNELS, kind=torch.float32) / 10,
    }  # fmt: skip


def bytes_that_must_move(given: Given, backward: bool) -> int:
    """Each input read and each output written once; backward: the inputs and the output's gradient read once more, the
    inputs' gradients written. What an implementation keeps in between is its own affair."""
    read = sum(given[name].nbytes for name in ("x", "delta", "z", "B", "C"))
    once = read + given["x"].nbytes
    return once + backward * (2 * read + given["x"].nbytes)


def sequence_last(given: Given) -> Given:
    """Return the same numbers in the memory layout that mamba-ssm's kernel needs."""
    return {n: t.transpose(1, 2).contiguous().transpose(1, 2) if t.ndim == 3 else t for n, t in given.items()}


def ways(device: str) -> Iterator[tuple[str, str, Callable[[Given], Given]]]:
    """Name, `how`, and what the inputs are turned into first."""
    if not device.startswith("cuda"):
        yield "plain PyTorch", "eager", dict
        return
    yield "Triton", "triton", dict
    from runner_ssmunet.scan import mamba_ssm

    if mamba_ssm.unavailable() is None:
        yield "mamba-ssm", "mamba_ssm", dict
        yield "mamba-ssm, its own layout", "mamba_ssm", sequence_last


def learned(run: Callable[..., torch.Tensor], given: Given) -> tuple[torch.Tensor, ...]:
    """Output, and the gradients with an upstream gradient that is the gate's numbers."""
    import torch

    wanted = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    y = run(**wanted)
    return y, *torch.autograd.grad(y, list(wanted.values()), given["z"].detach())


def check(run: Callable[..., torch.Tensor], given: Given, laid: Callable[[Given], Given]) -> None:
    """Output and gradients of a few pixels against plain PyTorch in float64."""
    import torch
    from runner_ssmunet.scan import selective_scan

    few = {name: tensor[:8] if tensor.ndim == 3 else tensor for name, tensor in given.items()}
    exact = partial(selective_scan, delta_softplus=True, how="eager")
    tolerance = 1e-3 if given["x"].dtype == torch.float32 else 3e-2
    true = learned(exact, {name: tensor.double() for name, tensor in few.items()})
    for ours, wanted in zip(learned(run, laid(few)), true, strict=True):
        atol = tolerance * float(wanted.detach().abs().max())
        torch.testing.assert_close(ours.double(), wanted, rtol=tolerance, atol=atol)


def scan(dtype: str, device: str, quick: bool) -> Mapping[str, float]:
    """Time, share of the bandwidth and memory of every way, forward and with the backward pass."""
    import torch
    from runner_ssmunet.scan import selective_scan

    gpu = device.startswith("cuda")
    pixels, length = (PIXELS, LENGTH) if gpu and not quick else (16, 33)
    given = inputs(pixels, length, getattr(torch, dtype), device)
    wait, rate = waiter(device), copy_rate(device, quick)
    found: dict[str, float] = {"pixels": pixels, "wavenumbers": length}
    for name, how, laid in ways(device):
        run = partial(selective_scan, delta_softplus=True, how=how)
        check(run, given, laid)
        mine = laid(given)
        works: dict[str, Callable[[], object]] = {
            "forward": partial(run, **mine), "forward and backward": partial(learned, run, mine)
        }  # fmt: skip
        for what, work in works.items():
            taken = min(chunks(work, wait, 1, 0.05 if quick else 2.0))
            found[f"{name}, {what}: ms"] = taken * 1e3
            moved = bytes_that_must_move(given, backward=work is not works["forward"])
            found[f"{name}, {what}: share of bandwidth, %"] = 100 * moved / taken / rate
            if gpu:
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                work()
                found[f"{name}, {what}: GB besides the inputs"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    return found


CASES = [
    Case("ssmunet", "all tissue", data=full_cores),
    Case("ssmunet", "all tissue, filters 3", {"model.filters": 3}, data=full_cores),
    Case("ssmunet", "scan, float32", measure=partial(scan, "float32")),
    Case("ssmunet", "scan, bfloat16", measure=partial(scan, "bfloat16")),
    Case("ssmunet", "all tissue, filters 3, no checkpointing", {"model.filters": 3, "model.chunk": 0}, data=full_cores),
    Case("ssmunet", "filters 3", {"model.filters": 3}),
]
