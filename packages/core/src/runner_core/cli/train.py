"""`runner PROJECT train`: settings → data → training → scores → report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, OutOfSpace, PeerLost, RunnerError, Stopped, Unhealthy
from runner_core.base.location import shell_word
from runner_core.base.progress import RecordBar
from runner_core.base.text import counted
from runner_core.base.writing import replace_text
from runner_core.cli.crash import save_traceback
from runner_core.cli.launch import launch, noticing, place_of, together
from runner_core.cli.load import load_networks
from runner_core.cli.options import TrainOptions
from runner_core.cli.start import Started, start_new
from runner_core.cli.train_text import (
    Phase,
    Phases,
    Unwritten,
    advice_if_slow,
    banner,
    result_table,
    settings_lines,
)
from runner_core.contract.project import Project, overrides, predicts
from runner_core.contract.records import Record
from runner_core.contract.setup import Data
from runner_core.contract.team import Team
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.columns import Chosen
from runner_core.data.duplicates import known_digests
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.stream.bad import FILE as BAD_FILE
from runner_core.health import announce
from runner_core.output.display import Display
from runner_core.output.live import LiveReport
from runner_core.output.progress import now, read_starts
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.plugins.settings import PHANTOM, save
from runner_core.training.data import open_data
from runner_core.training.evaluation import (
    draw_figures,
    evaluate,
    figures_count,
    no_better,
    over_records,
    versions,
    write_scores,
)
from runner_core.training.kernels import Verdict, prove
from runner_core.training.manifest import FOLDER as MANIFEST
from runner_core.training.manifest import manifest_place, read_manifest, release, removed_at_the_end
from runner_core.training.scoring import Scorer
from runner_core.training.seen import CONTENTS_FILE, SPLIT_FILE, START_FILE, History, Seen, save_contents, save_split
from runner_core.training.signals import outlive_terminal
from runner_core.training.snapshots import draw_watched, read_watched
from runner_core.training.start import save_start
from runner_core.training.timing import BLOCK_FILE
from runner_core.training.together import can_be_divided, cannot_help, score_together


def train(name: str, arguments: Sequence[str]) -> int:
    return train_with(start_new(name, "train", TrainOptions, arguments), lambda: arguments)


@outlive_terminal()
def train_with(started: Started[TrainOptions], arguments: Callable[[], Sequence[str]]) -> int:
    """Train; `arguments` gives the command line for the processes that train together."""
    name = started.setup.name
    place, devices = place_of(started.setup), started.setup.config.train.devices
    if place is None and devices > 1:
        return launch([name, "train", *arguments()], devices, started.setup.config.train.patience_seconds)
    with together(started.setup, place):
        team, fresh = started.setup.team, started.run is None
        if team.first:
            started.run = started.run or RunFolder.create(None, name, started.options.run_dir)
        # with --resume auto, a machine may see later than others that there is a run
        path, fresh = team.share([str(started.run and started.run.path), fresh])
        started.run = RunFolder(Path(path))
        team.last_words(partial(_end_without, started, started.run))
        return _lead(started, started.run, fresh) if team.first else _assist(started, started.run, fresh)


def _lead(started: Started[Any], folder: RunFolder, fresh: bool) -> int:
    """Train in the only process, or in the first of several."""
    with folder.lock():
        before = None if fresh else _Before(folder)
        traces, phases = _traces(folder), Phases(folder, started.setup.name, fresh=fresh)
        try:
            if fresh and started.setup.start is not None:  # before config.yaml, which makes it a run
                save_start(folder.path, started.setup.start, started.before)
            save(folder.config_file, started.setup.config, started.head)
            alone = started.setup.team.count == 1
            with noticing(started.setup.team), removed_at_the_end(folder.path / MANIFEST, alone):
                return _train(started, folder, Display(folder.log), not fresh, phases)
        except (Stopped, Unhealthy):  # already saved and reported
            raise
        except BaseException as error:
            trained = _traces(folder) != traces
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                error.add_note(phases.left(trained))
            _leave(started, folder, error, before, trained)
            raise


def _assist(started: Started[Any], folder: RunFolder, fresh: bool) -> int:
    """Train with the first process, and write nothing (the other processes)."""
    from runner_core.training.run import train as run_training

    setup, silent = started.setup, Display(silent=True)
    try:
        with noticing(setup.team):
            known = read_manifest(setup.team.share(None))  # the first prepares the data
            data = open_data(setup, silent.say, None if fresh else folder.path, started.before, known=known)
            verdict = prove(setup, data, silent.say)
            sinks = Sinks([], silent.say)
            run_training(setup, data, folder, sinks, silent, not fresh, verdict, leaves=False)
            _help_scoring(started, folder, data)
            setup.team.leave()
    except PeerLost as error:
        _record_loss(started, folder, error)
        raise
    except RunnerError:
        raise
    except Exception as error:
        with suppress(OSError):
            save_traceback(error, folder.log)
        raise
    return 0


def _record_loss(started: Started[Any], folder: RunFolder, error: PeerLost) -> None:
    """Write into summary.json which process is lost; the first one that is left does so."""
    team = started.setup.team
    if team.number == min(set(range(team.count)).difference(error.numbers), default=0):
        with suppress(OSError):
            ended = {"status": "failed", "reason": str(error)}
            folder.write_summary(_summary(started, _summary_so_far(folder) | ended))


def _end_without(started: Started[Any], folder: RunFolder, error: PeerLost) -> None:
    """Tell the user and summary.json why this process ends, in a thread: its main thread waits for the lost one."""
    if started.setup.team.answers_for(error.numbers):
        with suppress(OSError):
            os.write(2, f"\nrunner: {error}\n".encode())
    _record_loss(started, folder, error)


class _Before:
    """The state of a run before it is continued: the files that this start writes before any step."""

    def __init__(self, folder: RunFolder) -> None:
        self._config, self._log = folder.config_file, folder.log
        self._text = folder.config_file.read_text(encoding="utf-8")
        self._times = {path: path.stat() for path in (folder.config_file, folder.log) if path.exists()}

    def restore(self, log: bool) -> None:
        """Restore config.yaml, and train.log too if `log`.

        Also restores their times: the time of config.yaml decides which run is the latest.
        """
        replace_text(self._config, self._text)
        if log and self._log in self._times:
            os.truncate(self._log, self._times[self._log].st_size)
        elif log:
            self._log.unlink(missing_ok=True)
        for path in [self._config, self._log] if log else [self._config]:
            if path in self._times:
                os.utime(path, ns=(self._times[path].st_atime_ns, self._times[path].st_mtime_ns))


def _leave(
    started: Started[Any], folder: RunFolder, error: BaseException, before: _Before | None, trained: bool
) -> None:
    """Record how the run ended after an error or an interruption; a refusal leaves everything as it was.

    `before` is the run that was to be continued, None for a new one.
    """
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    expected = stopped or isinstance(error, RunnerError)
    with suppress(OSError):  # a full disk must not hide the error itself
        if not expected:
            save_traceback(error, folder.log)
    with suppress(OSError):
        if before is not None and not trained:
            before.restore(log=expected)
        elif expected and not trained:
            _discard(folder)
        elif (so_far := _summary_so_far(folder)).get("status") != "done" or not expected:
            ended = {"status": "stopped" if stopped else "failed", "reason": _reason(error)}
            folder.write_summary(_summary(started, so_far | ended))


def _summary_so_far(folder: RunFolder) -> dict[str, Any]:
    """Return summary.json, or an empty dict where it is damaged."""
    with suppress(BadInput):
        return folder.read_summary()
    return {}


def _reason(error: BaseException) -> str:
    """Return the reason that summary.json gives for an error or an interruption."""
    if isinstance(error, RunnerError):
        return str(error)
    return "; ".join(getattr(error, "__notes__", ())) or f"{type(error).__name__}: {error}"


def _traces(folder: RunFolder) -> tuple[int, list[int]]:
    """Return when log.jsonl was last written to (0: never), and the checkpoints' steps."""
    return (folder.jsonl.stat().st_mtime_ns if folder.jsonl.exists() else 0), folder.saved_steps()


