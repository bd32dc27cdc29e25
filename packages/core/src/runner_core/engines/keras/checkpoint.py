"""The state of a Keras training as flat tables of arrays, and its files in safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from runner_core.base.errors import BadInput
from runner_core.contract import Json, State, Tensors
from runner_core.engines import checkpoint
from runner_core.engines.checkpoint import SafetensorsFiles


class ArraysFormat(SafetensorsFiles):
    """`CheckpointFormat` for NumPy arrays."""

    def save(self, tensors: Tensors, file: Path) -> None:
        save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, file)

    def load(self, file: Path, device: str) -> Tensors:
        return load_file(file)


def flatten(tree: Any) -> tuple[Json, Tensors]:
    """Flatten a tree of arrays; see `engines.checkpoint.flatten`."""
    return checkpoint.flatten(tree, lambda leaf: None, np.asarray)


def unflatten(saved: State) -> Any:
    """Return the tree given to `flatten`, from a checkpoint's state; raise BadInput for another engine's."""
    if "keras" not in saved.values:
        raise BadInput("the checkpoint was not written by the keras engine")
    return checkpoint.unflatten(saved.values["keras"], saved.tensors, np.asarray)
