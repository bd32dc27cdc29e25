"""Weights in a file, for a new Keras network."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import shorten

import keras
from safetensors.numpy import load_file

from runner_core.base.errors import BadInput
from runner_core.contract import Tensors
from runner_core.engines.keras.network import apart, arrays, named

_CODE = re.compile(r"Python lambda|Could not locate (?:class|function) '[^']*'|[Uu]nsafe deserialization")
"""What Keras says of a file that holds a function, or a layer that is not Keras's own."""


def read_weights(file: Path) -> Tensors:
    """Return the weights in a .safetensors or .keras file, by name; raise BadInput if it holds none."""
    if file.suffix not in (".safetensors", ".keras"):  # safe_mode does not hold for older formats
        raise BadInput(
            f"{file} is neither a .safetensors nor a .keras file, and others may hold programs: if you trust it, load "
            "it with Keras and save the network as .keras"
        )
    try:
        if file.suffix == ".safetensors":
            weights = dict(load_file(file))
        else:
            with apart():
                weights = arrays(named(keras.saving.load_model(file, compile=False, safe_mode=True).variables))
    except Exception as error:  # readers raise any exception for a damaged file
        if code := _CODE.search(str(error)):
            raise BadInput(
                f"{file} needs code of its author ({code[0]}), which runner does not run: if you trust it, load it "
                "with Keras yourself, and save its weights as .safetensors"
            ) from error
        why = shorten(str(error), 300, placeholder=" …")
        raise BadInput(f"{file} cannot be read as weights: {type(error).__name__}: {why}") from error
    if not weights:
        raise BadInput(f"{file} holds no weights")
    return weights
