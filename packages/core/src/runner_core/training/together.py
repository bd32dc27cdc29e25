"""Scoring at the end of a training by all its processes: each predicts and scores its share of the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from runner_core.base.parts import Part
from runner_core.base.progress import RecordBar
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.contract.team import Team
from runner_core.training.evaluation import score_each
from runner_core.training.scoring import Scored, Scorer


def can_be_divided(project: Project) -> bool:
    """Return whether processes can tell each other all that the scores of the whole set are made of."""
    judging = project.judging()
    return judging.judge is None or judging.as_arrays is not None


def score_together(
    team: Team, scorer: Scorer, records: Sequence[AnyRecord], say: Callable[[str], None], bar: RecordBar
) -> list[Scored]:
    """Score a share of the records in each process of a team, and return all in the first one.

    What a process could not do (`cannot_help`), the first one does.
    """
    project = scorer.project
    own = Part(team.number + 1, team.count).share(records)
    every = team.every([scored.line(project) for scored in score_each(scorer, own, say, bar)])
    if not team.first:
        return []
    found = dict[str, Scored]()
    for part, lines in zip(Part.all(team.count), every, strict=True):
        assert isinstance(lines, list)
        for record, line in zip(part.share(records), lines, strict=False):
            found[record.key] = Scored.of_line(project, record, json.loads(str(line)))
    left = [record for record in records if record.key not in found]
    found |= {scored.row.record.key: scored for scored in score_each(scorer, left, say, bar)}
    say(f"scored {len(found)}/{len(records)} in {team.count} processes")
    return [found[record.key] for record in records]


def cannot_help(team: Team) -> None:
    """Tell the first process that this one scores nothing."""
    team.every([])
