"""Devices: their names, the default precision, and the measurement of their limits."""

from __future__ import annotations

import platform
import re
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.config import RunConfig
from runner_core.contract import Device, Precision
from runner_core.contract.project import Project


def gpu_number(asked: str, found: int, framework: str, unseen: str = "", gpu: str = "cuda") -> int | None:
    """Return the number of the GPU that `asked` names among the `found` ones, or None for the CPU.

    `framework` is the framework that sees those GPUs, `gpu` its word for one, and `unseen` the remedy for a GPU that it
    does not see. Raises BadInput if there is no such device.
    """
    if not re.fullmatch(rf"auto|cpu|{gpu}(:\d+)?", asked):
        raise BadInput(f"train.device {asked!r}: it must be auto, cpu, {gpu} or {gpu}:NUMBER")
    kind, _, number = asked.partition(":")
    index = int(number or 0)
    if kind == gpu and index >= found:
        there = f"there are {found} GPUs, numbered from 0" if found else f"{framework} sees no GPU here"
        raise BadInput(f"train.device {asked}: {there}; {unseen or 'use auto or cpu'}")
    return index if kind == gpu or (kind == "auto" and found) else None


def refuse_missing_gpus(devices: int, here: int, asked: str, found: int, framework: str, unseen: str = "") -> None:
    """Raise BadInput if there are fewer GPUs than a training takes on this machine (`here`).

    `asked` is `train.device`; "cpu" needs none. For the other arguments see `gpu_number`.
    """
    several = f"train.devices {devices}"
    if asked == "cpu":
        return
    if ":" in asked:
        raise BadInput(
            f"{several}: train.device {asked} names only one GPU; use auto, and CUDA_VISIBLE_DEVICES to choose"
        )
    if not found:
        raise BadInput(f"{several}: {framework} sees no GPU here; {unseen or 'use the CPU with --train.device cpu'}")
    if found < here:
        raise BadInput(f"{several}: {framework} sees only {counted(found, 'GPU')} here; use at most as many")


def cpu(note: str = "") -> Device:
    return Device(
        "cpu",
        name=cpu_name(),
        memory_bytes=psutil.virtual_memory().total,
        bfloat16=True,
        matrix_bfloat16="amx_bf16" in cpu_flags(),
        note=note,
    )


def unusable(framework: str, why: str) -> str:
    """Return a message if the machine has an NVIDIA GPU that `framework` does not see, else ""."""
    if not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return ""
    return (
        f"this machine seems to have an NVIDIA GPU, but {framework} cannot use it ({why}); "
        "without it, training runs on the CPU, many times slower"
    )


def cpu_name() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Return what the processor can compute, by Linux's names (avx512_bf16); empty where Linux does not say."""
    return frozenset(_cpuinfo("flags").split())


@cache
def _cpuinfo(name: str) -> str:
    """Return the first entry of this name in /proc/cpuinfo, or ""."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{name}\s*: *(.+)", text, re.M)
    return found.group(1) if found else ""


def default_precision(project: Project, config: RunConfig, device: Device) -> Precision:
    """Return the policy that `precision.mode` means on this device.

    auto takes bfloat16 on a GPU that has it, float16 with loss scaling on an older one, and float32 on a CPU, where
    16-bit arithmetic is mostly slower. On a CPU with AMX it takes bfloat16 if the project gains by it
    (`bfloat16_on_cpu`). Raises BadInput if the device cannot compute in the requested mode.
    """
    mode = config.precision.mode
    if mode == "auto":
        if device.matrix_bfloat16 and project.bfloat16_on_cpu:
            return Precision("bfloat16", reason="this CPU has AMX: this network is faster in bfloat16 there")
        return _automatic(device)
    missing = (mode == "tf32" and not device.tf32) or (
        mode == "bfloat16" and device.kind != "cpu" and not device.bfloat16
    )
    if missing:
        where = device.name or device.kind
        raise BadInput(f"precision.mode {mode}: {where} cannot compute in it; use {_automatic(device).compute} or auto")
    return Precision(mode, reason="asked for")


def _automatic(device: Device) -> Precision:
    if device.kind == "cpu":
        return Precision("float32", reason="16-bit arithmetic rarely pays on a CPU")
    if device.kind == "mps":
        return Precision("float32", reason="16-bit arithmetic was never tried on Apple's GPUs")
    if device.bfloat16:
        return Precision("bfloat16", reason=f"{device.name or device.kind} has it, and needs no loss scaling")
    return Precision("float16", reason=f"{device.name or device.kind} has no bfloat16, so the loss is scaled")


def chunks(work: Callable[[], object], wait: Callable[[], object], block: int, seconds: float) -> list[float]:
    """Return the seconds of one `work`, from runs of several (multiples of `block`) that end with a `wait`.

    `wait` waits for the device. All runs together take about `seconds`.
    """
    end = time.perf_counter() + seconds
    times: list[float] = []
    count = block
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(count):
            work()
        wait()
        taken = time.perf_counter() - begun
        times.append(taken / count)
        if taken < seconds / 40 and count < 64 * block:  # short runs would measure the waiting
            count, times = 2 * count, []
    return times
