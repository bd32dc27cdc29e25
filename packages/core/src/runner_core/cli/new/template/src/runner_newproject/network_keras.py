"""What happens on the device: batches, augmentation, network, loss, metrics. Only this file imports keras."""

from typing import Any

import keras
from keras import layers, ops
from runner_core import KerasFunctionMetric


def read_batch(batch: dict[str, Any], rng: keras.random.SeedGenerator | None) -> dict[str, Any]:
    """Scale stored uint8: image (B, H, W, 1) in -1…1 and mask (B, H, W), if any; augmented with `rng`."""
    out = {**batch, "image": ops.cast(batch["image"], "float32") / 127.5 - 1}
    if rng is not None:
        out |= augment(out["image"], out["mask"], rng)
    return {**out, "image": out["image"][..., None]}


def augment(image: Any, mask: Any, rng: keras.random.SeedGenerator) -> dict[str, Any]:
    """change this: what may happen to your images. Here: mirrored; darker or brighter; less or more contrast."""

    def drawn() -> Any:
        return keras.random.uniform((image.shape[0], 1, 1), seed=rng)

    for axis in (1, 2):
        flip = drawn() < 0.5
        image, mask = (ops.where(flip, ops.flip(x, axis), x) for x in (image, mask))
    return {"image": image * (0.7 + 0.6 * drawn()) + 0.4 * (drawn() - 0.5), "mask": mask}


def unet(classes: int, width: int) -> keras.Model:
    """Map an image (B, H, W, 1) to logits (B, H, W, classes); H and W multiples of 4 with three levels."""
    widths = [width, 2 * width, 4 * width]
    x = image = keras.Input((None, None, 1))
    skips: list[Any] = []
    for n in widths:
        x = block(layers.MaxPooling2D()(x) if skips else x, n)
        skips.append(x)
    for n, skip in zip(reversed(widths[:-1]), reversed(skips[:-1]), strict=True):
        x = block(layers.Concatenate()([skip, layers.UpSampling2D()(x)]), n)
    return keras.Model(image, layers.Conv2D(classes, 1)(x))


def block(x: Any, outputs: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(outputs, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return x


def losses(logits: Any, mask: Any) -> dict[str, Any]:
    """change this: terms that are added up. `logits` (B, H, W, K), `mask` (B, H, W)."""
    log = ops.log_softmax(ops.cast(logits, "float32"))
    true = one_hot(mask, logits)
    return {"cross_entropy": -ops.mean(ops.sum(true * log, -1)), "dice_loss": 1 - ops.mean(dice(ops.exp(log), true))}


def dice(found: Any, true: Any) -> Any:
    """(B, H, W, K) each → (B, K): Dice of each class, with one pixel added to both so that none is 1."""
    return (2 * ops.sum(found * true, (1, 2)) + 1) / (ops.sum(found, (1, 2)) + ops.sum(true, (1, 2)) + 1)


def decide(logits: Any) -> Any:
    return ops.argmax(logits, -1)


def one_hot(classes: Any, logits: Any) -> Any:
    return ops.one_hot(ops.cast(classes, "int32"), logits.shape[-1], dtype="float32")


def metrics() -> list[KerasFunctionMetric]:
    """dice: mean over squares and over the classes but the first."""

    def of_batch(logits: Any, batch: dict[str, Any]) -> Any:
        return ops.mean(dice(one_hot(decide(logits), logits), one_hot(batch["mask"], logits))[:, 1:])

    return [KerasFunctionMetric("dice", of_batch)]
