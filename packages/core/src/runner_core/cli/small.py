"""`runner PROJECT config`, `phantom` and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.location import shell_word
from runner_core.base.text import counted
from runner_core.cli.arguments import Parser
from runner_core.cli.options import ConfigOptions, PhantomOptions
from runner_core.cli.start import Started, start_new
from runner_core.plugins.settings import dump


def config(name: str, arguments: Sequence[str]) -> int:
    setup = start_new(name, "config", ConfigOptions, arguments).setup
    print(f"# presets of {name}: {', '.join(setup.project.presets)}")
    for plugin, hooks in setup.plugins.provides().items():
        print(f"# {plugin} ({setup.plugins.versions[plugin]}): {', '.join(hooks)}")
    print(f"project: {name}\npreset: {setup.preset}\n{dump(setup.config)}", end="")
    return 0


def phantom(name: str, arguments: Sequence[str]) -> int:
    folder = phantom_with(start_new(name, "phantom", PhantomOptions, arguments))
    print(f"next: {runner()} {name} train --data {shell_word(folder)} --preset demo")
    return 0


def phantom_with(started: Started[PhantomOptions]) -> Path:
    """Write the phantom, and return its folder."""
    from runner_core.data.phantoms import write_phantom

    setup, seed = started.setup, started.options.seed
    folder = write_phantom(setup.project, started.options.folder, seed)
    print(f"{folder}: {counted(len(setup.project.records(folder)), 'record')}")
    if setup.config.train.seed not in {seed, setup.project.presets[setup.preset]().train.seed}:
        print("NOTE: train.seed is the seed of trainings and changes no phantom: --seed does")
    return folder


def report(name: str, arguments: Sequence[str]) -> int:
    from runner_core.cli.saved import read_run
    from runner_core.experiments.result import write_page
    from runner_core.output.experiments import ExperimentFolder
    from runner_core.output.report import write_report
    from runner_core.output.runfolder import RunFolder

    parser = Parser(prog=f"runner {name} report", description="Rewrite the report.html of a run or an experiment.")
    help_text = "a run folder, or that of a cross-validation or a repetition"
    parser.add_argument("run", type=Path, metavar="RUN", help=help_text)
    for flag in ("--extension", "--no-extension"):
        parser.add_argument(flag, action="append", help="accepted as in other commands; a report uses no extension")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    named = parser.parse_args(list(arguments)).run
    if ExperimentFolder.at(named):
        experiment = ExperimentFolder.open(named)
        if experiment.project != name:
            raise BadInput(f"{named} is an experiment of project {experiment.project!r}, not of {name!r}")
        print(write_page(experiment))
    else:
        run = RunFolder.open(named)
        read_run(run, name)
        print(write_report(run))
    return 0
