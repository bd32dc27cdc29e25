"""Profiles of wells, as the field makes and judges them: normalised by controls, sphered, compared with replicates.

Normalisation and sphering are pycytominer's, average precision is copairs' (tests compare). Profiles are (N, D), one
row per well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from runner_core import Array, Table, counted, did_you_mean

from runner_dinocell.config import CellPredictConfig
from runner_dinocell.evaluate import knn, probe, told, unit_rows

MAD = 1.4826
"""A normal distribution's standard deviation, divided by its median absolute deviation."""


def of_wells(features: Array, place: Array) -> Array:
    """Return the mean features of each well's fields; `place` (N,) numbers the wells from 0."""
    sums = np.zeros((int(place.max()) + 1, features.shape[1]))
    np.add.at(sums, place, features)
    return np.asarray(sums / np.bincount(place)[:, None])


def normalised(
    profiles: Array, plate: Array, reference: Array, method: Literal["standardise", "mad"] = "standardise"
) -> Array:
    """Return profiles relative to the `reference` wells (N,) bool of their plate.

    standardise: less their mean, divided by their standard deviation; a constant column is not divided. mad: less their
    median, divided by `MAD` times their median absolute deviation. A plate without reference wells becomes NaN.
    """
    out = np.full(profiles.shape, np.nan)
    for number in np.unique(plate):
        own = plate == number
        known = profiles[own & reference]
        if not len(known):
            continue
        if method == "mad":
            middle = np.median(known, 0)
            spread = MAD * np.median(np.abs(known - middle), 0)
        else:
            middle, spread = known.mean(0), known.std(0)
        out[own] = (profiles[own] - middle) / np.where(spread > 1e-12, spread, 1)
    return out


def sphered(profiles: Array, reference: Array, epsilon: float) -> Array:
    """Return profiles so that the columns of the `reference` profiles (M, D) are uncorrelated, of variance 1 (ZCA-cor).

    Directions that the reference does not show, of fewer wells than columns, are scaled like its weakest one.
    `epsilon` is added to the standard deviation of each direction, so that weak ones are not blown up.
    """
    middle, spread = reference.mean(0), reference.std(0)
    spread = np.where(spread > 1e-12, spread, 1)
    known = (reference - middle) / spread
    count, width = known.shape
    _, singular, directions = np.linalg.svd(known, full_matrices=True)
    rank = max(1, int(np.linalg.matrix_rank(known)))
    singular = np.concatenate((singular[:rank], np.repeat(singular[rank - 1], width - rank)))
    scale = 1 / (singular / np.sqrt(count - 1) + epsilon)
    return np.asarray((profiles - middle) / spread @ (directions.T * scale) @ directions)


def average_precision(profiles: Array, positive: Array, negative: Array) -> Array:
    """Return each profile's average precision (N,): whether its positives are more similar to it than its negatives.

    `positive` and `negative` are (N, N) bool. Similarity is the cosine; equally similar profiles come in random order.
    NaN for a profile without positives or without negatives.
    """
    order = np.random.default_rng(0).permutation(len(profiles))
    unit = unit_rows(profiles)[order]
    found = np.full(len(profiles), np.nan)
    for row in range(len(profiles)):
        own, others = positive[row][order], negative[row][order]
        asked = own | others
        if not own.any() or not others.any():
            continue
        similar = unit[asked] @ unit[np.flatnonzero(order == row)[0]]
        hits = own[asked][np.argsort(-similar, kind="stable")]
        found[row] = (hits.cumsum() / np.arange(1, len(hits) + 1))[hits].mean()
    return found


def mean_over(values: Array, label: Array) -> float:
    """Return the mean over labels of the mean of their finite values; NaN if there are none."""
    known = np.isfinite(values)
    means = [values[known & (label == one)].mean() for one in np.unique(label[known])]
    return float(np.mean(means)) if means else float("nan")


