"""The toy project of the tests with a Keras network: the same data, samples, scores and settings."""

from __future__ import annotations

from typing import Any

from runner_core import Learning, Precision, Project, Step, hookimpl
from toy_project import Toy


class KerasToy(Toy):
    name = "kerastoy"
    framework = "keras"

    def learning(self) -> Learning:
        return Learning(augment=self._augment)

    def on_device(self, batch: dict[str, Any], statistics: Any, rng: Any | None) -> dict[str, Any]:
        import keras

        image = keras.ops.cast(batch["image"], "float32") / 64 - 2
        if rng is not None:
            image = image + 0.02 * keras.random.normal(keras.ops.shape(image), seed=rng)
        return {**batch, "image": image}

    def model(self, precision: Precision) -> Any:
        import keras
        from keras import layers

        width = self.config.model.width
        return keras.Sequential([
            *(keras.Input((1, 24, 24)), layers.Permute((2, 3, 1))),
            *(layers.Conv2D(width, 3, padding="same"), layers.ReLU(), layers.Dropout(self.config.model.dropout)),
            *(layers.Conv2D(1, 3, padding="same"), layers.Permute((3, 1, 2))),
        ])  # fmt: skip

    def step(self, model: Any, batch: dict[str, Any], progress: Any) -> Step:
        from keras import ops

        logits = ops.cast(model(batch["image"]), "float32")
        target = ops.cast(batch["mask"], "float32")
        loss = ops.mean(ops.binary_crossentropy(target, logits, from_logits=True))
        return Step(loss, {"bce": loss}, logits)


@hookimpl
def runner_project() -> type[Project]:
    return KerasToy
