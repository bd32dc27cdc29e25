"""Scores whole records with the best checkpoint at the end of a training, in one process or divided over several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runner_core.base.errors import RunnerError
from runner_core.base.location import shell_word
from runner_core.base.progress import RecordBar
from runner_core.base.text import counted
from runner_core.cli.load import load_networks
from runner_core.cli.start import Started
from runner_core.cli.train_text import Unwritten
from runner_core.contract.project import Project, overrides, predicts
from runner_core.contract.records import Record
from runner_core.contract.setup import Data
from runner_core.contract.team import Team
from runner_core.data.blocks import Chosen
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.duplicates import known_digests
from runner_core.data.pipeline import RecordPipeline
from runner_core.health import announce
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.training.evaluation import draw_figures, evaluate, figures_count, no_better, over_records, write_scores
from runner_core.training.scoring import Scorer
from runner_core.training.seen import History, Seen
from runner_core.training.snapshots import draw_watched, read_watched
from runner_core.training.together import can_be_divided, cannot_help, score_together


def to_score(project: Project, data: Data) -> Sequence[Record]:
    """Return the records that the project chooses (default: validation), if it can predict and score whole records."""
    judging = project.judging()
    if not predicts(project) or not (overrides(project, "score") or judging.judge is not None):
        return []
    splits = {split: Chosen(data.records, data.used(split)) for split in data.splits}
    return judging.to_score(splits)


def score(
    started: Started[Any],
    records: Sequence[Record],
    display: Display,
    sinks: Sinks,
    unwritten: Unwritten,
    *,
    summary: dict[str, Any],
) -> dict[str, Any]:
    """Score the records with the best checkpoint, draw pictures, and return the summary's entries.

    They include findings about the run's health.
    """
    folder, project = started.run, started.setup.project
    assert folder is not None
    if not records:
        release_others(started.setup.team)
        return {"scores": {}, "baseline": {}}
    begun, pipeline = time.monotonic(), RecordPipeline.of(started.setup)
    trained, untrained, checkpoint = load_networks(started, folder.path, display.say)
    noun = "record" if project.judging().scored is not None else "validation record"
    display.say(f"scoring {counted(len(records), noun)} with checkpoint {checkpoint}")
    seen = _trained_on(started, folder, records)
    team = started.setup.team
    divided = team.count > 1 and can_be_divided(project)
    with display.records("scoring", len(records)) as bar:
        team.share(checkpoint if divided else None)
        if divided:
            scorer = Scorer(pipeline, bar.counting(trained.infer), untrained and bar.counting(untrained), seen)
            scores = over_records(project, score_together(team, scorer, records, display.say, bar))
        else:
            scores = evaluate(
                *(pipeline, trained.infer, records, display.say), untrained=untrained, trained_on=seen, bar=bar
            )
    team.leave()
    for error in scores.errors:
        display.say(f"warning: not scored: {error}")
    health = list(summary["health"])
    finding = no_better(project, scores)
    if finding is not None and started.setup.config.health.mode != "off":
        health.append(asdict(finding))
        announce(finding, summary["steps"], summary["epochs"], display.say, sinks.event)
    with unwritten(folder.path / "scores.csv"):
        write_scores(scores, folder.path)
    with unwritten(folder.figures), display.records("drawing", figures_count(scores)) as bar:
        for path in draw_figures(pipeline, trained.infer, scores, folder.figures, bar):
            sinks.figure(path.stem, int(checkpoint.rpartition("-")[2]), path)
    seconds = time.monotonic() - begun
    means, baseline = scores.shown_of(scores.means), scores.shown_of(scores.baseline)
    further = {method: scores.shown_of(values) for method, values in scores.further.items()}
    return {"scores": means, "baseline": baseline, **({"further": further} if further else {}),
            "scoring_errors": scores.errors, "scoring_seconds": seconds, "health": health}  # fmt: skip


def release_others(team: Team) -> None:
    """Let the other processes go, which wait to be told what to score."""
    team.share(None)
    team.leave()


def help_scoring(started: Started[Any], folder: RunFolder, data: Data) -> None:
    """Score this process's share of the records, as `score` of the first process does."""
    setup = started.setup
    checkpoint = setup.team.share(None)
    if checkpoint is None:
        return
    records = to_score(setup.project, data)
    try:
        trained, untrained, _ = load_networks(started, folder.checkpoints / str(checkpoint), lambda text: None)
        seen = _trained_on(started, folder, records)
    except (RunnerError, OSError):  # a file may be seen later on this machine than on the first
        cannot_help(setup.team)
        return
    scorer = Scorer(RecordPipeline.of(setup), trained.infer, untrained, seen)
    score_together(setup.team, scorer, records, lambda text: None, RecordBar())


def _trained_on(started: Started[Any], folder: RunFolder, records: Sequence[Record]) -> Seen:
    """Return which records this run, or one before it, was trained on."""
    source = str(started.head["source"])
    digests = known_digests(Identities(cache_root(started.setup.config.cache.dir)), records)
    return History.of(folder.path, source).seen(records, digests, source)


def unscored(name: str, folder: RunFolder) -> dict[str, Any]:
    """Return the summary's entries that hold until the records are scored."""
    text = f"scoring did not finish; `runner {name} evaluate {shell_word(folder.path)}` scores the records"
    return {"reason": text, "scoring_errors": [text]}


def draw_pictures(project: Project, folder: RunFolder, sinks: Sinks, unwritten: Unwritten) -> None:
    """Draw the project's pictures of the arrays it watched in every validation of this run."""
    found = read_watched(folder.events())
    with unwritten(folder.figures):
        for path in draw_watched(project, found, folder.figures):
            sinks.figure(path.stem, found[-1][0], path)
