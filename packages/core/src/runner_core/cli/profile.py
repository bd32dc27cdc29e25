"""`runner PROJECT profile`: show where the time of a run goes, what limits it, and what might help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.cli.measured import refuse
from runner_core.cli.options import ProfileOptions
from runner_core.cli.start import Started, start_new
from runner_core.output.toolfolder import claimed
from runner_core.tools.measure import profile_report
from runner_core.tools.measure.profiling import profile_run, remedies
from runner_core.training.data import open_data


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
