"""The cases to show: records with their layers, the worst predictions first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner_core import BadInput, Layer, Network, Project, Record, Rows, goodness

_SCORES_SHOWN = 3


@dataclass(frozen=True)
class Case:
    """A record to look at."""

    key: str
    text: str
    """Its scores, or nothing."""
    layers: Sequence[Layer]


def layers_of(project: Project, record: Record, prediction: Any) -> Sequence[Layer]:
    """Return the layers of a record. Raises BadInput if the project shows none."""
    layers = project.pictures().layers
    if layers is None:
        raise BadInput(
            f"project {project.name} declares no layers (Pictures.layers): there is nothing to look at in napari"
        )
    return layers(record, prediction)


def from_files(project: Project, records: Sequence[Record], count: int) -> list[Case]:
    """Return the first records as their files have them, without a prediction."""
    return [Case(record.key, "", layers_of(project, record, None)) for record in records[:count]]


def predicted(network: Network, count: int) -> list[Case]:
    """Return the predictions of the first records, in their order, without scores."""
    chosen = replace(network, records=network.records[:count])
    return [
        Case(record.key, "", layers_of(network.project, record, network.project.predict(cropped, network.infer)))
        for record, cropped in chosen.each("predicting")
    ]


def worst(network: Network, scored: Rows, count: int) -> list[Case]:
    """Return the predictions with the worst scores, the worst first.

    `scored` are rows of scores, the worst first. If they have all records, only those that are shown are predicted;
    otherwise all are, and scored.
    """
    records = {record.key: record for record in network.records}
    rows = {row["record"]: row for row in scored}
    if records.keys() <= rows.keys():
        keys = [key for key in rows if key in records][:count]
        found = predicted(replace(network, records=[records[key] for key in keys]), count)
        return [replace(case, text=_text(_numbers(rows[case.key]))) for case in found]
    kept: list[tuple[float, Case]] = []
    for record, cropped in network.each("predicting"):
        prediction = network.project.predict(cropped, network.infer)
        scores = network.project.score(record, prediction)
        good = goodness(network.project, scores)
        if len(kept) < count or good < kept[-1][0]:
            case = Case(record.key, _text(scores), layers_of(network.project, record, prediction))
            kept = sorted([*kept, (good, case)], key=lambda one: one[0])[:count]
    return [case for _, case in kept]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, float)}


def _text(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {float(value):.3g}" for name, value in list(scores.items())[:_SCORES_SHOWN])