def _train(started: Started[Any], folder: RunFolder, display: Display, resume: bool, phases: Phases) -> int:
    from runner_core.training.run import train as run_training

    setup, traces = started.setup, _traces(folder)
    for line in banner(setup, folder, resume):
        display.say(line)
    for line in settings_lines(setup):
        display.log(line)
    display.once_measured(lambda seconds: advice_if_slow(setup, seconds))
    _ = setup.precision  # engine, device, precision and sinks refuse unusable settings before a cache is built
    known = {"monitor": list(setup.project.monitor), "directions": dict(setup.project.directions)}
    live = LiveReport(folder, _head(started) | {"command": started.command, **known})
    sinks = Sinks([*setup.sinks(folder.path), live], display.say)
    if not resume:  # a resumed run may still be refused, and then it was not started
        live.started()
    phases.now = Phase.DATA
    data = _open(started, folder, display, resume)
    unwritten, summary = Unwritten(display), dict[str, Any]()
    phases.now = Phase.TRAINING
    try:
        verdict = _proved(started, folder, data, display)
        found = run_training(setup, data, folder, sinks, display, resume, verdict, leaves=False)
        trained = summary = _summary(started, found)
        unwritten.add([Path(path) for path in trained["unwritten"]])
        if trained["status"] == "done":
            phases.now = Phase.SCORING
            wanted = _to_score(setup.project, data)
            summary = trained | (_unscored(setup.name, folder) if wanted else {})
            with unwritten(folder.summary_file):  # scoring takes time: record the training first
                folder.write_summary(summary)
            _draw_watched(setup.project, folder, sinks, unwritten)
            summary = trained | _score(started, wanted, display, sinks, unwritten, summary=trained)
            phases.now = Phase.REPORT
        else:
            _score_alone(setup.team)
    except (Stopped, Unhealthy) as error:
        summary = _summary(started, getattr(error, "summary", {}))
        if isinstance(error, Stopped):
            error.args = (f"{error}\nresume with: {runner()} {setup.name} train --resume {shell_word(folder.path)}",)
        raise
    finally:
        sinks.close()
        unwritten.add([*sinks.unwritten, *filter(None, [display.unkept])])
        _conclude(folder, summary, unwritten, _traces(folder) != traces)
    if summary["status"] == "failed":
        raise OutOfSpace(_with_advice(summary["reason"], setup.name, folder) + unwritten.left(folder.path))
    for line in result_table(summary, folder):
        display.say(line)
    if unwritten.paths:
        raise OutOfSpace(_with_advice(unwritten.reason(), setup.name, folder, trained=True))
    return 0


