"""The network, losses, augmentation and metric under JAX too: a second witness for what XLA compiles."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

HERE = Path(__file__).parent
SAME = ("test_losses.py", "test_augment.py", "test_network.py", "test_residual.py")
"""Tests of numbers, written for either backend."""
SLOW = "not parameters and not layers and not without_runner"
"""Minutes under JAX, and nothing of its own to show."""


@pytest.mark.weekly
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="this process runs under JAX already")
def test_the_same_numbers_under_jax() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-k",
        SLOW,
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in SAME),
    ]
    settings = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
