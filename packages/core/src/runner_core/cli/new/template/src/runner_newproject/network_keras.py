"""What happens on the device: batches, augmentation, network, loss, metrics. Only this file imports keras."""

from typing import Any

import keras
from keras import layers, ops
from runner_core import KerasFunctionMetric


def read_batch(batch: dict[str, Any], rng: keras.random.SeedGenerator | None) -> dict[str, Any]:
    """Scale stored uint8: image (B, …, C) in -1…1 and mask (B, …), if any; augmented with `rng`."""
    out = {**batch, "image": ops.cast(batch["image"], "float32") / 127.5 - 1}
    if rng is not None:
        image, mask = augment(out["image"], out["mask"][..., None], rng)
        out |= {"image": image, "mask": mask[..., 0]}
    return out


def augment(image: Any, mask: Any, rng: keras.random.SeedGenerator) -> tuple[Any, Any]:
    """change this: what may happen to images (B, …, C) and masks (B, …, 1). Here: mirrored; brightness; contrast."""

    def drawn() -> Any:
        return keras.random.uniform((image.shape[0],) + (1,) * (len(image.shape) - 1), seed=rng)

    for axis in range(1, len(image.shape) - 1):
        flip = drawn() < 0.5
        image, mask = (ops.where(flip, ops.flip(x, axis), x) for x in (image, mask))
    return image * (0.7 + 0.6 * drawn()) + 0.4 * (drawn() - 0.5), mask


def unet(axes: int, channels: int, classes: int, width: int) -> keras.Model:
    """Map an image (B, …, C) with two or three axes to logits (B, …, classes); sides are multiples of 4."""
    widths = [width, 2 * width, 4 * width]
    x = image = keras.Input((*[None] * axes, channels))
    skips: list[Any] = []
    for n in widths:
        x = block(axes, of(axes, "MaxPooling")()(x) if skips else x, n)
        skips.append(x)
    for n, skip in zip(reversed(widths[:-1]), reversed(skips[:-1]), strict=True):
        x = block(axes, layers.Concatenate()([skip, of(axes, "UpSampling")()(x)]), n)
    return keras.Model(image, of(axes, "Conv")(classes, 1)(x))


def block(axes: int, x: Any, outputs: int) -> Any:
    for _ in range(2):
        x = of(axes, "Conv")(outputs, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return x


def of(axes: int, kind: str) -> Any:
    """Return a layer for images (2 axes) or volumes (3): layers.Conv2D, layers.Conv3D."""
    return getattr(layers, f"{kind}{axes}D")


def losses(logits: Any, mask: Any) -> dict[str, Any]:
    """change this: terms that are added up. `logits` (B, …, K), `mask` (B, …)."""
    log = ops.log_softmax(ops.cast(logits, "float32"))
    true = one_hot(mask, logits)
    return {"cross_entropy": -ops.mean(ops.sum(true * log, -1)), "dice_loss": 1 - ops.mean(dice(ops.exp(log), true))}


def dice(found: Any, true: Any) -> Any:
    """(B, …, K) each → (B, K): Dice of each class, with one pixel added to both so that none is 1."""
    axes = tuple(range(1, len(found.shape) - 1))
    return (2 * ops.sum(found * true, axes) + 1) / (ops.sum(found, axes) + ops.sum(true, axes) + 1)


def decide(logits: Any) -> Any:
    return ops.argmax(logits, -1)


def one_hot(classes: Any, logits: Any) -> Any:
    return ops.one_hot(ops.cast(classes, "int32"), logits.shape[-1], dtype="float32")


def metrics() -> list[KerasFunctionMetric]:
    """dice: mean over squares and over the classes but the first."""

    def of_batch(logits: Any, batch: dict[str, Any]) -> Any:
        return ops.mean(dice(one_hot(decide(logits), logits), one_hot(batch["mask"], logits))[:, 1:])

    return [KerasFunctionMetric("dice", of_batch)]
