"""Refusals of what Keras on several devices cannot have, before TensorFlow is imported (which is slow)."""

from __future__ import annotations

import os
from dataclasses import replace

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig, TrainConfig
from runner_core.contract.team import Place
from runner_core.engines.device import refuse_missing_gpus
from runner_core.engines.usage import cuda_devices


def place_for_keras(config: RunConfig, place: Place | None) -> Place | None:
    """Return the place of one of several processes, or of the only one on several devices; None if it has one device.

    `place` is what a launcher says. Raises BadInput if the training cannot be.
    """
    train = config.train
    if place is not None and place.count > 1:
        return _several(train, place)
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


def _several(train: TrainConfig, place: Place) -> Place:
    """Return the place of one of several processes, each with one device. Raises BadInput for what they cannot have."""
    several = f"{place.count} processes were started together"
    if train.devices not in (1, place.count):
        raise BadInput(f"{several}, each for one device, and train.devices is {train.devices}: leave it out")
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "jax":
        raise BadInput(f"{several}: only TensorFlow trains in several; leave KERAS_BACKEND unset")
    if train.compile == "on":
        raise BadInput(f"{several}: train.compile on does not go with it; leave it out")
    found = 0 if train.device == "cpu" else cuda_devices()
    refuse_missing_gpus(place.count, place.local_count, train.device, found, "TensorFlow")
    if place.rendezvous.startswith("tcp://"):
        return place
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise BadInput(f"{several}: set MASTER_ADDR and MASTER_PORT to a free port of the first one's machine")
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun's own store
    try:
        return replace(place, rendezvous=f"tcp://{address}:{int(port) + taken}")
    except ValueError:
        raise BadInput(f"MASTER_PORT is {port!r} in the environment, and must be a whole number") from None