def _open(started: Started[Any], folder: RunFolder, display: Display, resume: bool) -> Data:
    """Open the data for all processes, and record in the run folder what they are."""
    setup, manifest = started.setup, folder.path / MANIFEST
    data = open_data(setup, display.say, folder.path if resume else None, started.before, manifest=manifest)
    setup.team.share(manifest_place(data))  # the other processes may open the data now
    save_split(folder.path, data.records, data.splits)
    save_contents(folder.path, Identities(cache_root(setup.config.cache.dir)), data.records, data.splits["train"])
    release(data.records)
    return data


def _proved(started: Started[Any], folder: RunFolder, data: Data, display: Display) -> Verdict:
    """Compare the kernels; write the settings again if some were switched off."""
    verdict = prove(started.setup, data, display.say)
    if verdict.switched:  # whoever continues this run, or uses its network, computes as it did
        save(folder.config_file, started.setup.config, started.head)
    return verdict


def _conclude(folder: RunFolder, summary: dict[str, Any], unwritten: Unwritten, changed: bool) -> None:
    """Write summary.json and, if the run has `changed`, its report: a refused resume leaves the report alone."""
    _keep_summary(folder, summary, unwritten)
    if changed:
        with unwritten(folder.report_file):
            _report(folder)
        if folder.report_file in unwritten.paths:
            _keep_summary(folder, summary, unwritten)


