"""The Keras engine: Keras 3 on TensorFlow (the default) or, with KERAS_BACKEND=jax, on JAX."""

import os

# Keras and TensorFlow read these when they are imported, so they are set first.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else TensorFlow reports on the terminal that there is no GPU
# Without AVX-512, TensorFlow leaves oneDNN off on x86, and its own 3-D convolutions take 50 times as long.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from runner_core.engines.keras.engine import KerasEngine

__all__ = ["KerasEngine"]
