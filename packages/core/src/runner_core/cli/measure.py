"""The commands that measure a training, on the user's data: `profile`, `tune`, `ablate`.

`profile` shows where the time of a run goes, what limits it, and what might help. `tune` tries settings that would make
training faster, and writes those that do. `ablate` switches off each optimisation in turn, then all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.resources import available_ram
from runner_core.base.text import counted
from runner_core.base.writing import replace_json, replace_text
from runner_core.cli.json_output import show_json, written_result
from runner_core.cli.launch import place_of
from runner_core.cli.options import AblateOptions, ProfileOptions, TuneOptions
from runner_core.cli.start import Started, start_new
from runner_core.config.values import flat, plain
from runner_core.contract.setup import Setup
from runner_core.output.display import speed
from runner_core.output.report.page import lines
from runner_core.output.runfolder import claimed
from runner_core.tools.measure import ablate_report as report
from runner_core.tools.measure import profile_report, tune_report
from runner_core.tools.measure.ablate import Ablated, Ablation
from runner_core.tools.measure.optimisations import cases, refuse_unknown
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.profiling import profile_run, remedies
from runner_core.tools.measure.remedies import Facts, systematic, with_remedies
from runner_core.tools.measure.times import spread
from runner_core.tools.measure.trial import Ready
from runner_core.tools.measure.tune import Tuning
from runner_core.training.assembly import TrainingSpec
from runner_core.training.data import data_folder, open_data

FACTS = "ablate.json"


def base_of(started: Started[Any]) -> TrainingSpec:
    """Return the settings with which the trials of a parsed command begin."""
    setup, options = started.setup, started.options
    source = None if setup.source is None else str(setup.source)
    return TrainingSpec(setup.name, setup.preset, source, plain(setup.config), started.chosen, options.no_extension)


def refuse_no_device(setup: Setup) -> None:
    """Raise BadInput if a device that the user names is not there: else the first child process would find it out."""
    if setup.config.train.device not in ("auto", "cpu"):  # those are always there
        _ = setup.device


def refuse(command: str, started: Started[Any]) -> None:
    """Raise BadInput if there is no time, no such device, or if there are more devices than can be measured."""
    place = place_of(started.setup)
    minutes, devices = started.options.minutes, started.setup.config.train.devices
    if not minutes > 0:
        raise BadInput(f"--minutes must be more than 0, not {minutes:g}")
    if place is not None and place.count > 1:
        raise BadInput(f"{command} starts its processes itself: run it without torchrun, srun or mpirun")
    keras = started.setup.project.framework == "keras"  # whose devices share a process, and trials have one for each
    if devices > 1 and (command != "ablate" or keras):
        of = " of a Keras project" if command == "ablate" else ""
        raise BadInput(f"{command} measures one device{of}: leave out --devices ({counted(devices, 'device')})")
    refuse_no_device(started.setup)


def exit_code(stop: KeyboardInterrupt | SystemExit) -> int:
    """Return the exit code of an interrupted command: 130 for Ctrl-C, else that of the signal's handler."""
    return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130


def profile(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "profile", ProfileOptions, arguments)
    options = started.options
    refuse("profile", started)
    if options.steps < 2:
        raise BadInput(f"--steps must be at least 2, not {options.steps}")
    if not 0 <= options.at <= 1:
        raise BadInput(f"--at {options.at:g}: name a moment of the training, from 0 (its beginning) to 1 (its end)")
    with claimed(name, "profile", options.out) as folder:
        _profile(started, folder)
    return 0


def _profile(started: Started[ProfileOptions], folder: Path) -> None:
    options, setup = started.options, started.setup
    data = open_data(setup, print)
    facts = profile_run(
        setup,
        data,
        steps=options.steps,
        seconds=60 * options.minutes,
        at=options.at,
        trace=folder / "trace" if options.trace else None,
        folder=folder,
        say=print,
    )
    fixes = remedies(setup, facts)
    profile_report.write(facts, fixes, folder)
    for line in profile_report.lines(facts, fixes, folder):
        print(line)
    if options.json:
        show_json({"folder": folder, **written_result(folder / profile_report.FACTS)})


