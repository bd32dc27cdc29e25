"""What a Keras project does on two devices of one process, for the tests: `python keras_several.py FOLDER`.

In FOLDER, `handed-on` is a run of one device to go on with.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import engine_toy as toy
import keras_toy
from runner_core.contract.team import ALONE, Alone, Place, Team


class Several(keras_toy.KerasToy):
    """In float64, so that what differs is not rounding; its loss has a term of the weights and one from a layer."""

    splittable = True

    def model(self, precision):
        import keras
        from keras import layers

        stack = [keras.Input((toy.SIDE, toy.SIDE, 2), dtype="float64")]
        stack += [layers.Conv2D(4, 3, padding="same", dtype="float64", kernel_regularizer=keras.regularizers.L2(1e-3))]
        stack += [layers.BatchNormalization(dtype="float64")] if self.config.net.batchnorm else []
        stack += [layers.ReLU(dtype="float64"), layers.ActivityRegularization(l2=1e-3, dtype="float64")]
        stack += [layers.Dropout(self.config.net.dropout, dtype="float64")]
        stack += [layers.Conv2D(1, 1, dtype="float64", kernel_constraint=keras.constraints.MaxNorm(1.0))]
        return keras.Sequential(stack)

    def on_device(self, batch, statistics, rng):
        import keras

        noise = rng if self.config.net.dropout else None
        batch = super().on_device(batch, statistics, noise)
        return {**batch, "image": keras.ops.cast(batch["image"], "float64")}

    def step(self, model, batch, progress):
        from keras import ops

        logits = model(batch["image"])
        target = ops.cast(batch["mask"], "float64")
        loss = ops.mean(ops.binary_crossentropy(target, logits, from_logits=True))
        return toy.Step(loss, {"bce": loss, "mean": ops.mean(logits)}, ops.cast(logits, "float32"))


def settings(devices: int, **more):
    """Settings under which the batch has 8 samples in all, however many devices there are."""
    base = {"train__batch_size": 8 // devices, "train__devices": devices, "train__clip": 0.05, "train__ema": 0.9,
            "train__accumulate": 2, "train__weight_decay": 0.01, "train__epochs": 4, "train__learning_rate": 1e-2,
            "train__deterministic": True, "net__dropout": 0.0, "net__batchnorm": False, "validate__batch_size": 3,
            "log__every": 1, "checkpoint__every_steps": 2, "checkpoint__keep": 99}  # fmt: skip
    return toy.small(**{**base, **more})


BLOCKS = {"train__accumulate": 1, "train__steps_per_execution": 2}
HALF = {"precision__mode": "float16", "train__epochs": 1}
RANDOM = {"net__dropout": 0.3, "net__batchnorm": True, "train__optimizer": "sgd"}


class Kill(BaseException):
    """Nothing in the runner catches this."""


class Mortal(Several):
    """It ends while the fifth batch of a process is made."""

    made = 0

    def augment(self, sample, rng):
        super().augment(sample, rng)
        Mortal.made += 1
        if Mortal.made == 5 * 8 - 3:
            raise Kill


def train(config, folder: Path, *, project=Several, resume: bool = False):
    """Train on as many devices as the settings say."""
    devices = config.train.devices
    team: Team = ALONE
    if devices > 1:
        made = toy.ToySetup(project(config))
        team = made.engine.join(Place(0, 1, 0, 1, "", devices=devices))
        assert isinstance(team, Alone)
    return toy.run(config, folder, project=project, team=team, resume=resume)


def main(folder: Path) -> None:
    train(settings(2), folder / "two")
    train(settings(2), folder / "handed-on", resume=True)
    train(settings(2, **RANDOM), folder / "random")
    with suppress(Kill):
        train(settings(2, **RANDOM), folder / "killed", project=Mortal)
    train(settings(2, **RANDOM), folder / "killed", resume=True)
    train(settings(2, **BLOCKS), folder / "blocks")
    train(settings(2, **HALF), folder / "half")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
