"""The project's health rules: unannotated pixels learned as a class, annotation off the tissue, no baseline.

A tissue's label lies on tissue, a background's label off it. A label that covers most of both, in nearly every core, is
neither: it marks the pixels that nobody annotated. Such a run is stopped at its first step, whatever its loss looks
like, if that label is trained (`data.ignore` is None or names another label).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from runner_core import Finding, HealthEvent, HealthRule, counted

from runner_ssmunet.labels import MANY_OFF, output_labels, output_names

if TYPE_CHECKING:
    from runner_ssmunet.config import SSMConfig
    from runner_ssmunet.project import SSMUNet

ON, OFF = 0.3, 0.5
"""No label of a tissue or of the background covers more of the tissue (first) and of the rest (second) at once."""
SWALLOWS, STARVES = 0.8, 0.2
"""Recall of a class that takes all, and mean recall of the others."""


def rules(project: SSMUNet, config: SSMConfig) -> Sequence[HealthRule]:
    """Return the project's health rules; with frozen features, `NoBaseline` too."""
    found: list[HealthRule] = [UnannotatedLearned(project, config.data.ignore), OffTissue(project)]
    return found if config.model.features is None else [*found, NoBaseline()]


class UnannotatedLearned:
    """Error at the first step: a trained label covers more than `ON` of the tissue and `OFF` of the rest.

    If masks mark everything as tissue, such a label cannot be told from a tissue that is everywhere. Label 0 is an
    error even then. For other labels, a validation warns if the other classes are hardly found any more.

    Facts used: `recall_NAME` of validations. The shares are those that `fit` put into `project.statistics`.
    """

    name = "unannotated pixels"

    def __init__(self, project: SSMUNet, ignore: int | None) -> None:
        self.project, self.ignore = project, ignore
        self.trained: dict[int, str] = {}

    def observe(self, event: HealthEvent) -> Finding | None:
        shares = self.project.statistics.get("label_shares")
        if shares is None or event.moment not in ("first_step", "validation"):
            return None
        names = self.project.classes.names
        labels = output_labels(names, self.ignore).tolist()
        self.trained = dict(zip(labels, output_names(names, self.ignore), strict=True))
        for label, name in self.trained.items():
            on, off = map(float, shares[label])
            if not on > ON or off <= OFF:
                continue
            certain = off > OFF or label == 0
            if event.moment == "first_step" and certain:
                return Finding(self.name, "error", _message(label, name, on, off))
            if event.moment == "validation" and not certain and self._swallows(name, event.facts):
                what = (
                    f"class {name} (label {label}) holds {on:.0%} of the tissue or more in nearly every core, and the "
                )
                why = "other classes are hardly found any more: does it stand for pixels that nobody annotated?"
                return Finding(self.name, "warning", what + why)
        return None

    def _swallows(self, name: str, facts: Mapping[str, Any]) -> bool:
        others = [facts.get(f"recall_{other}", math.nan) for other in self.trained.values() if other != name]
        found = [recall for recall in others if math.isfinite(recall)]
        return bool(found) and facts.get(f"recall_{name}", 0.0) > SWALLOWS and float(np.mean(found)) < STARVES


class OffTissue:
    """Annotated pixels off the tissue mask: a note at the first step, a warning if they are many.

    These pixels are not trained on and count as missed.
    """

    name = "annotation off the tissue"

    def __init__(self, project: SSMUNet) -> None:
        self.project = project

    def observe(self, event: HealthEvent) -> Finding | None:
        off = self.project.statistics.get("off_tissue", 0)
        if event.moment != "first_step" or not off:
            return None
        share = off / (off + int(self.project.statistics["class_counts"].sum()))
        text = (
            f"{counted(off, 'annotated pixel')} ({share:.1%}) of the training cores lie off the tissue mask: they are "
            "not trained on, and all such pixels count as missed in every score"
        )
        return Finding(self.name, "warning" if share > MANY_OFF else "note", text)


class NoBaseline:
    """Note at the first step why a run on frozen features has no baseline beside its scores."""

    name = "baseline"

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "first_step":
            return None
        why = "the logistic regression reads spectra, and with model.features the cache holds features alone"
        return Finding(self.name, "note", f"there is none beside the scores: {why}")


def _message(label: int, name: str, on: float, off: float) -> str:
    where = f"{on:.0%} of the tissue or more" + ("" if math.isnan(off) else f" and {off:.0%} of what is no tissue")
    remedy = "Set data.ignore to 0" if label == 0 else "Give them label 0 in the files, which data.ignore leaves out"
    return (
        f"label {label} ({name}) is trained as a class, but in nearly every core it holds {where}: these are pixels "
        f"that nobody annotated, and what is learned from them is to find nothing. {remedy}"
    )
