"""The state of PyTorch in this process that a training changes: settings of its backends, and random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runner_core.engines.torch import accelerator
from runner_core.engines.torch.checkpoint import read_generators, write_generators

_HOST = torch.device("cpu")


def read() -> Mapping[str, Any]:
    """Return the state of this process, for `write`. No accelerator is started for it."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32),
        "precision": torch.get_float32_matmul_precision(),
        "generators": read_generators(_HOST),
        "devices": accelerator.read_every_generator(),
    }


def write(found: Mapping[str, Any]) -> None:
    """Set this process's state to what `read` returned."""
    torch.set_num_threads(found["threads"])
    wanted = found["deterministic"], found["warn_only"]
    if wanted != (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()):
        torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])  # imports a compiler, which takes a second
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = found["cudnn"]
    torch.set_float32_matmul_precision(found["precision"])
    write_generators(dict(found["generators"]), _HOST)
    accelerator.write_every_generator(found["devices"])
