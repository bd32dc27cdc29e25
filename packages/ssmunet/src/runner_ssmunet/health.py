"""The rule that stops a run in which pixels that nobody annotated are learned as a class; and why there is no baseline.

A tissue's label lies on tissue, a background's label off it. What covers most of both, in nearly every core, is
neither: it is what is left where nobody drew. Whether it is trained (`data.ignore` is None or names another label) is
all there is to know, so that such a run is stopped at its first step, whatever its loss looks like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from runner_core.project import Project
from runner_core.protocols import Finding, HealthEvent, Store

from runner_ssmunet.labels import LABELS, output_labels, output_names

Array = np.ndarray[Any, np.dtype[Any]]

ON, OFF = 0.3, 0.5
"""Shares of the tissue, and of what is no tissue, that no label of a tissue or of the background holds at once."""
NEARLY_EVERY = 0.1
"""Share of the cores that may differ."""
LEAST = 0.01
"""Share of a core below which what is no tissue says nothing."""
SWALLOWS, STARVES = 0.8, 0.2
"""Recall of a class that takes all, and mean recall of the others."""


def label_shares(store: Store, training: Sequence[int]) -> Array:
    """Share that each label holds of the tissue and of what is no tissue, in all but a tenth of the cores at least:
    (256, 2) float32. NaN where cores have none of it."""
    shares = np.full((len(training), LABELS, 2), np.nan)
    for row, record in enumerate(training):
        label, tissue = store.arrays["label"].read(record), store.arrays["tissue"].read(record) > 0
        for side, where in enumerate((tissue, ~tissue)):
            if (count := np.count_nonzero(where)) > LEAST * where.size:
                shares[row, :, side] = np.bincount(label[where], minlength=LABELS) / count
    seen = np.isfinite(shares[:, 0]).any(axis=0)
    out = np.full((LABELS, 2), np.nan, np.float32)
    out[:, seen] = np.nanquantile(shares[..., seen], NEARLY_EVERY, axis=0)
    return out


class UnannotatedLearned:
    """A trained label that holds more than `ON` of the tissue and more than `OFF` of what is no tissue: an error, at
    the first step. Where masks leave nothing out as no tissue, that cannot be told from a tissue that is everywhere:
    label 0 is an error all the same, of others a validation warns in which the other classes are found no more.

    Facts used: `recall_NAME` of validations; the shares are those that `fit` put into `project.statistics`.
    """

    name = "unannotated pixels"

    def __init__(self, project: Project, classes: Sequence[str], ignore: int | None) -> None:
        self.project = project
        labels = output_labels(classes, ignore).tolist()
        self.trained = dict(zip(labels, output_names(classes, ignore), strict=True))

    def observe(self, event: HealthEvent) -> Finding | None:
        shares = self.project.statistics.get("label_shares")
        if shares is None or event.moment not in ("first_step", "validation"):
            return None
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


class NoBaseline:
    """Why no baseline stands beside the scores of a run on frozen features: a note, at the first step."""

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
