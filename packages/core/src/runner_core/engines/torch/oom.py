"""What a step changes besides gradients, so that it can be tried again after the device ran out of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runner_core._errors import BadInput
from runner_core.engines.torch.state import read_generators, write_generators


class Rewind:
    """Buffers (BatchNorm's running statistics) and default generators, as they were before a step."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = list(network.buffers())
        self._kept: list[torch.Tensor] = []
        self._generators: dict[str, Any] = {}

    @torch.no_grad()
    def mark(self) -> None:
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._generators = read_generators(self._device)

    @torch.no_grad()
    def back(self) -> None:
        for buffer, kept in zip(self._buffers, self._kept, strict=True):
            buffer.copy_(kept)
        write_generators(self._generators, self._device)


def too_large(batch_size: int, fits: int) -> BadInput:
    """The message for a step that cannot be split; `fits`: samples of the largest batch that did fit, or 0."""
    if not fits:
        return BadInput(
            f"a batch of {batch_size} samples does not fit into the device's memory, nor does any smaller one: use a "
            "smaller model or smaller samples"
        )
    return BadInput(
        f"a batch of {batch_size} samples does not fit into the device's memory, and this project's step may not be "
        f"split without changing what is learned; --train.batch-size {fits} fits"
    )
