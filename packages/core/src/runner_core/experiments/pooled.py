"""Pool the scores of an experiment's members: each record by the members that did not train on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from runner_core.contract.project import Project
from runner_core.contract.records import Record
from runner_core.output.experiments import ExperimentFolder
from runner_core.training.evaluation import Scores, further_tables, means, over_set, read_scores
from runner_core.training.scoring import Row, goodness


@dataclass(frozen=True)
class Pooled:
    """Scores of all records, worst first, each the mean over the members that validated on it.

    `counts` says how many members scored each record, in the order of `scores.rows`. `members` holds each member's
    scores of its own validation set. `undefined` says how many scores of single records by single members have no
    value, by name: means are over the others.
    """

    scores: Scores
    counts: Sequence[int]
    members: Mapping[str, Mapping[str, float]]
    undefined: Mapping[str, int]


def pool(experiment: ExperimentFolder, project: Project, groups: Mapping[str, str]) -> Pooled:
    """Return the pooled scores of the members that are done. Raises BadInput for a damaged scores.json.

    `groups` names the groups of records (by key) that differ from their own, which the members' scores name.
    """
    contents = {m.name: read_scores(experiment.run(m).path) for m in experiment.members if experiment.done(m)}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for content in contents.values():
        for entry in content.get("records") or ():
            if not entry.get("trained_on"):
                found.setdefault(entry["record"], []).append(entry)
    rows = [_row(key, groups.get(key, entries[0]["group"]), entries) for key, entries in found.items()]
    rows.sort(key=lambda row: goodness(project, row.scores))
    judging = project.judging()
    own, trivial = [row.scores for row in rows], [row.baseline for row in rows if row.baseline]
    tables = further_tables(judging, rows)
    errors = [error for content in contents.values() for error in content.get("errors") or ()]
    # scores that only a whole validation set has are means over the members
    whole, whole_baseline = (means([c.get(of) or {} for c in contents.values()]) for of in ("means", "baseline"))
    own_means = over_set(judging, own)
    only_whole = {name: value for name, value in whole_baseline.items() if name in whole and name not in own_means}
    baseline = {**over_set(judging, trivial), **only_whole}
    baseline = {name: value for name, value in baseline.items() if math.isfinite(value)}
    further = {name: value for name, value in whole.items() if name not in own_means}
    scores = Scores(rows, own_means | further, baseline, errors, tables, shown=judging.shown)
    return Pooled(
        scores,
        [len(found[row.record.key]) for row in rows],
        {name: c.get("means") or {} for name, c in contents.items()},
        Counter(
            name for e in chain(*found.values()) for name, value in (e.get("scores") or {}).items() if value is None
        ),
    )


def _row(key: str, group: str, entries: Sequence[Mapping[str, Any]]) -> Row:
    """Return the row of a record: the mean of its scores over the members that scored it."""
    scores = [entry.get("scores") or {} for entry in entries]
    baselines = [entry.get("baseline") or {} for entry in entries]
    return Row(Record(key, group, {}), means(scores), means(baselines))
