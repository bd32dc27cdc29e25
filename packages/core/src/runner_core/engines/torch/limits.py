"""Measure what PyTorch reaches on a device, and list the operations of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from runner_core.contract.phases import Limits, Operation
from runner_core.engines.limits import chunks

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Dtypes of matrix products, by precision."""


def limits(device: torch.device, precision: str, seconds: float = 0.3) -> Limits:
    """Measure the limits in `precision`, and in bfloat16 if the device can use it; `seconds` for each number."""
    gpu = device.type == "cuda"
    others = ("tf32", "bfloat16") if gpu else ("bfloat16",)
    size = 4096 if gpu else 1024
    flops = {name: matrix_rate(device, name, size, seconds) for name in dict.fromkeys((precision, *others))}
    copied = 2**28 if gpu else 2**26
    return Limits(
        flops,
        copy_rate(device, copied, seconds),
        operation_seconds(device, seconds),
        transfer_rate(device, copied, seconds) if gpu else None,
    )


def matrix_rate(device: torch.device, precision: str, size: int, seconds: float) -> float:
    """Return the floating-point operations per second of a product of square matrices."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        a, b = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * size**3 / min(chunks(lambda: torch.mm(a, b, out=out), waiter(device), 1, seconds))
    finally:
        torch.set_float32_matmul_precision(before)


def copy_rate(device: torch.device, size: int, seconds: float) -> float:
    """Return the bytes per second, read and written, of a copy of `size` bytes within the device."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(chunks(lambda: target.copy_(source), waiter(device), 1, seconds))


def transfer_rate(device: torch.device, size: int, seconds: float) -> float:
    """Return the bytes per second from page-locked memory to a GPU."""
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=device)
    return size / min(chunks(lambda: there.copy_(host, non_blocking=True), waiter(device), 1, seconds))


def operation_seconds(device: torch.device, seconds: float) -> float:
    """Return the seconds of the smallest operation, in a chain that is also differentiated."""
    one = torch.ones(1, device=device, requires_grad=True)

    def some() -> None:
        value = one
        for _ in range(50):
            value = value * 1.5
        value.backward()

    count = len(operations(some))
    return min(chunks(some, waiter(device), 1, seconds)) / count


def waiter(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until the device has done all its work."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None


def operations(work: Callable[[], None]) -> list[Operation]:
    """Return every operation on tensors that `work` starts, in order, without views, which do nothing.

    Foreign kernels (Triton, extensions) count only by their tensors.
    """
    with _Counted() as counted:
        work()
    return counted.operations


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not view:
            count = flop_registry.get(func._overloadpacket)
            flops = 0 if count is None else int(count(*args, **kwargs, out_val=out))
            tensors = (leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor))
            self.operations.append(Operation(flops, sum(t.numel() * t.element_size() for t in tensors)))
        return out
