"""Training state of torch as JSON and named tensors; and the state of the default random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from runner_core.engines import state
from runner_core.protocols import Json, Tensors


def flatten(tree: Any) -> tuple[Json, Tensors]:
    """`engines.state.flatten` for torch's tensors.

    >>> flatten({"a": torch.ones(2), "b": [1, None]})[0]
    {'a': {'__tensor__': 'a'}, 'b': [1, None]}
    """
    return state.flatten(tree, lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else None, torch.from_numpy)


def unflatten(json: Json, tensors: Tensors) -> Any:
    """The nested state that `flatten` was given."""
    return state.unflatten(json, tensors, lambda tensor: tensor.cpu().numpy())


def seed_generators(seed: int) -> None:
    """Seed the generators that a project's own code may use (dropout, initial weights)."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 - for code that is not ours
    random.seed(seed)


def read_generators(device: torch.device, everything: bool = True) -> dict[str, Any]:
    """State of torch's default generators (host and device) and, with `everything`, of NumPy's and Python's."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if everything:
        state["numpy"] = np.random.get_state()  # noqa: NPY002
        state["python"] = random.getstate()
    return state


def write_generators(state: dict[str, Any], device: torch.device) -> None:
    """Put generators back to where `read_generators` saw them."""
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    if "numpy" in state:
        np.random.set_state(state["numpy"])  # noqa: NPY002
        random.setstate(state["python"])
