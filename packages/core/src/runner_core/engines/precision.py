"""Choose the precision of a run: a value that the engines apply (`Precision`)."""

from __future__ import annotations

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Device, Precision
from runner_core.contract.project import Project


def default_precision(project: Project, config: RunConfig, device: Device) -> Precision:
    """Return the policy that `precision.mode` means on this device.

    auto takes bfloat16 on a GPU that has it, float16 with loss scaling on an older one, and float32 on a CPU, where
    16-bit arithmetic is mostly slower. Raises BadInput if the device cannot compute in the requested mode.
    """
    mode = config.precision.mode
    if mode == "auto":
        return _automatic(device)
    missing = (mode == "tf32" and not device.tf32) or (
        mode == "bfloat16" and device.kind != "cpu" and not device.bfloat16
    )
    if missing:
        where = device.name or device.kind
        raise BadInput(
            f"precision.mode {mode}: {where} does not compute in it; use {_automatic(device).compute} or auto"
        )
    return Precision(mode, reason="asked for")


def _automatic(device: Device) -> Precision:
    if device.kind == "cpu":
        return Precision("float32", reason="16-bit arithmetic rarely pays on a CPU")
    if device.bfloat16:
        return Precision("bfloat16", reason=f"{device.name or device.kind} has it; no loss scaling needed")
    return Precision("float16", reason=f"{device.name or device.kind} has no bfloat16; the loss is scaled")