def unknown_controls(wanted: Sequence[str], labels: Sequence[str | None]) -> str:
    """Return what is wrong with names of controls that no field has as its label; empty if all are known."""
    there = sorted({label for label in labels if label is not None})
    unknown = [name for name in wanted if name not in there]
    if not unknown:
        return ""
    shown = ", ".join(there[:8]) + (", …" if len(there) > 8 else "")
    return (
        f"predict.controls: no field has the label {unknown[0]!r}{did_you_mean(unknown[0], there)} (there are {shown})"
    )


class Wells(NamedTuple):
    """The facts known of N wells, (N,) each."""

    label: Array
    """Numbers, −1 if not known."""
    plate: Array
    batch: Array
    position: Array
    control: Array
    """bool: the wells that plates are normalised by; if none, all wells of a plate."""
    asked: Array
    """bool: the wells that are scored."""

    def only(self, rows: Array) -> Wells:
        return Wells(*(fact[rows] for fact in self))


def table(methods: Mapping[str, Array], wells: Wells, settings: CellPredictConfig, fault: str = "") -> Table:
    """Return the scores of profiles: as they are, normalised by plate, and sphered.

    Args:
        methods: profiles (N, D) of the wells by the name of their method.
        wells: the N wells.
        settings: how to normalise and to sphere, and the neighbours of the classifier of plates.
        fault: what is wrong with the names of the controls; it stands in the title.
    """
    plate, control, asked = wells.plate, wells.control, wells.asked
    reference = control if control.any() else np.ones(len(plate), bool)
    usable = np.isin(plate, np.unique(plate[reference]))
    judged, rows = wells.only(usable), list[list[str | float]]()
    for name, own in methods.items():
        by_plate = normalised(own, plate, reference, settings.normalise)[usable]
        steps = {"as they are": own[usable], "normalised": by_plate}
        known = by_plate[reference[usable]]
        if len(known) > 2:
            steps["sphered"] = sphered(by_plate, known, settings.sphering)
        rows += [[f"{name}, {step}", *_scores(values, judged, settings)] for step, values in steps.items()]
    columns = ["profiles", "replicate", "compound", "plate", "chance", "batch", "chance (batch)"]
    return Table("profiles", _title(control, asked, usable, fault), columns, rows)


def _title(control: Array, asked: Array, usable: Array, fault: str) -> str:
    by = counted(int(control.sum()), "control well") if control.any() else "all wells of the plate"
    parts = [
        f"Profiles of {counted(int((asked & usable).sum()), 'well')}, normalised by {by}",
        "Mean average precision, the mean over labels: replicate, wells of the same label before controls; compound, "
        "wells of the same label on other plates before other labels",
        "plate: k-NN over other positions; batch: linear probe over other plates (of both, lower is better, down "
        "to chance; of all wells if those that are scored are of one)",
    ]
    if (asked & ~usable).any():
        parts.append(f"{counted(int((asked & ~usable).sum()), 'well')} left out, on plates without controls")
    if not control.any():
        parts.append(f"No replicate precision: {fault or 'predict.controls names no label of controls'}")
    elif fault:
        parts.append(fault)
    return ". ".join(parts)


def _scores(values: Array, wells: Wells, settings: CellPredictConfig) -> list[float]:
    """Return replicate and compound mean average precision, and how well plate and batch can be told, each by chance.

    A batch is told from wells of its other plates. Where there is one plate or one batch, that is NaN.
    """
    label, plate, batch, position, control, asked = wells
    same = (label[:, None] == label) & (label >= 0)
    apart = (label[:, None] != label) & (label >= 0) & (label[:, None] >= 0)
    judged = np.where(asked & ~control, label, -1)
    found: list[float] = []
    for positive, negative in (
        (same & ~np.eye(len(label), dtype=bool), apart & control),
        (same & (plate[:, None] != plate), apart),
    ):
        precision = np.where(judged >= 0, average_precision(values, positive, negative), np.nan)
        found.append(mean_over(precision, judged))
    # the own batch has one plate less to be told from, so its wells must count more: the probe weighs classes equally
    for classes, groups, classify in ((plate, position, knn(settings.neighbours)), (batch, plate, probe)):
        score = told(values, classes, groups, asked, classify)
        found += [score.value, score.chance]
    return found
