"""`runner verify-resume PROJECT`: test that a killed and resumed run equals an uninterrupted one."""

from __future__ import annotations

from collections.abc import Sequence

from runner_core.base.errors import BadInput, Unhealthy
from runner_core.base.text import counted, duration
from runner_core.base.writing import replace_json, replace_text
from runner_core.cli.json_output import show_json, written_result
from runner_core.cli.measure import base_of, refuse_no_device
from runner_core.cli.options import VerifyResumeOptions
from runner_core.cli.start import Started, start_new
from runner_core.contract.records import Table
from runner_core.contract.setup import Setup
from runner_core.output.report.page import Note, Page, html
from runner_core.output.runfolder import claimed
from runner_core.plugins.discovery import find_project
from runner_core.tools.verify_resume.campaign import Campaigns, Result

FACTS = "verify-resume.json"
_USAGE = """usage: runner verify-resume PROJECT [--times N] [--kills N] [--seed N] [--out DIR] [--json] [flags of train]

Kill trainings at random moments, resume them, and compare each bit for bit with an uninterrupted one.
`runner verify-resume PROJECT --help` shows the common settings, `--help-all` all."""


def verify_resume(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        print(_USAGE)
        return 0
    if arguments[0].startswith("-"):
        raise BadInput("name the project first: runner verify-resume PROJECT …")
    name, rest = find_project(arguments[0]).name, arguments[1:]
    started = start(name, rest)
    setup, options = started.setup, started.options
    for flag, value in (("--times", options.times), ("--kills", options.kills)):
        if value < 1:
            raise BadInput(f"{flag} must be at least 1, not {value}")
    with claimed(name, "verify-resume", options.out) as folder:
        print(_described(setup))
        campaigns = Campaigns(base_of(started), folder, setup.checkpoint_format.read, print)
        result = campaigns.run(options.times, options.kills, options.seed)
        replace_json(folder / FACTS, _facts(setup, result))
        replace_text(folder / "report.html", _page(setup, result))
        print(_verdict(result))
        print(f"report: {folder / 'report.html'}")
    if options.json:
        show_json({"folder": folder, **written_result(folder / FACTS)})
    return 0 if result.equal else Unhealthy.exit_code


def _described(setup: Setup) -> str:
    train, checkpoint = setup.config.train, setup.config.checkpoint
    length = f"{counted(train.epochs, 'epoch')} of {counted(train.steps_per_epoch or 0, 'step')}"
    within = f" and every {checkpoint.every_steps} steps" if checkpoint.every_steps else ""
    saved = f"a checkpoint after every {counted(checkpoint.every, 'epoch')}{within}"
    data = "the generated phantom" if setup.source is None else setup.source
    return f"{setup.name}: preset {setup.preset}, data: {data}; {length}, {saved}"


def _verdict(result: Result) -> str:
    runs, kills = counted(len(result.campaigns), "run"), counted(result.kills, "time")
    if result.equal:
        return (
            f"equal: {runs}, killed {kills} and resumed: weights, optimizer, generators, metrics and log equal those "
            "of an uninterrupted run, bit for bit"
        )
    first = next(campaign.differs[0] for campaign in result.campaigns if campaign.differs)
    wrong = sum(bool(campaign.differs) for campaign in result.campaigns)
    if result.repeatable:
        why = (
            "Two uninterrupted runs differ too, first in the "
            f"{result.repeatable[0].text()}: the training itself is not repeatable, on this machine with these settings"
        )
    else:
        why = (
            "Two uninterrupted runs are equal: some random or stored state is in no checkpoint. A checkpoint holds "
            "weights, optimizer, moving average, generators of the framework, NumPy and Python, and the memory of "
            "health rules"
        )
    return f"DIFFERENT: {wrong} of {runs}, first in the {first.text()}. {why}"


def _facts(setup: Setup, result: Result) -> dict[str, object]:
    return {
        "project": setup.name,
        "preset": setup.preset,
        "data": None if setup.source is None else str(setup.source),
        "equal": result.equal,
        "steps": result.steps,
        "kills": result.kills,
        "reference_seconds": result.seconds,
        "runs": [campaign.json() for campaign in result.campaigns],
        "repeatable": None if result.repeatable is None else not result.repeatable,
    }


def _page(setup: Setup, result: Result) -> str:
    rows = [
        (
            f"run {campaign.number}",
            "; ".join(map(str, campaign.killed)),
            duration(campaign.seconds),
            "; ".join(difference.text() for difference in campaign.differs) or "equal",
        )
        for campaign in result.campaigns
    ]
    status, kind, word = ("done", "good", "equal") if result.equal else ("failed", "error", "different")
    return html(
        Page(
            f"{setup.name} · verify-resume",
            f"{setup.name}: killed and resumed",
            [Note(_described(setup))],
            [
                ("Verdict", [Note(_verdict(result), kind)]),
                ("Runs", [Table("runs", "", ("", "killed", "time", "compared"), rows)]),
            ],
            (status, word),
        )
    )


SHORT = {
    "train": {"epochs": 2, "steps_per_epoch": 12, "deterministic": True},
    # Checkpoints within an epoch and within a line of the log; all six are kept.
    "checkpoint": {"every": 1, "every_steps": 5, "keep": 6},
    "validate": {"every": 1},
    "log": {"every": 2, "snapshots_every": 4, "tensorboard": False, "wandb": "off", "mlflow": None},
    "health": {"mode": "warn"},  # such a short training need not learn anything
}
"""Override the preset and a settings file; flags override these."""


def start(name: str, arguments: Sequence[str]) -> Started[VerifyResumeOptions]:
    """Parse `runner verify-resume NAME ARGUMENT…`. Raises BadInput for settings that cannot be repeated exactly."""
    started = start_new(
        name, "verify-resume", VerifyResumeOptions, arguments, prog=f"runner verify-resume {name}", over=SHORT
    )
    train = started.setup.config.train
    if not train.deterministic:
        raise BadInput("runs are compared bit for bit, which train.deterministic promises: leave it on")
    if train.devices > 1:
        raise BadInput("resuming is tested on one device: leave --train.devices out")
    refuse_no_device(started.setup)
    return started
