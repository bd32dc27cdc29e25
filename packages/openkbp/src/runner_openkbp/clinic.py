"""Clinical goals: limits of regions' doses, and whether a dose meets them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner_core import BadInput, did_you_mean, read_yaml

from runner_openkbp.rois import Array, Patient
from runner_openkbp.scores import CELLS, dvh_metrics

_GOAL = re.compile(r"(?P<roi>\w+)\s+(?P<metric>[\w.]+)\s*(?P<sign><=|>=)\s*(?P<gy>\d+(\.\d+)?)(\s*Gy)?")
EXAMPLE = "goals: [SpinalCord D_0.1_cc <= 45, RightParotid mean <= 26, PTV70 D_99 >= 66.5]"


@dataclass(frozen=True)
class Goal:
    """A limit (Gy) of one of the 23 DVH metrics; `most` says that the dose must not be above it."""

    roi: str
    metric: str
    most: bool
    gy: float

    def met(self, value: float) -> bool:
        """Return whether a value meets the goal."""
        return value <= self.gy if self.most else value >= self.gy

    def __str__(self) -> str:
        return f"{self.roi} {self.metric} {'<=' if self.most else '>='} {self.gy:g} Gy"


DEFAULT = tuple(
    Goal(*goal)
    for goal in (
        *(("Brainstem", "D_0.1_cc", True, 54.0), ("SpinalCord", "D_0.1_cc", True, 45.0)),
        *(
            ("RightParotid", "mean", True, 26.0),
            ("LeftParotid", "mean", True, 26.0),
            ("Mandible", "D_0.1_cc", True, 70.0),
        ),
        *(("PTV70", "D_95", False, 70.0), ("PTV63", "D_95", False, 63.0), ("PTV56", "D_95", False, 56.0)),
    )
)
"""Limits of the trial RTOG 0225 (head and neck): its scoring of organs, with 0.1 cm³ for a point, and of PTV70: 95 % of
it get the prescription. The same holds for the other targets."""


def read_goals(path: Path | None) -> Sequence[Goal]:
    """Return the goals of a YAML table, or the default ones. Raises BadInput that names the file and the goal."""
    if path is None:
        return DEFAULT
    if not path.is_file():
        raise BadInput(f"{path}: no such file; predict.goals is a table of clinical goals. Example: {EXAMPLE}")
    found = read_yaml(path, "table of goals")
    lines = found.get("goals") if isinstance(found, dict) else None
    if not isinstance(lines, list) or not lines or not all(isinstance(line, str) for line in lines):
        raise BadInput(f"{path}: holds no list of goals. Example: {EXAMPLE}")
    return [_goal(path, line) for line in lines]


def _goal(path: Path, line: str) -> Goal:
    found = _GOAL.fullmatch(line.strip())
    if found is None:
        raise BadInput(f"{path}: {line!r} is no goal. Example: {EXAMPLE}")
    if (found["roi"], found["metric"]) not in CELLS:
        known = [f"{roi} {metric}" for roi, metric in CELLS]
        asked = f"{found['roi']} {found['metric']}"
        raise BadInput(f"{path}: {asked} is no metric{did_you_mean(asked, known)}. They are {', '.join(known)}")
    return Goal(found["roi"], found["metric"], found["sign"] == "<=", float(found["gy"]))


def judge(goals: Sequence[Goal], dose: Array, masks: Array, voxel_mm: Array) -> Iterator[tuple[Goal, float]]:
    """Yield each goal whose region the patient has, with the dose's value (Gy).

    Args:
        goals: what to judge.
        dose: 3-D, Gy.
        masks: uint16 of the dose's shape, one bit per region.
        voxel_mm: (3,), the size of a voxel.
    """
    values = dvh_metrics(dose, masks, voxel_mm)
    for goal in goals:
        if math.isfinite(value := values[goal.roi, goal.metric]):
            yield goal, value


def write_goals(path: Path, goals: Sequence[Goal], patient: Patient, dose: Array) -> None:
    """Write a line for each goal whose region the patient has: the predicted dose (Gy) and the patient's own."""
    doses = {"predicted": dose} | ({} if patient.dose is None else {"planned": patient.dose})
    judged = {name: dict(judge(goals, own, patient.masks, patient.voxel_mm)) for name, own in doses.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["roi", "metric", "limit_gy", *(f"{name}{end}" for name in doses for end in ("_gy", "_met"))])
        for goal in judged["predicted"]:
            limit = f"{'<=' if goal.most else '>='} {goal.gy:g}"
            cells = [(f"{own[goal]:.3f}", "yes" if goal.met(own[goal]) else "no") for own in judged.values()]
            table.writerow([goal.roi, goal.metric, limit, *(cell for pair in cells for cell in pair)])


def summary(judged: Sequence[tuple[Goal, float]]) -> str:
    """Return one sentence on the goals that are met, with the missed ones by name.

    >>> summary([(Goal("PTV70", "D_99", False, 66.5), 60.0), (Goal("Larynx", "mean", True, 45.0), 30.0)])
    'the predicted dose meets 1 of 2 clinical goals; not PTV70 D_99 >= 66.5 Gy (60.0)'
    """
    missed = [f"{goal} ({value:.1f})" for goal, value in judged if not goal.met(value)]
    text = f"the predicted dose meets {len(judged) - len(missed)} of {len(judged)} clinical goals"
    return f"{text}; not {', '.join(missed)}" if missed else text
