"""`runner PROJECT tune`: try what would make training faster, and write the settings that are."""

from __future__ import annotations

from collections.abc import Sequence

from runner_core._errors import BadInput
from runner_core._memory import available_ram
from runner_core.cli.data import open_data
from runner_core.cli.measured import base_of, exit_code, refuse
from runner_core.cli.options import TuneOptions
from runner_core.cli.start import start_new
from runner_core.config.values import flat
from runner_core.display import speed
from runner_core.measure import tune_report
from runner_core.measure.candidates import Facts, systematic, with_fixes
from runner_core.measure.tune import Tuning
from runner_core.measure.turns import spread
from runner_core.toolfolder import tool_folder


def tune(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "tune", TuneOptions, arguments)
    options, setup = started.options, started.setup
    refuse("tune", started)
    if options.memory_gb is not None and not options.memory_gb > 0:
        raise BadInput(f"--memory-gb must be more than 0, not {options.memory_gb:g}")
    folder = tool_folder(name, "tune", options.out)
    open_data(setup, print).store.close()  # before the time runs: the cache is built, and faulty data refused
    base = base_of(started)
    memory = None if options.memory_gb is None else int(options.memory_gb * 1e9)
    settings, code = flat(setup.config), 0
    print(f"tuning for {options.minutes:g} minutes: each remedy takes turns with the best settings so far")
    with Tuning(base, 60 * options.minutes, memory, print) as tuning:
        ready = tuning.begin()
        rate = 1 / spread(tuning.best.per_sample).median
        print(
            f"the settings as they are: {speed(rate)} samples/s, {tuning.wait_share:.1%} of the time waiting for data "
            f"({ready.device}, {ready.precision}, batches of {ready.batch})"
        )
        facts = Facts(setup.project, settings, ready, tuning.wait_share, tuning.step_seconds, available_ram())
        tried, left = systematic(facts)
        try:
            candidates, beyond = with_fixes(tuning.fixes(), tried)
            tuning.try_all(settings, candidates, [*left, *beyond])
            found = tuning.finish()
        except (KeyboardInterrupt, SystemExit) as stop:
            found, code = tuning.stopped(), exit_code(stop)
    tune_report.write(found, base, type(setup.project), setup.config, folder)
    for line in tune_report.lines(found, folder, name):
        print(line)
    return code
