"""Scores of embeddings: classifiers that never saw the plate they judge, and retrieval of a well's other sites.

Features are (N, D), one row per field; labels are numbers, −1 if there is none. Scores that cannot be computed (one
class, one plate) are NaN.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from runner_core import Array

FOLDS = 5
"""Groups are held out one by one, or in this many parts if there are more."""
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Values of the probe's C, from the strongest regularisation."""
TEMPERATURE = 0.07
_BLOCK = 1024
"""Fields whose similarities to all others are held at once."""

Classify = Callable[[Array, Array, Array, Array], Array]
"""(features, labels, groups of the training fields, features) → labels of the latter."""


class Score(NamedTuple):
    """A score `value` of `fields` that could be judged; `chance` is that of guessing among `classes`."""

    value: float
    chance: float
    fields: int
    classes: int


NOTHING = Score(math.nan, math.nan, 0, 0)


def standardised(features: Array, others: Array | None = None) -> Array:
    """Return columns of mean 0 and standard deviation 1 over all fields, as float64.

    Labels are not used; constant columns become 0. With `others` (M, D), return those, changed as `features` would be.
    """
    mean = features.mean(0, dtype=np.float64)
    deviation = (features.astype(np.float64) - mean).std(0)
    changed = features if others is None else others
    return np.asarray((changed.astype(np.float64) - mean) / np.where(deviation > 1e-12, deviation, 1))


def knn(neighbours: int) -> Classify:
    """Return a classifier by votes of the most similar fields by cosine s, weighted by exp(s / 0.07).

    DINO does the same (Caron 2021).
    """

    def classify(features: Array, labels: Array, groups: Array, asked: Array) -> Array:
        classes, codes = np.unique(labels, return_inverse=True)
        votes = np.eye(len(classes))[codes]
        count = min(neighbours, len(labels))
        known, found = unit_rows(features), []
        for rows in _blocks(unit_rows(asked)):
            similar = rows @ known.T
            nearest = np.argpartition(-similar, count - 1, axis=1)[:, :count]
            weights = np.exp(np.take_along_axis(similar, nearest, 1) / TEMPERATURE)
            found.append((weights[..., None] * votes[nearest]).sum(1).argmax(1))
        return np.asarray(classes[np.concatenate(found)])

    return classify


def probe(features: Array, labels: Array, groups: Array, asked: Array) -> Array:
    """Classify by logistic regression on standardised features, with equal weights of the classes.

    `STRENGTHS` are tried on the training groups, held out in turn.
    """
    best, highest = STRENGTHS[-2], -math.inf
    folds = list(_folds(groups, np.ones(len(groups), bool), 2))
    for strength in STRENGTHS:
        hits = [_fitted(features[~out], labels[~out], features[out], strength) for out in folds]
        scores = [balanced(labels[out], found) for out, found in zip(folds, hits, strict=True) if found is not None]
        if scores and np.mean(scores) > highest + 1e-9:
            best, highest = strength, float(np.mean(scores))
    found = _fitted(features, labels, asked, best)
    assert found is not None  # held_out saw two classes
    return found


def _fitted(features: Array, labels: Array, asked: Array, strength: float) -> Array | None:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2:
        return None
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.where(deviation > 1e-12, deviation, 1)
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not quite converged predicts as well
        model.fit((features - mean) / deviation, labels)
    return np.asarray(model.predict((asked - mean) / deviation))


