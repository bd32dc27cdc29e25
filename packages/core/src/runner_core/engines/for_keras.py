"""What a Keras training on several devices cannot have, found out before TensorFlow is imported (which is slow)."""

from __future__ import annotations

import os

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig, TrainConfig
from runner_core.contract.team import Place
from runner_core.engines.device import refuse_missing_gpus
from runner_core.engines.usage import cuda_devices


def place_for_keras(config: RunConfig, place: Place | None) -> Place | None:
    """Return the place of the only process of a training on several devices; None if it has one device.

    `place` is what a launcher says. Raises BadInput if the training cannot be.
    """
    train = config.train
    if place is not None:
        refuse_several(train, place)
    if train.devices == 1:
        return None
    several = f"train.devices {train.devices}"
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "jax":
        raise BadInput(f"{several}: only TensorFlow trains on several; leave KERAS_BACKEND unset")
    if train.compile == "on":
        raise BadInput(f"{several}: train.compile on does not go with it; leave it out")
    found = 0 if train.device == "cpu" else cuda_devices()
    if not found and train.device != "cpu":
        raise BadInput(
            f"{several}: there is no GPU here that TensorFlow could use; try several devices on the processor with "
            "--train.device cpu"
        )
    refuse_missing_gpus(train.devices, train.devices, train.device, found, "TensorFlow")
    return Place(0, 1, 0, 1, "", devices=train.devices)


def refuse_several(train: TrainConfig, place: Place) -> None:
    """Raise BadInput if a launcher started several processes."""
    if place.count > 1:
        raise BadInput(
            f"{place.count} processes were started together, and a Keras project trains in one, on the devices of one "
            "machine: start one process, with --devices N"
        )
