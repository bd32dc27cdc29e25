"""Training state of Keras as JSON and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Json, State, Tensors
from runner_core.engines import state


def flatten(tree: Any) -> tuple[Json, Tensors]:
    """Flatten a tree of arrays; see `engines.state.flatten`."""
    return state.flatten(tree, lambda leaf: None, np.asarray)


def unflatten(saved: State) -> Any:
    """Return the tree given to `flatten`, from a checkpoint's state; raise BadInput for another engine's."""
    if "keras" not in saved.values:
        raise BadInput("the checkpoint was not written by the keras engine")
    return state.unflatten(saved.values["keras"], saved.tensors, np.asarray)
