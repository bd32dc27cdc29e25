"""The accelerator that PyTorch computes on, by calls that exist for every kind of accelerator since PyTorch 2.6.

NVIDIA's and AMD's GPUs are both "cuda" for PyTorch, Intel's are "xpu", Apple's "mps". Other modules take streams
and events from `torch` itself, and from here what each kind keeps in a module of its own: memory, random generators.

`torch.accelerator` counts memory only since PyTorch 2.9; each kind's own module (`torch.cuda`, `torch.xpu`) has had the
same functions for longer.
"""

from __future__ import annotations

from typing import Any

import torch

from runner_core.contract import Device


def found() -> tuple[str, int]:
    """Return the kind of accelerator that this build of PyTorch is for, and how many it sees; ("cuda", 0) for none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cuda", 0) if device is None else (device.type, torch.accelerator.device_count())


def described(kind: str, index: int, count: int) -> Device:
    """Return the accelerator with this number, one of `count`."""
    if kind == "mps":
        return Device(kind, index, count, name="Apple GPU", memory_bytes=torch.mps.recommended_max_memory())
    own = torch.get_device_module(kind)
    properties = own.get_device_properties(index)
    # Ampere and later compute in bfloat16 and tf32; older ones only emulate the former. AMD's have no tf32 here.
    recent = kind == "cuda" and properties.major >= 8
    return Device(
        kind,
        index,
        count,
        name=properties.name,
        memory_bytes=properties.total_memory,
        bfloat16=recent if kind == "cuda" else own.is_bf16_supported(),
        tf32=recent and torch.version.hip is None,
    )


def versions() -> dict[str, str]:
    """Return the versions of the accelerator's libraries; {} without an accelerator."""
    kind, count = found()
    if not count:
        return {}
    if kind != "cuda":
        return {kind: str(getattr(torch.version, kind, None))}
    if torch.version.hip is not None:
        return {"rocm": torch.version.hip, "miopen": str(torch.backends.cudnn.version())}
    return {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


def has_streams(device: torch.device) -> bool:
    """Return True if copies from page-locked memory can go beside the computation."""
    return device.type not in ("cpu", "mps")


def runs_out(device: torch.device) -> bool:
    """Return True if PyTorch raises OutOfMemoryError there, so that a smaller batch can be tried."""
    return device.type not in ("cpu", "mps")


def wait(device: torch.device) -> None:
    """Wait until the device has done all its work; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def timed_event(device: torch.device) -> torch.Event:
    """Return an event, recorded now in the device's current stream, that can be timed."""
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


# ---------------------------------------------------------------- memory


def free(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def counts_memory(device: torch.device) -> bool:
    """Return True if the device's allocator counts what it gave, and the most that it ever gave."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "max_memory_allocated")


def allocated(device: torch.device) -> int:
    """Return the bytes that tensors hold on a device that counts them."""
    return int(torch.get_device_module(device).memory_allocated(device))


def peak(device: torch.device) -> int:
    """Return the most bytes that tensors held at once since `forget_peak`; 0 where nothing counts them."""
    return int(torch.get_device_module(device).max_memory_allocated(device)) if counts_memory(device) else 0


def forget_peak(device: torch.device) -> None:
    torch.get_device_module(device).reset_peak_memory_stats(device)


def taken_by_others(device: torch.device) -> int:
    """Return the bytes that the driver and other processes hold; 0 where the device does not say."""
    if not counts_memory(device):
        return 0
    own = torch.get_device_module(device)
    available, total = own.mem_get_info(device)
    return max(0, int(total - available - own.memory_reserved(device)))


# ---------------------------------------------------------------- numbers


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64, or in float32 on Apple's GPUs, which have no float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def read_generator(device: torch.device) -> torch.Tensor:
    """Return the state of the device's default random generator."""
    own: Any = torch.get_device_module(device)
    state: torch.Tensor = own.get_rng_state() if device.type == "mps" else own.get_rng_state(device)
    return state


def write_generator(state: torch.Tensor, device: torch.device) -> None:
    own: Any = torch.get_device_module(device)
    own.set_rng_state(state) if device.type == "mps" else own.set_rng_state(state, device)


def read_every_generator() -> list[torch.Tensor]:
    """Return the states of the default generators of all accelerators; [] if none has been used: it is not started."""
    own: Any = torch.get_device_module(found()[0])
    started = getattr(own, "is_initialized", None)
    return own.get_rng_state_all() if started is not None and started() else []


def write_every_generator(states: list[torch.Tensor]) -> None:
    if states:
        torch.get_device_module(found()[0]).set_rng_state_all(states)
