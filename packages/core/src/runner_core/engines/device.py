"""Which device `train.device` means, for any engine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psutil

from runner_core._errors import BadInput
from runner_core.doctor import cpu_name
from runner_core.protocols import Device


def gpu_number(asked: str, found: int, framework: str, unseen: str = "") -> int | None:
    """Number of the GPU that `asked` means of the `found` ones that `framework` sees; None: the CPU.

    `unseen`: what to do about a GPU that it does not see. Raises BadInput when there is no such device.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", asked):
        raise BadInput(f"train.device {asked!r}: it is auto, cpu, cuda or cuda:NUMBER")
    kind, _, number = asked.partition(":")
    index = int(number or 0)
    if kind == "cuda" and index >= found:
        there = f"there are {found} GPUs, numbered from 0" if found else f"{framework} sees no GPU here"
        raise BadInput(f"train.device {asked}: {there}; {unseen or 'use auto or cpu'}")
    return index if kind == "cuda" or (kind == "auto" and found) else None


def cpu(note: str = "") -> Device:
    return Device("cpu", name=cpu_name(), memory_bytes=psutil.virtual_memory().total, bfloat16=True, note=note)


def unusable(framework: str, why: str) -> str:
    """What to say where the machine has an NVIDIA GPU that `framework` does not see; else an empty string."""
    if not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return ""
    return (
        f"this machine seems to have an NVIDIA GPU, but {framework} cannot use it ({why}); "
        "without it, training runs on the CPU, many times slower"
    )
