"""`runner PROJECT tune`: try settings that would make training faster, and write those that do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.resources import available_ram
from runner_core.cli.measured import base_of, exit_code, refuse
from runner_core.cli.options import TuneOptions
from runner_core.cli.start import Started, start_new
from runner_core.config.values import flat
from runner_core.output.display import speed
from runner_core.output.toolfolder import claimed
from runner_core.tools.measure import tune_report
from runner_core.tools.measure.remedies import Facts, systematic, with_remedies
from runner_core.tools.measure.times import spread
from runner_core.tools.measure.trial import Ready, TrialFailed
from runner_core.tools.measure.tune import Tuning
from runner_core.training.data import open_data


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
            f"the settings as they are: {speed(rate)} samples/s, {tuning.wait_share:.1%} of the time waiting for data "
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
    return code


def _begun(tuning: Tuning) -> Ready:
    """Call `Tuning.begin`, and add advice if it refuses --memory-gb."""
    try:
        return tuning.begin()
    except BadInput as error:
        if isinstance(error.__cause__, TrialFailed) and "--memory-gb" in error.__cause__.reason:
            error.args = (f"{error}: raise it, or lower train.batch_size",)
        raise
