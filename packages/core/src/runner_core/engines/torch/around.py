"""A module around the network, whose forward pass runs any function: every way to share a network needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Around(nn.Module):
    """A module whose forward pass runs any function on the network."""

    def __init__(self, network: nn.Module, returned: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.network = network
        self._returned = returned

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._returned(function(*arguments))


def when(at_once: bool) -> str:
    """Return when gradients are exchanged, as `exchange.gradients` names it."""
    return "step" if at_once else "micro_batch"
