"""Count what a process sends to others: a deterministic figure, where times depend on the machine and its network."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "allreduce": ("all-reduce", 2),
    "allgather": ("all-gather", 1),
    "reduce_scatter": ("reduce-scatter", 1),
}
"""How a collective's operation begins → its name, and how often a ring sends (n - 1) / n of the whole."""


class Traffic(TorchDispatchMode):
    """Counts the collectives on floating-point tensors inside this context: features, weights and gradients.

    `whole` is the bytes of all processes' results, by the collective's name, and `sent` what one of n processes sends
    for them in a ring: (n - 1) / n of it, twice for an all-reduce. `count` is the number of collectives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.sent, self.count = Counter[str](), Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._see(func.__name__.lstrip("_"), args)
        return func(*args, **(kwargs or {}))

    def _see(self, operation: str, args: Any) -> None:
        found = next((about for begin, about in _KINDS.items() if operation.startswith(begin)), None)
        leaves = tree_leaves(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if found is None or not tensors[0].is_floating_point():
            return
        (name, rounds), size = found, max(tensor.numel() * tensor.element_size() for tensor in tensors)
        group = next(leaf for leaf in leaves if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf))
        processes = distributed.ProcessGroup.unbox(group).size()
        self.whole[name] += size
        self.sent[name] += rounds * size * (processes - 1) // processes
        self.count[name] += 1
