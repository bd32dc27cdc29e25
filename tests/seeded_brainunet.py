"""Faults in brainunet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults import (
    Fault,
    Place,
    copied_parameters,
    detached,
    forgets_average,
    integer_schedule,
    leaking_samples,
    negative,
    no_autocast,
    unsaved_statistics,
)

LOSSES = "runner_brainunet.losses."


def reads(change: Callable[[Any], dict[str, Any]]) -> Callable[[Place], None]:
    """Change the cached arrays before `on_device`."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, batch, statistics, rng: old(self, {**batch, **change(batch)}, statistics, rng)

    return lambda place: place.method("on_device", make)


def sigmoid_twice(place: Place) -> None:
    """The network's answers are probabilities, and taken for logits."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def model(self: Any, precision: Any) -> Any:
            import torch

            return torch.nn.Sequential(old(self, precision), torch.nn.Sigmoid())

        return model

    place.method("model", make)


BFLOAT16, EMA = {"precision.mode": "bfloat16"}, {"train.ema": 0.9}

FAULTS = [
    Fault("bfloat16 is asked for and never on", "precision", no_autocast, settings=BFLOAT16, quick=True),
    Fault("validation reads training records", "splits", leaking_samples, quick=True),
    Fault("cross-entropy with the wrong sign", "impossible loss", negative(LOSSES + "bce_loss"), quick=True),
    Fault("Dice with the wrong sign", "impossible loss", negative(LOSSES + "dice_loss")),
    Fault("masks of 255 for 1", "impossible loss", reads(lambda batch: {"mask": batch["mask"] * 255})),
    Fault("masks of the next slice", "constant prediction", reads(lambda batch: {"mask": batch["mask"].roll(1, 0)})),
    Fault("8-bit images divided as integers", "constant prediction", reads(lambda b: {"image": b["image"] // 255})),
    Fault("a sigmoid before a loss on logits", "constant prediction", sigmoid_twice),
    Fault("Dice is detached", "loss without gradient", detached(LOSSES + "dice_loss")),
    Fault("the schedule divides integers", "learning rate zero", integer_schedule),
    Fault("the optimizer has a copy's parameters", "weights unchanged", copied_parameters),
    Fault("clipped to a thousandth", "gradients clipped", wrong={"train.clip": 1e-3}),
    Fault("EMA is validated, not saved", "saved is not validated", forgets_average, settings=EMA),
    Fault("BatchNorm's statistics are not saved", "saved is not validated", unsaved_statistics),
]
