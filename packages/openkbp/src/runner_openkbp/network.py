"""The challenge's 3-D U-Net, and a cascade of two.

It follows Babier et al. 2021 (10.1002/mp.14845) and the code published with it: kernels of 4³, stride 2, six halvings,
concatenated skips. Only Keras's own layers and operations are used, so that a `.keras` file of the network loads in
safe mode where runner is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from runner_openkbp.config import ModelConfig
from runner_openkbp.rois import ROIS

CHANNELS = 1 + len(ROIS)
"""CT and one mask per region."""
PRESCRIPTION = 70.0
"""Unit (Gy) of the network's last convolution, as in the challenge's winning entry. The network can learn the same
functions (the ReLU is homogeneous), but weights of ordinary size then give doses of ordinary size: a step of Adam
changes a weight by about the learning rate, whatever its gradient."""
MULTIPLES = (1, 2, 4, 8, 8, 8)
"""Channels of the levels, as multiples of the first level's."""


def dose_network(size: int, config: ModelConfig) -> keras.Model:
    """Build the network: (B, size, size, size, 11) → dose in Gy (B, size, size, size, 1) float32.

    A cascade gives a list of two doses. `size` is a power of 2, at least 8; below 64 the network has fewer levels.
    Layers take the global dtype policy, except for the head (float32).
    """
    image = keras.Input((size, size, size, CHANNELS), name="image")
    dose = _unet(image, config, "")
    if not config.cascade:
        return keras.Model(image, dose, name="dose_unet")
    seen = layers.Concatenate(name="second_input")([image, ops.multiply(dose, 1 / PRESCRIPTION)])
    return keras.Model(image, [dose, _unet(seen, config, "second_")], name="dose_cascade")


def levels(size: int) -> int:
    """Return the number of halvings of a grid of `size`³: the challenge's six, or as many as leave one voxel.

    >>> levels(128), levels(64), levels(16)
    (6, 6, 4)
    """
    return min(len(MULTIPLES), size.bit_length() - 1)


def mean_of_neighbours(x: Any) -> Any:
    """Average (B, D, H, W, 1) over 3³ neighbours, as AveragePooling3D(3, strides=1, padding="same") does.

    One axis after the other is summed by a convolution with ones and multiplied by the inverse counts. The result
    equals the layer's within rounding. XLA compiles it with its gradient in 0.3 instead of 18 s (64³, CPU), because it
    evaluates the layer's counts, a constant of the volume's size, while compiling. Three poolings along one axis each
    still take 6 s.
    """
    for axis in (1, 2, 3):
        kernel, counts = [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]
        kernel[axis - 1], counts[axis] = 3, x.shape[axis]
        inverse = np.full(x.shape[axis], 1 / 3, np.float32)
        inverse[[0, -1]] = 1 / 2
        x = ops.multiply(ops.conv(x, np.ones(kernel, np.float32), padding="same"), inverse.reshape(counts))
    return x


def _unet(image: Any, config: ModelConfig, prefix: str) -> Any:
    """Image (B, S, S, S, C) → dose in Gy (B, S, S, S, 1) float32."""
    widths = [config.features * multiple for multiple in MULTIPLES[: levels(image.shape[1])]]
    skips = [image]
    for level, width in enumerate(widths, 1):
        skips.append(_down(skips[-1], width, f"{prefix}down{level}", config, norm=level < len(widths)))
    inputs = [skips.pop()]
    for level in range(len(widths) - 1, 0, -1):
        # dropout in the second and the fourth block, counted from the coarsest
        dropout = config.dropout if (len(widths) - level) % 2 == 0 else 0.0
        inputs = [_up(inputs, widths[level - 1], f"{prefix}up{level}", config, dropout), skips.pop()]
    return _head(inputs, f"{prefix}head", config)


def _down(x: Any, width: int, name: str, config: ModelConfig, norm: bool) -> Any:
    parts = [layers.Conv3D(width, 4, 2, "same", use_bias=False, name=f"{name}_conv")]
    if norm:
        parts.append(_norm(config, name))
    parts.append(layers.LeakyReLU(0.2, name=f"{name}_relu"))
    return _block([x], parts, name, config.recompute)


def _up(inputs: Sequence[Any], width: int, name: str, config: ModelConfig, dropout: float) -> Any:
    """Return one upsampling block, followed by dropout.

    Dropout follows the ReLU here and precedes it in the challenge's code. The function is the same, because dropout
    scales by numbers that are not negative. Dropout stays outside the block, so that it is not drawn a second time when
    the block is computed again.
    """
    parts = [
        layers.Conv3DTranspose(width, 4, 2, "same", use_bias=False, name=f"{name}_conv"),
        _norm(config, name),
        layers.ReLU(name=f"{name}_relu"),
    ]
    x = _block(inputs, parts, name, config.recompute)
    return layers.SpatialDropout3D(dropout, name=f"{name}_dropout")(x) if dropout else x


def _norm(config: ModelConfig, name: str) -> layers.Layer:
    return layers.BatchNormalization(momentum=config.momentum, epsilon=1e-3, name=f"{name}_norm")


def _head(inputs: Sequence[Any], name: str, config: ModelConfig) -> Any:
    """Transposed convolution to one channel, mean over 3³ neighbours, ReLU: float32 whatever the policy."""
    start = keras.initializers.Constant(config.start / PRESCRIPTION)
    conv = layers.Conv3DTranspose(1, 4, 2, "same", bias_initializer=start, dtype="float32", name=f"{name}_conv")
    x = _block(inputs, [conv], name, config.recompute)
    return ops.multiply(ops.relu(mean_of_neighbours(x)), PRESCRIPTION)


def _block(inputs: Sequence[Any], parts: Sequence[layers.Layer], name: str, recompute: bool) -> Any:
    """Apply `parts` one after the other to the concatenation of `inputs`, as a network of its own."""
    own = [keras.Input(x.shape[1:], dtype=x.dtype) for x in inputs]
    x = layers.Concatenate(name=f"{name}_skip")(own) if len(own) > 1 else own[0]
    for part in parts:
        x = part(x)
    block = keras.Model(own, x, name=name)
    if recompute:
        _recompute(block)
    return block(list(inputs))


def _recompute(block: keras.Model) -> None:
    """Make `block` keep only its inputs in training, and compute the rest again for the gradient.

    keras.RematScope cannot do this: with TensorFlow it refuses layers that are called with `training`, and computing a
    BatchNorm again would count its batch twice in the running statistics. So the block is computed here as a pure
    function of its inputs and variables, and the new statistics are assigned once, outside. A saved network contains
    nothing of this.
    """
    plain = block.call

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return plain(inputs, training=training)
        flat = keras.tree.flatten(inputs)
        trained, kept = block.trainable_variables, block.non_trainable_variables

        def pure(*values: Any) -> Any:
            state = zip([*trained, *kept], values[len(flat) :], strict=True)
            with keras.StatelessScope(state_mapping=list(state)) as scope:
                out = plain(list(values[: len(flat)]), training=True)
            return out, *(scope.get_current_value(variable) for variable in kept)

        out, *state = keras.remat(pure)(*flat, *(variable.value for variable in (*trained, *kept)))
        for variable, value in zip(kept, state, strict=True):
            variable.assign(value)
        return out

    block.call = call
