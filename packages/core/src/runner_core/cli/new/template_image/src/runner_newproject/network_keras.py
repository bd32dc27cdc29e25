"""What happens on the device: batches, augmentation, network. Loss and metrics are in objective.py."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers, ops


def read_batch(
    batch: dict[str, Any], statistics: Mapping[str, Any], rng: keras.random.SeedGenerator | None
) -> dict[str, Any]:
    """Scale stored images (B, …, C) to a mean of 0 and a spread of 1; augmented with `rng`."""
    image = (ops.cast(batch["image"], "float32") - statistics["mean"]) / statistics["std"]
    out = {**batch, "image": image if rng is None else augment(image, rng)}
    return out | ({"label": batch["label"][:, 0]} if "label" in batch else {})


def augment(image: Any, rng: keras.random.SeedGenerator) -> Any:
    """change this: what may happen to your images. Here: mirrored along each axis; darker or brighter."""

    def drawn() -> Any:
        return keras.random.uniform((image.shape[0],) + (1,) * (len(image.shape) - 1), seed=rng)

    for axis in range(1, len(image.shape) - 1):
        image = ops.where(drawn() < 0.5, ops.flip(image, axis), image)
    return image + 0.2 * (drawn() - 0.5)


def Network(axes: int, channels: int, width: int, start: Any, spread: float) -> keras.Model:  # noqa: N802 (as in torch)
    """image (B, …, C) with two or three axes → (B, outputs): `start`, plus `spread` times what the image adds."""
    x = image = keras.Input((*[None] * axes, channels))
    for n in (width, 2 * width, 4 * width):
        x = block(axes, x, n)
    x = layers.Dense(len(start), dtype="float32")(getattr(layers, f"GlobalAveragePooling{axes}D")()(x))
    return keras.Model(image, layers.Rescaling(float(spread), np.asarray(start, np.float32), dtype="float32")(x))


def block(axes: int, x: Any, outputs: int) -> Any:
    for _ in range(2):
        x = getattr(layers, f"Conv{axes}D")(outputs, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return getattr(layers, f"MaxPooling{axes}D")()(x)
