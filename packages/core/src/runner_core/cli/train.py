"""`runner PROJECT train`: settings → data → training → scores → report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner_core import watched
from runner_core._errors import BadInput, OutOfSpace, RunnerError, Stopped, Unhealthy
from runner_core._fetching import BLOCK_FILE
from runner_core._signals import outlive_terminal
from runner_core._text import counted, typed
from runner_core.cli.crash import save_traceback
from runner_core.cli.data import open_data
from runner_core.cli.launch import launch
from runner_core.cli.options import TrainOptions
from runner_core.cli.sides import SPLIT_FILE, read_sides, save_sides, trained_on
from runner_core.cli.start import Started, load_networks, start_new
from runner_core.cli.tables import banner, result_table
from runner_core.cli.together import noticing, place_of, together
from runner_core.config.resolve import PHANTOM, save
from runner_core.display import Display
from runner_core.evaluation import draw_figures, evaluate, no_better, versions, write_scores
from runner_core.health import announce
from runner_core.project import Project, Record, overrides
from runner_core.runfolder import RunFolder, replace_text
from runner_core.setup import Data
from runner_core.sinks import Sinks
from runner_core.stream.bad import FILE as BAD_FILE


@outlive_terminal()
def train(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "train", TrainOptions, arguments)
    place, devices = place_of(started.setup), started.setup.config.train.devices
    if place is None and devices > 1:
        return launch([name, "train", *arguments], devices)
    with together(started.setup, place):
        team, fresh = started.setup.team, started.run is None
        if team.first:
            started.run = started.run or RunFolder.create(None, name, started.options.run_dir)
        started.run = RunFolder(Path(team.share(str(started.run and started.run.path))))
        return _lead(started, started.run, fresh) if team.first else _assist(started, started.run, fresh)


def _lead(started: Started[Any], folder: RunFolder, fresh: bool) -> int:
    """What the one process does, or the first of several."""
    with folder.lock():
        before = None if fresh else _Before(folder)
        logged = _last_logged(folder)
        try:
            save(folder.config_file, started.setup.config, started.head)
            with noticing(started.setup.team):
                return _train(started, folder, Display(folder.log), resume=not fresh)
        except (Stopped, Unhealthy):  # saved, and told
            raise
        except BaseException as error:
            _leave(started, folder, error, before, trained=_last_logged(folder) != logged)
            raise


def _assist(started: Started[Any], folder: RunFolder, fresh: bool) -> int:
    """What the others of several processes do: they train with the first, and write nothing."""
    from runner_core.training import train as run_training

    setup, silent = started.setup, Display()  # whose output goes nowhere
    try:
        with noticing(setup.team):
            setup.team.share(None)  # the first prepares the data
            data = open_data(setup, silent.say)
            run_training(setup, data, folder, Sinks([], silent.say), silent, not fresh)
    except RunnerError:
        raise
    except Exception as error:
        with suppress(OSError):
            save_traceback(error, folder.log)
        raise
    return 0


class _Before:
    """A run that is to be continued, as it was: what this start writes into it before any step."""

    def __init__(self, folder: RunFolder) -> None:
        self._config, self._log = folder.config_file, folder.log
        self._text = folder.config_file.read_text(encoding="utf-8")
        self._times = {path: path.stat() for path in (folder.config_file, folder.log) if path.exists()}

    def restore(self, log: bool) -> None:
        """config.yaml, and train.log too where `log`, as they were. By its time config.yaml says which run is the
        latest."""
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
    """After an error or an interruption: what is left says how it ended, and a refusal leaves everything as it was.

    `before`: the run that was to be continued, None for a new one.
    """
    expected = isinstance(error, (RunnerError, KeyboardInterrupt, SystemExit))
    with suppress(OSError):  # a full disk must not hide the error itself
        if not expected:
            save_traceback(error, folder.log)
    with suppress(OSError):
        if before is not None and not trained:
            before.restore(log=expected)
        elif expected and not trained:
            _discard(folder)
        elif folder.read_summary().get("status") != "done" or not expected:
            reason = f"{type(error).__name__}: {error}"
            folder.write_summary(_summary(started, folder.read_summary() | {"status": "failed", "reason": reason}))


def _last_logged(folder: RunFolder) -> int:
    """When log.jsonl was last written to; 0 where nothing was trained yet."""
    return folder.jsonl.stat().st_mtime_ns if folder.jsonl.exists() else 0


def _train(started: Started[Any], folder: RunFolder, display: Display, resume: bool) -> int:
    from runner_core.training import train as run_training

    setup, logged = started.setup, _last_logged(folder)
    again = f"`runner {setup.name} evaluate {typed(folder.path)}`"
    for line in banner(setup, folder, resume):
        display.say(line)
    _ = setup.engine  # engine and sinks refuse what they have no use for before a cache is built
    sinks = Sinks(setup.sinks(folder.path), display.say)
    data = open_data(setup, display.say)
    setup.team.share(None)  # now the others may open them
    save_sides(folder.path, data.records, data.splits)
    unwritten = _Unwritten(display)
    try:
        summary = _summary(started, run_training(setup, data, folder, sinks, display, resume))
        if summary["status"] == "failed":
            raise OutOfSpace(summary["reason"])
        wanted = _to_score(setup.project, data)
        unfinished = f"scoring did not finish; {again} scores the records"
        with unwritten(folder.summary_file):  # scoring takes time: should it not finish, the training is on record
            folder.write_summary(summary | ({"reason": unfinished, "scoring_errors": [unfinished]} if wanted else {}))
        _draw_watched(setup.project, folder, sinks, unwritten)
        summary |= _score(started, wanted, display, sinks, unwritten, summary=summary)
        with unwritten(folder.summary_file):
            folder.write_summary(summary)
    except (Stopped, Unhealthy) as error:
        with unwritten(folder.summary_file):
            folder.write_summary(_summary(started, getattr(error, "summary", {})))
        if isinstance(error, Stopped):
            error.args = (f"{error}\nresume with: runner {setup.name} train --resume {typed(folder.path)}",)
        raise
    except (KeyboardInterrupt, SystemExit):
        display.say(f"interrupted while scoring: the training is saved; {again} scores the records")
        raise
    finally:
        sinks.close()
        if _last_logged(folder) != logged:  # a resume that was refused leaves the report alone
            with unwritten(folder.report_file):
                _report(folder)
    for line in result_table(summary, folder):
        display.say(line)
    for path in unwritten.paths:
        display.say(f"warning: {path} is missing (see above); {again} and `report` write anew")
    return BadInput.exit_code if unwritten.paths else 0


class _Unwritten:
    """What could not be written at the run's end: said at once, and the rest goes on."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.paths: list[Path] = []

    @contextmanager
    def __call__(self, path: Path) -> Iterator[None]:
        self.paths = [p for p in self.paths if p != path]
        try:
            yield
        except OSError as error:
            self._display.say(f"warning: {path} cannot be written: {error.strerror or error}")
            self.paths.append(path)


