"""Training state of torch as JSON and named tensors; and the state of the default random generators."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runner_core._random import stream_seed
from runner_core.engines import state
from runner_core.engines.torch import ranks
from runner_core.engines.torch.parallel import gathered, own
from runner_core.protocols import Json, Tensors
from runner_core.team import Team


def flatten(tree: Any) -> tuple[Json, Tensors]:
    """`engines.state.flatten` for torch's tensors. Of several processes all must call it: tensors that are divided
    among them are put together, in the first one's host memory; the others get empty ones in their place.

    >>> flatten({"a": torch.ones(2), "b": [1, None]})[0]
    {'a': {'__tensor__': 'a'}, 'b': [1, None]}
    """
    return state.flatten(tree, _whole, torch.from_numpy)


def _whole(leaf: Any) -> torch.Tensor | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    whole = gathered(leaf.detach())
    if own(leaf) is leaf:
        return whole
    return whole.cpu() if ranks.number() == 0 else torch.empty(0)


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


class Generators:
    """The default generators of this process, one of `team`: in a checkpoint, those of all.

    The first process's are those of a training by itself; the others draw other numbers.
    """

    def __init__(self, team: Team, device: torch.device, seed: int) -> None:
        self._team, self._device, self._seed = team, device, seed
        self._start_apart(0)

    def _start_apart(self, step: int) -> None:
        if not self._team.first:
            seed_generators(stream_seed(self._seed, step, self._team.number))

    def read(self) -> dict[str, Any]:
        """For the checkpoint: `generators`, and where there are more processes `others`, theirs in order."""
        own = read_generators(self._device)
        if self._team.count == 1:
            return {"generators": own}
        values, tensors = flatten(own)
        every = self._team.every([values, {name: [str(t.numpy().dtype), t.tolist()] for name, t in tensors.items()}])
        return {"generators": own, "others": [_unpacked(*packed) for packed in every[1:]]}

    def write(self, saved: Mapping[str, Any], step: int) -> None:
        """Go on where the checkpoint of `step` steps, if it is of as many processes, left them; else start anew."""
        others = saved.get("others", [])
        if self._team.first:
            write_generators(saved["generators"], self._device)
        elif len(others) == self._team.count - 1:
            write_generators(others[self._team.number - 1], self._device)
        else:
            self._start_apart(step)


def _unpacked(values: Json, packed: Mapping[str, Any]) -> Any:
    return unflatten(values, {name: torch.from_numpy(np.array(v, dtype)) for name, (dtype, v) in packed.items()})
