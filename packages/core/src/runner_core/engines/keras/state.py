"""Training state of Keras as JSON and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner_core._errors import BadInput
from runner_core.engines import state
from runner_core.protocols import Json, State, Tensors


def flatten(tree: Any) -> tuple[Json, Tensors]:
    """`engines.state.flatten` for trees of arrays."""
    return state.flatten(tree, lambda leaf: None, np.asarray)


def unflatten(saved: State) -> Any:
    """The tree that `flatten` was given, out of a checkpoint's state. BadInput for another engine's."""
    if "keras" not in saved.values:
        raise BadInput("the checkpoint was not written by the keras engine")
    return state.unflatten(saved.values["keras"], saved.tensors, np.asarray)
