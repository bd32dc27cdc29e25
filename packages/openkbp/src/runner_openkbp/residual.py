"""A residual U-Net that works at half the grid's resolution and coarser; for a CPU.

The first convolution takes blocks of 2³ voxels apart into channels, and the last puts them together again, so that
nearly all work is done on an eighth of the voxels, and yet the dose is as fine as the grid. There is no normalisation:
a patient predicted whole and a part of a patient in training then see the same function, and batches may be small. The
second convolution of each block starts at zero instead, so that all blocks start as the identity (Zhang et al. 2019,
arXiv:1901.09321).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from runner_openkbp.config import ModelConfig
from runner_openkbp.network import PRESCRIPTION
from runner_openkbp.rois import ROIS

CHANNELS = 2 + len(ROIS)
"""CT, one mask per region, and the possible-dose mask."""
LEAK = 0.05
"""Slope of the gradient where the network's output would be below 0 Gy."""


def residual_network(config: ModelConfig) -> keras.Model:
    """Build the network: (B, D, H, W, 12) → dose in Gy (B, D, H, W, 1) float32.

    D, H and W are any multiples of `config.unit`.
    """
    image = keras.Input((None, None, None, CHANNELS), name="image")
    x = layers.Conv3D(config.widths[0], 2, 2, name="stem")(image)
    skips = []
    for level, width in enumerate(config.widths):
        if level:
            x = layers.Conv3D(width, 2, 2, name=f"down{level}")(x)
        x = _blocks(x, width, f"in{level}", config.blocks)
        skips.append(x)
    x = skips.pop()
    for level in range(len(skips) - 1, -1, -1):
        width = config.widths[level]
        x = layers.Conv3DTranspose(width, 2, 2, name=f"up{level}")(x)
        x = layers.Add(name=f"skip{level}")([x, skips.pop()])
        x = _blocks(x, width, f"out{level}", config.blocks)
    x = layers.ReLU(name="head_relu")(x)
    start = keras.initializers.Constant(config.start / PRESCRIPTION)
    if config.refine:
        x = layers.Conv3DTranspose(config.refine, 2, 2, name="fine")(x)
        x = layers.Concatenate(name="fine_input")([x, image])
        x = layers.Conv3D(config.refine, 3, padding="same", activation="relu", name="fine_conv")(x)
        x = layers.Conv3D(1, 3, padding="same", bias_initializer=start, dtype="float32", name="head")(x)
    else:
        x = layers.Conv3DTranspose(1, 2, 2, bias_initializer=start, dtype="float32", name="head")(x)
    return keras.Model(image, ops.multiply(_never_negative(x), PRESCRIPTION), name="dose_residual")


def _never_negative(x: Any) -> Any:
    """Return max(x, 0), with a gradient below 0 too.

    Without, one bad step can leave a network whose output is 0 for good: it happened to the first training of the
    built-in weights.
    """
    below = ops.minimum(x, 0.0)
    return ops.add(ops.relu(x), ops.multiply(ops.subtract(below, ops.stop_gradient(below)), LEAK))


def _blocks(x: Any, width: int, name: str, count: int) -> Any:
    """Return x plus what `count` residual blocks add to it."""
    for number in range(count):
        y = layers.ReLU(name=f"{name}_{number}_relu1")(x)
        y = layers.Conv3D(width, 3, padding="same", kernel_initializer="he_normal", name=f"{name}_{number}_conv1")(y)
        y = layers.ReLU(name=f"{name}_{number}_relu2")(y)
        y = layers.Conv3D(width, 3, padding="same", kernel_initializer="zeros", name=f"{name}_{number}_conv2")(y)
        x = layers.Add(name=f"{name}_{number}")([x, y])
    return x