def tune(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "tune", TuneOptions, arguments)
    options = started.options
    refuse("tune", started)
    if options.memory_gb is not None and not options.memory_gb > 0:
        raise BadInput(f"--memory-gb must be more than 0, not {options.memory_gb:g}")
    with claimed(name, "tune", options.out) as folder:
        return _tune(started, folder)


def _tune(started: Started[TuneOptions], folder: Path) -> int:
    options, setup = started.options, started.setup
    open_data(setup, print).store.close()  # build the cache and refuse faulty data before the clock starts
    base = base_of(started)
    memory = None if options.memory_gb is None else int(options.memory_gb * 1e9)
    settings, code = flat(setup.config), 0
    given = tune_report.minutes_text(60 * options.minutes)
    print(f"tuning for {given}: each remedy takes turns with the best settings so far")
    with Tuning(base, 60 * options.minutes, memory, print) as tuning:
        ready = _begun(tuning)
        rate = 1 / spread(tuning.best.per_sample).median
        print(
            f"current settings: {speed(rate)} samples/s, {tuning.wait_share:.1%} of the time waiting for data "
            f"({ready.device}, {ready.precision}, batches of {ready.batch})"
        )
        facts = Facts(setup.project, settings, ready, tuning.wait_share, tuning.step_seconds, available_ram())
        tried, left = systematic(facts)
        try:
            candidates, beyond = with_remedies(tuning.remedies(), tried)
            tuning.try_all(settings, candidates, [*left, *beyond])
            found = tuning.finish()
        except (KeyboardInterrupt, SystemExit) as stop:
            found, code = tuning.stopped(), exit_code(stop)
    tune_report.write(found, base, type(setup.project), setup.config, folder)
    for line in tune_report.lines(found, folder, setup.name):
        print(line)
    if options.json:
        show_json({"folder": folder, **written_result(folder / tune_report.FACTS)})
    return code


def _begun(tuning: Tuning) -> Ready:
    """Call `Tuning.begin`, and add advice if it refuses --memory-gb."""
    try:
        return tuning.begin()
    except BadInput as error:
        if isinstance(error.__cause__, TrialFailed) and "--memory-gb" in error.__cause__.reason:
            error.args = (f"{error}: raise it, or lower train.batch_size",)
        raise


def ablate(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "ablate", AblateOptions, arguments)
    refuse("ablate", started)
    refuse_unknown(started.setup, started.options.only)
    with claimed(name, "ablate", started.options.out) as folder:
        return _ablate(started, folder)


def _ablate(started: Started[AblateOptions], folder: Path) -> int:
    setup, options = started.setup, started.options
    open_data(setup, print).store.close()  # build the cache and refuse faulty data before measuring
    base = replace(base_of(started), source=str(data_folder(setup, print)))  # one phantom for all trials
    measured, code = Ablation(base, 60 * options.minutes, print), 0

    def done(found: Ablated) -> None:
        """Write the result after every case, so that no measurement is lost."""
        _write(setup, found, folder)
        *_, row = report.rows(found)
        print(
            "  " + ", ".join(f"{what} {cell}" for what, cell in zip(report.COLUMNS[1:], row[1:], strict=True) if cell)
        )

    try:
        measured.run(lambda ready: cases(setup, ready, options.only), done)
    except TrialFailed as failure:
        until_then = f"; what was measured before is in {folder}" if measured.found else ""
        raise BadInput(f"these settings cannot be measured: {failure}{until_then}") from failure
    except (KeyboardInterrupt, SystemExit) as stop:
        if measured.found is None:
            raise
        code = exit_code(stop)
    found = measured.found
    assert found is not None
    print()
    _show(setup, found)
    if code:
        print("interrupted: the result leaves out what was not finished")
    elif not found.rows:
        print("there is nothing to switch off")
    print(f"report: {folder / 'report.html'}   also ablate.csv, {FACTS}")
    if options.json:
        show_json({"folder": folder, **written_result(folder / FACTS)})
    return code


def _show(setup: Setup, found: Ablated) -> None:
    print(report.headline(report.head(setup, found)))
    for line in lines(report.measured(found)):
        print(line)


def _write(setup: Setup, found: Ablated, folder: Path) -> None:
    head = report.head(setup, found)
    replace_json(folder / FACTS, report.as_json(head, found))
    replace_text(folder / "ablate.csv", report.as_csv(found))
    replace_text(folder / "report.html", report.as_page(head, found))