def _keep_summary(folder: RunFolder, summary: dict[str, Any], unwritten: Unwritten) -> None:
    """Write summary.json. On a full disk it replaces the old one, which must not go on saying "done"."""
    if not summary:
        return
    with unwritten(folder.summary_file):
        try:
            folder.write_summary(unwritten.into(summary))
        except OSError:
            folder.summary_file.unlink(missing_ok=True)
            folder.write_summary(unwritten.into(summary))


def _with_advice(reason: str, name: str, folder: RunFolder, trained: bool = False) -> str:
    """Return why a run failed, what is kept, and how to go on."""
    run, steps = shell_word(folder.path), folder.saved_steps()
    if not steps:
        return reason
    if not trained:
        return f"{reason}\nfree some space; then `{runner()} {name} train --resume {run}` continues"
    kept = f"kept: the trained network, in {counted(len(steps), 'checkpoint')} up to step {steps[-1]}"
    return f"{reason}\n{kept}\nfree some space; then `{runner()} {name} train --resume {run}` writes the results again"


def _unscored(name: str, folder: RunFolder) -> dict[str, Any]:
    """Return the summary's entries that hold until the records are scored."""
    text = f"scoring did not finish; `runner {name} evaluate {shell_word(folder.path)}` scores the records"
    return {"reason": text, "scoring_errors": [text]}


def _draw_watched(project: Project, folder: RunFolder, sinks: Sinks, unwritten: Unwritten) -> None:
    """Draw the project's pictures of the arrays it watched in every validation of this run."""
    found = read_watched(folder.events())
    with unwritten(folder.figures):
        for path in draw_watched(project, found, folder.figures):
            sinks.figure(path.stem, found[-1][0], path)


def _to_score(project: Project, data: Data) -> Sequence[Record]:
    """Return the records that the project chooses (default: validation), if it can predict and score whole records."""
    judging = project.judging()
    if not predicts(project) or not (overrides(project, "score") or judging.judge is not None):
        return []
    splits = {split: Chosen(data.records, data.used(split)) for split in data.splits}
    return judging.to_score(splits)


def _score(
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
        _score_alone(started.setup.team)
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


def _score_alone(team: Team) -> None:
    """Let the other processes go, which wait to be told what to score."""
    team.share(None)
    team.leave()


def _help_scoring(started: Started[Any], folder: RunFolder, data: Data) -> None:
    """Score this process's share of the records, as `_score` of the first process does."""
    setup = started.setup
    checkpoint = setup.team.share(None)
    if checkpoint is None:
        return
    records = _to_score(setup.project, data)
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


def _summary(started: Started[Any], summary: dict[str, Any]) -> dict[str, Any]:
    assert started.run is not None
    found = versions() | summary.get("versions", {}) | {"plugins": started.setup.plugins.versions}
    ended = {"ended": now(), "starts": read_starts(started.run)}
    return _head(started) | summary | ended | {"versions": found}


def _head(started: Started[Any]) -> dict[str, Any]:
    setup = started.setup
    source = PHANTOM if setup.source is None else str(setup.source)
    return {"project": setup.name, "preset": setup.preset, "data": source}


def _report(folder: RunFolder) -> None:
    from runner_core.output.report import write_report

    if folder.jsonl.exists():
        write_report(folder)


def _discard(folder: RunFolder) -> None:
    for path in (
        folder.config_file,
        folder.starts_file,
        folder.log,
        *(folder.path / name for name in (SPLIT_FILE, CONTENTS_FILE, START_FILE, BLOCK_FILE, BAD_FILE)),
    ):
        path.unlink(missing_ok=True)
    for path in (folder.checkpoints, folder.figures, folder.path / MANIFEST):
        shutil.rmtree(path, ignore_errors=True)
    (folder.path / ".lock").unlink(missing_ok=True)
    with suppress(OSError):
        folder.path.rmdir()
