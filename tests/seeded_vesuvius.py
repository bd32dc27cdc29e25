"""Faults in vesuvius."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults import Fault, Place, blank, forgets_average, integer_schedule, leaking_samples, no_autocast

Function = Callable[..., Any]


def loss(name: str, change: Callable[[Function], Function]) -> Callable[[Place], None]:
    """One of the dense losses (logits, batch, settings)."""

    def make(old: Any) -> Any:
        return old._replace(function=change(old.function))

    return lambda place: place.entry("runner_vesuvius.losses.LOSSES", name, make)


def negative(function: Function) -> Function:
    return lambda *given: -function(*given)


def detached(function: Function) -> Function:
    return lambda *given: function(*given).detach()


def unmasked(function: Function) -> Function:
    return lambda logits, batch, config: function(logits, batch | {"known": batch["known"] | True}, config)


def no_tube(place: Place) -> None:
    """The cached target has no bit for skeleton recall's tube."""

    def make(old: Function) -> Function:
        def decoded(target: Any, wanted: Any) -> Any:
            found = old(target, wanted)
            return found | {"tube": found["tube"] & False}

        return decoded

    place.function("runner_vesuvius.batches.decoded", make)


def labels_of_another(place: Place) -> None:
    """Images and labels are not of the same patch."""

    def make(old: Function) -> Function:
        def on_device(self: Any, batch: Any, statistics: Any, rng: Any) -> Any:
            return old(self, batch | {"target": batch["target"].roll(1, 0).flip(1)}, statistics, rng)

        return on_device

    place.method("on_device", make)


def all_known(place: Place) -> None:
    """Make the targets of the network's levels without the mask."""

    def make(old: Function) -> Function:
        return lambda batch, logits: old(batch | {"known": batch["known"] | True}, logits)

    place.function("runner_vesuvius.objective.targets", make)


DISTANCE, CLDICE = {"loss.surface_distance.weight": 0.1}, {"loss.cldice.weight": 0.2}
LATE = {"loss.topology.weight": 0.01, "loss.topology.begin": 0.999, "loss.topology.full": 1.0}

CONSTANT = "which constant answer is best depends on the patches: the cross-entropy alone gave false alarms"

FAULTS = [
    Fault("label 2 is background", "ignored voxels", all_known),
    Fault("cross-entropy without the mask", "ignored voxels", loss("bce", unmasked)),
    Fault(
        "surface distance with the wrong sign", "impossible loss", loss("surface_distance", negative), settings=DISTANCE
    ),
    Fault("Dice with the wrong sign", "impossible loss", loss("dice", negative)),
    Fault("clDice is detached", "loss without gradient", loss("cldice", detached), settings=CLDICE),
    Fault("skeleton recall has no tube", "loss without gradient", no_tube),
    Fault("topology begins after the end", "loss never computed", wrong={**LATE, "loss.topology_every": 10}),
    Fault("bfloat16 is asked for and never on", "precision", no_autocast, wrong={"precision.mode": "bfloat16"}),
    Fault("EMA is validated, not saved", "saved is not validated", forgets_average),
    Fault("images are 0", "input ignored", blank("image")),
    Fault("labels of another patch", "loss at chance", labels_of_another, missed=CONSTANT),
    Fault("validation reads training records", "splits", leaking_samples),
    Fault("the schedule divides integers", "learning rate zero", integer_schedule),
    Fault("clipped to a thousandth", "gradients clipped", wrong={"train.clip": 1e-3}),
]
