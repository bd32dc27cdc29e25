"""Known faults of the installed PyTorch and its libraries that a training meets."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from runner_core.contract import Finding, Precision
from runner_core.engines.known_bad import Run, known_bad


def faults(
    network: nn.Module,
    precision: Precision,
    compiles: bool,
    device: torch.device,
    channels_last: bool = False,
    compared: bool = False,
) -> Iterator[Finding]:
    """Yield every known fault that a training meets; switch off the faulty parts that can be switched off.

    `compared`: whether kernels are compared before the first step, and what is wrong is switched off.
    """
    number = torch.backends.cudnn.version()
    run = Run(
        device=device.type,
        compute=precision.compute,
        compile=compiles,
        capability=torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0,
        layers=frozenset(kind.__name__ for module in network.modules() for kind in type(module).__mro__),
        channels_last=channels_last,
        loaded={} if number is None else {"cudnn": f"{number // 10_000}.{number // 100 % 100}.{number % 100}"},
    )
    for row in known_bad(run):
        if row.mended:
            _without_mixed_reductions()
        harmless = row.mended or (row.compared and compared)
        yield Finding("known fault", "note" if harmless else "warning", row.text, timed=True)


def _without_mixed_reductions() -> None:
    from torch._inductor import config

    config.triton.mix_order_reduction = False
