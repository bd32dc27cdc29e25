"""Judgement of a set of embeddings: classes and plates that can be read off, compared with other methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from runner_core import AnyRecord, Array, Judgement, Predicted, Table, counted
from threadpoolctl import threadpool_limits

from runner_dinocell import classical, dropped, profiles
from runner_dinocell.baseline import columns, count
from runner_dinocell.config import CellPredictConfig
from runner_dinocell.evaluate import Score, held_out, knn, probe, retrieval, standardised, told
from runner_dinocell.fields import Field
from runner_dinocell.figures import embedding_map
from runner_dinocell.whole import Embedded

WHAT = {
    "probe": "label, linear probe",
    "knn": "label, k-NN",
    "retrieval": "nearest field is of the same well",
    "retrieval_map": "average precision of the same well's fields",
    "probe_well": "well position, linear probe",
    "knn_well": "well position, k-NN",
    "plate": "plate, k-NN over other wells (lower is better)",
    "batch": "batch, linear probe over other plates (lower is better)",
}
"""The scores, and their names in tables."""
UNTRAINED = "untrained network"
PIXELS = "pixel statistics"
CLASSICAL = "classical features"
"""Those of `classical`, if scikit-image is installed."""


class Known(NamedTuple):
    """Labels of N fields, as numbers (N,), −1 if not known."""

    label: Array
    plate: Array
    batch: Array
    """Of a source; plates of a batch share its stains and days."""
    well: Array
    """Position: A01 is the same on each plate."""
    place: Array
    """A well of a plate."""
    asked: Array
    """bool: fields that are scored; the other fields only teach."""


def chosen(records: Sequence[AnyRecord], most: int) -> list[AnyRecord]:
    """Choose about `most` of the records, spread over plates.

    Wells are taken whole, with all sites or none, and at least one is taken.
    """
    ordered = sorted(records, key=lambda record: record.key)
    if len(ordered) <= most:
        return ordered
    wells: dict[str, list[AnyRecord]] = {}
    for record in ordered:
        assert isinstance(record, Field)
        wells.setdefault(f"{record.whole_plate}/{record.well}", []).append(record)
    count = max(1, most * len(wells) // len(ordered))
    names = list(wells)
    return [record for place in range(count) for record in wells[names[place * len(names) // count]]]


def judge(
    predicted: Sequence[Predicted], settings: CellPredictConfig, channels: Sequence[str] = ()
) -> Judgement | None:
    """Score the network, the untrained one and pixel statistics, by classifiers that saw other plates only.

    If pretraining did not see some plates, only those are scored; the plates it saw may teach classifiers. Returns None
    for fewer than two fields. Fields with labels are also scored as profiles of wells. `channels` are those of the
    network; if the predictions have embeddings without some of them (`predict.drop_channels`), a table shows their
    scores.
    """
    if len(predicted) < 2:
        return None
    known = _known(predicted)
    methods = {"network": np.stack([_embedding(p.prediction) for p in predicted])}
    if all(p.untrained is not None for p in predicted):
        methods[UNTRAINED] = np.stack([_embedding(p.untrained) for p in predicted])
    if all(p.baseline is not None for p in predicted):
        features = np.stack([p.baseline for p in predicted])
        channels_there = len(_field(predicted[0]).channels)
        further = classical.count(channels_there) if channels_there else 0
        both = features.shape[1] == count(channels_there) + further
        methods[PIXELS] = features[:, :-further] if both else features
        if both:
            methods[CLASSICAL] = features[:, -further:]
    with threadpool_limits(1):  # such small problems: threads would only wait
        found = {name: scores(standardised(features), known, settings.neighbours) for name, features in methods.items()}
        tables = [_table(found, predicted, known), *_profiles(methods, predicted, known, settings)]
        tables += _dropped(methods, predicted, known, channels)
    values = {name: _values(own) for name, own in found.items()}
    return Judgement(
        scores=values["network"],
        baseline=values.get(PIXELS, {}),
        further={name: values[name] for name in (UNTRAINED, CLASSICAL) if name in values},
        tables=tables,
        pictures={"embeddings": _map(methods["network"], predicted)},
    )


def scores(features: Array, known: Known, neighbours: int) -> dict[str, Score]:
    """Return all scores in `WHAT` for features (N, D)."""
    nearest = knn(neighbours)
    sites = retrieval(features, known.place, known.asked)
    return {
        "probe": held_out(features, known.label, known.plate, known.asked, probe),
        "knn": held_out(features, known.label, known.plate, known.asked, nearest),
        "retrieval": sites.hit,
        "retrieval_map": sites.precision,
        "probe_well": held_out(features, known.well, known.plate, known.asked, probe),
        "knn_well": held_out(features, known.well, known.plate, known.asked, nearest),
        "plate": told(features, known.plate, known.well, known.asked, nearest),
        "batch": told(features, known.batch, known.plate, known.asked, probe),
    }


def _known(predicted: Sequence[Predicted]) -> Known:
    fields = [_field(p) for p in predicted]
    unseen = np.array([p.unseen for p in predicted])
    return Known(
        label=_numbers([field.label for field in fields]),
        plate=_numbers([field.whole_plate for field in fields]),
        batch=_numbers([f"{field.source}/{field.batch}" for field in fields]),
        well=_numbers([field.well for field in fields]),
        place=_numbers([f"{field.whole_plate}/{field.well}" for field in fields]),
        asked=unseen if unseen.any() else ~unseen,
    )


def _field(predicted: Predicted) -> Field:
    assert isinstance(predicted.record, Field)
    return predicted.record


def _embedding(prediction: Embedded) -> Array:
    return prediction.field


def _numbers(names: Sequence[str | None]) -> Array:
    order = {name: place for place, name in enumerate(sorted({name for name in names if name is not None}))}
    return np.array([-1 if name is None else order[name] for name in names])


def _values(found: Mapping[str, Score]) -> dict[str, float]:
    """Return the values that exist first, because the first one is the headline."""
    return {name: score.value for name, score in sorted(found.items(), key=lambda item: math.isnan(item[1].value))}


def _table(found: Mapping[str, Mapping[str, Score]], predicted: Sequence[Predicted], known: Known) -> Table:
    plates = len(np.unique(known.plate[known.asked]))
    which = "that pretraining did not see" if any(p.unseen for p in predicted) else ", all seen by pretraining"
    title = (
        f"{counted(int(known.asked.sum()), 'field')} of {counted(plates, 'plate')} {which}; classifiers learned from "
        "other plates only. Accuracies are means over classes"
    ).replace(" ,", ",")
    rows: list[list[str | float]] = [
        [what, score.fields, score.classes, score.chance, *(own[name].value for own in found.values())]
        for name, what in WHAT.items()
        for score in (found["network"][name],)
        if score.fields
    ]
    return Table("embeddings", title, ["what", "fields", "classes", "chance", *found], rows)


def _profiles(
    methods: Mapping[str, Array], predicted: Sequence[Predicted], known: Known, settings: CellPredictConfig
) -> list[Table]:
    """Return the table of profiles of wells, if fields have labels; a well has the label of its first field."""
    labels = [_field(p).label for p in predicted]
    control = np.array([label in settings.controls for label in labels])
    if not any(label is not None for label in labels):
        return []
    first = np.unique(known.place, return_index=True)[1]
    of_wells = {name: profiles.of_wells(features, known.place) for name, features in methods.items()}
    wells = profiles.Wells(known.label, known.plate, known.batch, known.well, control, known.asked).only(first)
    return [profiles.table(of_wells, wells, settings, profiles.unknown_controls(settings.controls, labels))]


def _dropped(
    methods: Mapping[str, Array], predicted: Sequence[Predicted], known: Known, channels: Sequence[str]
) -> list[Table]:
    """Return the table of fields without some channels, if all predictions have such embeddings."""
    if any(p.prediction.dropped is None for p in predicted):
        return []
    variants = dropped.variants(channels)
    compared = {"network": dropped.Method(methods["network"], _variants([p.prediction for p in predicted]))}
    if UNTRAINED in methods:
        own = _variants([p.untrained for p in predicted])
        compared[UNTRAINED] = dropped.Method(methods[UNTRAINED], own)
    if PIXELS in methods:
        there = _field(predicted[0]).channels
        kept = [[place for place, name in enumerate(there) if name in variant.kept] for variant in variants]
        own = [methods[PIXELS][:, columns(len(there), places)] for places in kept]
        compared[PIXELS] = dropped.Method(methods[PIXELS], own)
    names = [variant.name for variant in variants]
    return [dropped.table(compared, names, known.label, known.plate, known.place, known.asked)]


def _variants(predictions: Sequence[Embedded]) -> list[Array]:
    """Return the embeddings (N, D) of each variant."""
    return list(np.stack([np.asarray(prediction.dropped) for prediction in predictions], 1))


def _map(features: Array, predicted: Sequence[Predicted]) -> Array:
    fields = [_field(p) for p in predicted]
    kinds = {"label": [field.label or "" for field in fields], "plate": [field.whole_plate for field in fields]}
    return embedding_map(features, {name: names for name, names in kinds.items() if any(names)})
