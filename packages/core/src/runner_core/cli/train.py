"""`runner PROJECT train`: settings → data → training → scores → report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import OutOfSpace, PeerLost, RunnerError, Stopped, Unhealthy
from runner_core.base.location import shell_word
from runner_core.cli.crash import save_traceback
from runner_core.cli.launch import launch, noticing, place_of, together
from runner_core.cli.options import TrainOptions
from runner_core.cli.start import Started, start_new
from runner_core.cli.train_end import (
    Before,
    conclude,
    end_without,
    head_of,
    leave,
    record_loss,
    summary_of,
    traces_of,
    with_advice,
)
from runner_core.cli.train_scoring import draw_pictures, help_scoring, release_others, score, to_score, unscored
from runner_core.cli.train_text import Phase, Phases, Unwritten, advice_if_slow, banner, result_table, settings_lines
from runner_core.contract.setup import Data
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.cache.storage import identities_of
from runner_core.output.display import Display
from runner_core.output.live import LiveReport
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.plugins.settings import save
from runner_core.training.data import open_data
from runner_core.training.kernels.check import prove
from runner_core.training.kernels.verdict import Verdict
from runner_core.training.manifest import FOLDER as MANIFEST
from runner_core.training.manifest import manifest_place, read_manifest, release, removed_at_the_end
from runner_core.training.seen import save_contents, save_split
from runner_core.training.signals import Signals, outlive_terminal
from runner_core.training.start import save_start


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
        team.last_words(partial(end_without, started, started.run))
        return _lead(started, started.run, fresh) if team.first else _assist(started, started.run, fresh)


def _lead(started: Started[Any], folder: RunFolder, fresh: bool) -> int:
    """Train in the only process, or in the first of several."""
    with folder.lock():
        before = None if fresh else Before(folder)
        folder.figures.mkdir(exist_ok=True)  # somebody may have removed it since
        traces, phases = traces_of(folder), Phases(folder, started.setup.name, fresh=fresh)
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
            trained = traces_of(folder) != traces
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                error.add_note(phases.left(trained))
            leave(started, folder, error, before, trained)
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
            help_scoring(started, folder, data)
            setup.team.leave()
    except PeerLost as error:
        record_loss(started, folder, error)
        raise
    except RunnerError:
        raise
    except Exception as error:
        with suppress(OSError):
            save_traceback(error, folder.log)
        raise
    return 0


def _train(started: Started[Any], folder: RunFolder, display: Display, resume: bool, phases: Phases) -> int:
    from runner_core.training.run import train as run_training

    setup, traces = started.setup, traces_of(folder)
    for line in banner(setup, folder, resume):
        display.say(line)
    for line in settings_lines(setup):
        display.log(line)
    display.once_measured(lambda seconds: advice_if_slow(setup, seconds))
    _ = setup.precision  # engine, device, precision and sinks refuse unusable settings before a cache is built
    known = {"monitor": list(setup.project.monitor), "directions": dict(setup.project.directions)}
    live = LiveReport(folder, head_of(started) | {"command": started.command, **known})
    sinks = Sinks([*setup.sinks(folder.path), live], display.say)
    if not resume:  # a resumed run may still be refused, and then it was not started
        live.started()
    phases.now = Phase.DATA
    data = _open(started, folder, display, resume)
    unwritten, summary, signals = Unwritten(display), dict[str, Any](), Signals(answers=setup.team.first)
    phases.now = Phase.TRAINING
    try:
        verdict = _proved(started, folder, data, display)
        found = run_training(setup, data, folder, sinks, display, resume, verdict, signals, leaves=False)
        trained = summary = summary_of(started, found)
        unwritten.add([Path(path) for path in trained["unwritten"]])
        if trained["status"] == "done":
            phases.now = Phase.SCORING
            wanted = to_score(setup.project, data)
            summary = trained | (unscored(setup.name, folder) if wanted else {})
            with unwritten(folder.summary_file):  # scoring takes time: record the training first
                folder.write_summary(summary)
            signals.deliver()
            draw_pictures(setup.project, folder, sinks, unwritten)
            summary = trained | score(started, wanted, display, sinks, unwritten, summary=trained)
            phases.now = Phase.REPORT
        else:
            release_others(setup.team)
    except (Stopped, Unhealthy) as error:
        summary = summary_of(started, getattr(error, "summary", {}))
        if isinstance(error, Stopped):
            error.args = (f"{error}\nresume with: {runner()} {setup.name} train --resume {shell_word(folder.path)}",)
        raise
    finally:
        sinks.close()
        unwritten.add([*sinks.unwritten, *filter(None, [display.unkept])])
        conclude(folder, summary, unwritten, traces_of(folder) != traces)
    if summary["status"] == "failed":
        raise OutOfSpace(with_advice(summary["reason"], setup.name, folder) + unwritten.left(folder.path))
    for line in result_table(summary, folder):
        display.say(line)
    if unwritten.paths:
        raise OutOfSpace(with_advice(unwritten.reason(), setup.name, folder, trained=True))
    return 0


def _open(started: Started[Any], folder: RunFolder, display: Display, resume: bool) -> Data:
    """Open the data for all processes, and record in the run folder what they are."""
    setup, manifest = started.setup, folder.path / MANIFEST
    data = open_data(setup, display.say, folder.path if resume else None, started.before, manifest=manifest)
    setup.team.share(manifest_place(data))  # the other processes may open the data now
    save_split(folder.path, data.records, data.splits)
    index, identities = Identities(cache_root(setup.config.cache.dir)), identities_of(data.store)
    save_contents(folder.path, index, data.records, data.splits["train"], identities)
    release(data.records)
    return data


def _proved(started: Started[Any], folder: RunFolder, data: Data, display: Display) -> Verdict:
    """Compare the kernels; write the settings again if some were switched off."""
    verdict = prove(started.setup, data, display.say)
    if verdict.switched:  # whoever continues this run, or uses its network, computes as it did
        save(folder.config_file, started.setup.config, started.head)
    return verdict
