"""Faults in ssmunet."""

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
)

CROSS_ENTROPY, DICE = "runner_ssmunet.losses.weighted_cross_entropy", "runner_ssmunet.losses.dice_loss"


def first_class(place: Place) -> None:
    """To the loss, label 0 is the first class."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, model: Any, batch: Any, progress: Any) -> Any:
            return old(self, model, batch | {"target": batch["target"].clamp(min=0)}, progress)

        return step

    place.method("step", make)


def dice_of_all(place: Place) -> None:
    """Dice has PyTorch's ignore index, not the project's."""
    place.function(DICE, lambda old: lambda logits, labels: old(logits, labels, -100))


def number(place: Place) -> None:
    """The cross-entropy is logged, and its number added to the loss."""
    place.function(CROSS_ENTROPY, lambda old: lambda *given: old(*given).item())


def no_tissue(place: Place) -> None:
    """Masks of 0 and 1 are read as such of 0 and 255: nothing is tissue."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def on_device(self: Any, batch: Any, statistics: Any, rng: Any) -> Any:
            return old(self, batch | {"tissue": batch["tissue"] // 255}, statistics, rng)

        return on_device

    place.method("on_device", make)


def no_spread(place: Place) -> None:
    """Standard deviations of 0: of a mean spectrum, say."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def fit(self: Any, store: Any, training: Any) -> Any:
            found = old(self, store, training)
            return found | {"std": found["std"] * 0}

        return fit

    place.method("fit", make)


def features_without_graph(place: Place) -> None:
    """The spectral layers compute under no_grad, as they do for prediction."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def features(self: Any, *given: Any) -> Any:
            import torch

            with torch.no_grad():
                return old(self, *given)

        return features

    place.function("runner_ssmunet.network.SSMUNetwork.features", make)


FAULTS = [
    Fault("label 0 is a class", "unannotated pixels", wrong={"data.ignore": None}),
    Fault("the loss takes label 0 for the first class", "ignored voxels", first_class),
    Fault("Dice ignores another label", "ignored voxels", dice_of_all),
    Fault("the cross-entropy is a number", "loss without gradient", number),
    Fault("Dice is detached", "loss without gradient", detached(DICE)),
    Fault("cross-entropy with the wrong sign", "impossible loss", negative(CROSS_ENTROPY)),
    Fault("tissue masks of 1 read as if of 255", "input ignored", no_tissue),
    Fault("spectra divided by 0", "not finite", no_spread),
    Fault("spectral layers under no_grad", "weights without gradient", features_without_graph),
    Fault("validation reads training records", "splits", leaking_samples),
    Fault("the schedule divides integers", "learning rate zero", integer_schedule),
    Fault("the optimizer has a copy's parameters", "weights unchanged", copied_parameters),
    Fault("EMA is validated, not saved", "saved is not validated", forgets_average, settings={"train.ema": 0.9}),
]
