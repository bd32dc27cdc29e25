"""Faults in dinocell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from faults import Fault, Place, blank, detached, forgets_average, leaking_samples, negative

TARGETS = "runner_dinocell.targets."


def eight_bits(place: Place) -> None:
    """16-bit images are read as if they had 8."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def decode(self: Any, record: Any) -> Any:
            found = old(self, record)
            found.arrays["image"] = found.arrays["image"] >> 8
            return found

        return decode

    place.method("decode", make)
    place.method(
        "dataset", lambda old: replace(old, prepare_version=old.prepare_version + 1)
    )  # else the cache itself refuses it


def no_centring(place: Place) -> None:
    """The teacher's answers are sharpened, and not centred."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def sinkhorn(logits: Any, temperature: float) -> Any:
            from runner_dinocell.targets import centred

            return centred(logits, logits.new_zeros(logits.shape[1]), temperature)

        return sinkhorn

    place.function(TARGETS + "sinkhorn", make)


def left_behind(place: Place) -> None:
    """The teacher never follows the student."""
    place.facet("learning", after_step=lambda old: lambda model, progress: None)


def integer_rate(place: Place) -> None:
    """The share of the training that is done, in integers."""
    place.function(
        "runner_dinocell.schedules.learning_rate",
        lambda old: lambda config, progress: progress.step // progress.steps,
    )


def copied_student(place: Place) -> None:
    """The optimizer is given the parameters of a copy."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def groups(model: Any) -> Any:
            from copy import deepcopy

            return old(deepcopy(model))

        return groups

    place.facet("learning", parameter_groups=make)


FAULTS = [
    Fault("16 bits read as 8", "grey levels", eight_bits),
    Fault("no centring", "few prototypes", no_centring),
    Fault("a teacher no sharper than the student", "teacher temperature", wrong={"loss.teacher_temperature": 0.2}),
    Fault("a teacher that does not follow", "predictions unchanged", left_behind),
    Fault("KoLeo is detached", "loss without gradient", detached("runner_dinocell.losses.koleo")),
    Fault("iBOT with the wrong sign", "impossible loss", negative("runner_dinocell.losses.ibot")),
    Fault("windows are 0", "embeddings alike", blank("globals", "locals")),
    Fault("EMA is validated, not saved", "saved is not validated", forgets_average, settings={"train.ema": 0.9}),
    Fault("validation reads training records", "splits", leaking_samples),
    Fault("the schedule divides integers", "learning rate zero", integer_rate),
    Fault("the optimizer has a copy's parameters", "weights unchanged", copied_student),
    Fault("clipped to a thousandth", "gradients clipped", wrong={"train.clip": 1e-3}),
]
