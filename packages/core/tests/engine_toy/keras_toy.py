"""The toy of `engine_toy` in Keras: the same data and settings, the same things random."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import engine_toy as toy
from runner_core.contract import Step


class KerasToy(toy.Toy):
    """Segment bright pixels, with dropout, BatchNorm, augment and on_device."""

    framework = "keras"

    def on_device(self, batch, statistics, rng):
        import keras

        image = (keras.ops.cast(batch["image"], "float32") - float(statistics["mean"])) / 64
        image = keras.ops.transpose(image, (0, 2, 3, 1))
        if rng is not None:
            image = image + 0.1 * keras.random.normal(keras.ops.shape(image), seed=rng)
        out = {**batch, "image": image}
        if "mask" in batch:
            out["mask"] = keras.ops.transpose(batch["mask"], (0, 2, 3, 1))
        return out

    def model(self, precision):
        import keras
        from keras import layers

        width = 4
        stack = [keras.Input((toy.SIDE, toy.SIDE, 2)), layers.Conv2D(width, 3, padding="same")]
        stack += [layers.BatchNormalization()] if self.config.net.batchnorm else []
        stack += [layers.ReLU(), layers.Dropout(self.config.net.dropout), layers.Conv2D(1, 1)]
        return keras.Sequential(stack)

    def step(self, model, batch, progress):
        from keras import ops

        logits = ops.cast(model(batch["image"]), "float32")
        target = ops.cast(batch["mask"], "float32")
        loss = ops.mean(ops.binary_crossentropy(target, logits, from_logits=True))
        return Step(loss, {"bce": loss, "spread": ops.std(logits)}, logits)

    def watch(self, model):
        import keras

        return {"last": keras.ops.convert_to_numpy(model.trainable_variables[-1].value)}

    def metrics(self):
        from keras import ops
        from runner_core.engines.keras.metrics import KerasFunctionMetric

        def accuracy(prediction, batch):
            return ops.mean(ops.cast(ops.equal(prediction > 0, batch["mask"] > 0), "float32"))

        return [KerasFunctionMetric("accuracy", accuracy)]


NOTES = "TOY_NOTES"
"""Environment variable that names the folder of `NotesProcesses`."""


class NotesProcesses(KerasToy):
    """Each process that augments samples leaves a file by its number."""

    def augment(self, sample, rng):
        (Path(os.environ[NOTES]) / str(os.getpid())).touch()


def run(config, folder, **more):
    return toy.run(config, folder, **{"project": KerasToy, **more})


if __name__ == "__main__":  # python keras_toy.py FOLDER RESUME SETTINGS: a run that a test may kill
    run(toy.small(**json.loads(sys.argv[3])), Path(sys.argv[1]), resume=sys.argv[2] == "resume")
