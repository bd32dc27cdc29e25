"""Faults in openkbp: Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults import Fault, Place, blank, forgets_average_in, integer_schedule, leaking_samples, negative

MAE, DVH = "runner_openkbp.losses.mae", "runner_openkbp.losses.dvh_distance"


def outside(place: Place) -> None:
    """The loss looks where no dose can be, and only there."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, model: Any, batch: Any, progress: Any) -> Any:
            return old(self, model, batch | {"mask": 1 - batch["mask"]}, progress)

        return step

    place.method("step", make)


def unmasked(place: Place) -> None:
    """`loss.masked` is a setting that nothing reads."""
    place.function(MAE, lambda old: lambda dose, reference, where=None: old(dose, reference))


def stopped(place: Place) -> None:
    """Stop the gradient of the DVH loss."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def distance(*given: Any) -> Any:
            from keras import ops

            return ops.stop_gradient(old(*given))

        return distance

    place.function(DVH, make)


def no_policy(place: Place) -> None:
    """Mixed precision is a setting that nothing reads."""
    place.function("runner_core.engines.keras.precision.policy_name", lambda old: lambda precision: "float32")


def dose(change: Callable[[Any], Any]) -> Callable[[Place], None]:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def on_device(self: Any, batch: Any, statistics: Any, rng: Any) -> Any:
            found = old(self, batch, statistics, rng)
            return found | {"dose": change(found["dose"])}

        return on_device

    return lambda place: place.method("on_device", make)


def turned(dose: Any) -> Any:
    from keras import ops

    return ops.roll(dose, 8, 1)


EMA, WITH_DVH = {"train.ema": 0.9}, {"loss.dvh": 1.0}
SCALE = "a loss has no scale of its own, and the labels are what `check` looks at"

FAULTS = [
    Fault("the loss looks outside the mask", "ignored voxels", outside),
    Fault("the mask is not used", "ignored voxels", unmasked),
    Fault("no gradient of the DVH loss", "loss without gradient", stopped, settings=WITH_DVH),
    Fault("the loss with the wrong sign", "impossible loss", negative(MAE)),
    Fault("a learning rate of 3", "constant prediction", wrong={"train.learning_rate": 3.0}),
    Fault("images are 0", "input ignored", blank("image")),
    Fault("EMA is validated, not saved", "saved is not validated", forgets_average_in("keras"), settings=EMA),
    Fault("bfloat16 is asked for and never on", "precision", no_policy, wrong={"precision.mode": "bfloat16"}),
    Fault("validation reads training records", "splits", leaking_samples),
    Fault("the schedule divides integers", "learning rate zero", integer_schedule),
    Fault("doses in cGy", "loss at chance", dose(lambda gray: gray * 100), missed=SCALE),
    Fault(
        "doses shifted against the patient",
        "loss at chance",
        dose(turned),
        missed="what is left of them is learned",
    ),
]