def _draw_watched(project: Project, folder: RunFolder, sinks: Sinks, unwritten: _Unwritten) -> None:
    """The project's pictures of what it watched in every validation of this run."""
    found = watched.read(folder.events())
    with unwritten(folder.figures):
        for path in watched.draw(project, found, folder.figures):
            sinks.figure(path.stem, found[-1][0], path)


def _to_score(project: Project, data: Data) -> list[Record]:
    """The records that the project names (the validation's), where it can predict and score whole records."""
    if not overrides(project, "predict") or not (overrides(project, "score") or overrides(project, "judge")):
        return []
    return list(project.scored({side: [data.records[n] for n in numbers] for side, numbers in data.splits.items()}))


def _score(
    started: Started[Any],
    records: Sequence[Record],
    display: Display,
    sinks: Sinks,
    unwritten: _Unwritten,
    *,
    summary: dict[str, Any],
) -> dict[str, Any]:
    """Scores of the records with the best checkpoint, pictures of them, and what they say of the run's health."""
    folder, project = started.run, started.setup.project
    assert folder is not None
    if not records:
        return {"scores": {}, "baseline": {}}
    begun = time.monotonic()
    trained, untrained, checkpoint = load_networks(started, folder.path)
    noun = "record" if overrides(project, "scored") else "validation record"
    display.say(f"scoring {counted(len(records), noun)} with checkpoint {checkpoint}")
    scores = evaluate(
        *(project, trained.infer, records, trained.statistics, display.say),
        untrained=untrained,
        trained_on=trained_on(read_sides(folder.path)),
    )
    for error in scores.errors:
        display.say(f"warning: not scored: {error}")
    health = list(summary["health"])
    finding = no_better(project, scores)
    if finding is not None and started.setup.config.health.mode != "off":
        health.append(asdict(finding))
        announce(finding, summary["steps"], summary["epochs"], display.say, sinks.event)
    with unwritten(folder.path / "scores.csv"):
        write_scores(scores, folder.path)
    with unwritten(folder.figures):
        for path in draw_figures(project, trained.infer, scores, folder.figures):
            sinks.figure(path.stem, int(checkpoint.rpartition("-")[2]), path)
    seconds = time.monotonic() - begun
    means, baseline = scores.shown_of(scores.means), scores.shown_of(scores.baseline)
    further = {method: scores.shown_of(values) for method, values in scores.further.items()}
    return {"scores": means, "baseline": baseline, **({"further": further} if further else {}),
            "scoring_errors": scores.errors, "scoring_seconds": seconds, "health": health}  # fmt: skip


def _summary(started: Started[Any], summary: dict[str, Any]) -> dict[str, Any]:
    setup = started.setup
    source = PHANTOM if setup.source is None else str(setup.source)
    head = {"project": setup.name, "preset": setup.preset, "data": source}
    return head | summary | {"versions": versions() | summary.get("versions", {}) | {"plugins": setup.plugins.versions}}


def _report(folder: RunFolder) -> None:
    from runner_core.report import write_report

    if folder.jsonl.exists():
        write_report(folder)


def _discard(folder: RunFolder) -> None:
    for path in (folder.config_file, folder.log, *(folder.path / name for name in (SPLIT_FILE, BLOCK_FILE, BAD_FILE))):
        path.unlink(missing_ok=True)
    for path in (folder.checkpoints, folder.figures):
        shutil.rmtree(path, ignore_errors=True)
    (folder.path / ".lock").unlink(missing_ok=True)
    with suppress(OSError):
        folder.path.rmdir()
