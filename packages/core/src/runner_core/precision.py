"""Which precision a run computes in: a value that the engines apply (`protocols.Precision`)."""

from __future__ import annotations

from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.project import Project
from runner_core.protocols import Device, Precision


def default_precision(project: Project, config: RunConfig, device: Device) -> Precision:
    """The policy that `precision.mode` means on this device.

    auto takes bfloat16 on a GPU that has it, float16 with loss scaling on an older one, float32 on a CPU, where
    16-bit arithmetic is mostly slower. Raises BadInput when the device cannot compute what was asked.
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


def matches(precision: Precision, seen: dict[str, int]) -> bool:
    """Were all layers that were observed computing in the dtype that the policy asks for?

    `seen` maps dtype names ("bfloat16", "torch.bfloat16") to numbers of layers, those of `keep_float32` left out.
    tf32 layers return float32.

    >>> matches(Precision("bfloat16"), {"torch.bfloat16": 9})
    True
    >>> matches(Precision("bfloat16"), {"torch.bfloat16": 9, "torch.float32": 1})
    False
    """
    expected = "float32" if precision.compute == "tf32" else precision.compute
    return all(dtype.rpartition(".")[2] == expected for dtype in seen)