def held_out(
    features: Array, labels: Array, groups: Array, asked: Array, classify: Classify, queries: Array | None = None
) -> Score:
    """Return the balanced accuracy of the `asked` fields (bool), classified from fields of other `groups`.

    Fields whose class no other group has are left out: no classifier could name it. `queries` (N, D) are the features
    of the fields when they are asked, if those differ from what taught.
    """
    questions = features if queries is None else queries
    found = np.full(len(labels), -1)
    for out in _folds(groups, asked, FOLDS):
        taught = ~out & (labels >= 0)
        classes = np.unique(labels[taught])
        judged = out & asked & np.isin(labels, classes)
        if len(classes) > 1 and judged.any():
            found[judged] = classify(features[taught], labels[taught], groups[taught], questions[judged])
    judged = found >= 0
    classes = np.unique(labels[judged])
    if len(classes) < 2:
        return NOTHING
    everyone = len(np.unique(labels[labels >= 0]))
    return Score(balanced(labels[judged], found[judged]), 1 / everyone, int(judged.sum()), everyone)


def told(features: Array, classes: Array, groups: Array, asked: Array, classify: Classify) -> Score:
    """Return how well `classes` that should not show (plates, batches) can be told, as `held_out` does.

    If the `asked` fields are of one class, all fields are asked.
    """
    several = len(np.unique(classes[asked])) > 1
    return held_out(features, classes, groups, asked if several else np.ones(len(asked), bool), classify)


def balanced(true: Array, found: Array) -> float:
    """Return the balanced accuracy: the mean over true classes of the share that was found."""
    classes, codes = np.unique(true, return_inverse=True)
    right = np.bincount(codes, weights=true == found, minlength=len(classes))
    return float(np.mean(right / np.bincount(codes)))


def _folds(groups: Array, asked: Array, most: int) -> Iterator[Array]:
    """Yield masks (N,) of the fields of some groups; every group with asked fields is in one of them."""
    names = np.unique(groups[asked])
    for first in range(min(most, len(names))):
        yield np.isin(groups, names[first::most])


class Retrieval(NamedTuple):
    hit: Score
    """Share of the fields whose most similar one is of the same well."""
    precision: Score
    """Mean average precision of the same well's fields among all others, by similarity."""


def retrieval(features: Array, wells: Array, asked: Array, queries: Array | None = None) -> Retrieval:
    """Score whether a field finds the other sites of its well among all other fields.

    `wells` has one number for each well of each plate. Fields whose well has no other field are left out. Equally
    similar fields come in random order. `queries` (N, D) are the features of the fields that search, if those differ
    from the features of the fields that are found.
    """
    order = np.random.default_rng(0).permutation(len(wells))
    unit, wells, asked = unit_rows(features)[order], wells[order], asked[order]
    searching = unit if queries is None else unit_rows(queries)[order]
    sizes = np.bincount(wells[wells >= 0])
    judged = np.flatnonzero(asked & (wells >= 0))
    judged = judged[sizes[wells[judged]] > 1]
    if not len(judged):
        return Retrieval(NOTHING, NOTHING)
    hits, precisions = [], []
    for rows in _blocks(judged):
        similar = searching[rows] @ unit.T
        similar[np.arange(len(rows)), rows] = -np.inf
        ranks = np.argsort(-similar, axis=1, kind="stable")[:, :-1]
        same = wells[ranks] == wells[rows][:, None]
        hits.append(same[:, 0])
        places = np.arange(1, same.shape[1] + 1)
        precisions.append((same * same.cumsum(1) / places).sum(1) / same.sum(1))
    others, rivals = sizes[wells[judged]] - 1, len(wells) - 1
    harmonic = (1 / np.arange(1, rivals + 1)).sum()
    by_chance = (harmonic + (others - 1) / max(1, rivals - 1) * (rivals - harmonic)) / rivals
    count, classes = len(judged), len(np.unique(wells[judged]))
    return Retrieval(
        Score(float(np.concatenate(hits).mean()), float((others / rivals).mean()), count, classes),
        Score(float(np.concatenate(precisions).mean()), float(by_chance.mean()), count, classes),
    )


def unit_rows(features: Array) -> Array:
    """Return the rows scaled to length 1; a row of zeros stays."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1))


def _blocks(rows: Array) -> Iterator[Array]:
    for first in range(0, len(rows), _BLOCK):
        yield rows[first : first + _BLOCK]
