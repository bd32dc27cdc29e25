"""Checkpoints of Keras: `engines.checkpoint` with arrays on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from runner_core.contract import Tensors
from runner_core.engines.checkpoint import SafetensorsFiles


class ArraysFormat(SafetensorsFiles):
    """`CheckpointFormat` for NumPy arrays."""

    def save(self, tensors: Tensors, file: Path) -> None:
        save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, file)

    def load(self, file: Path, device: str) -> Tensors:
        return load_file(file)
