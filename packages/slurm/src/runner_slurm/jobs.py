"""`runner PROJECT jobs`: how submitted jobs are, what they printed, what came out; cancel them."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner_core import BadInput, aligned, shell_word

from runner_slurm import scheduler
from runner_slurm.submission import Member, Submission

_LOOK = {scheduler.LOCAL: 1.0, scheduler.SLURM: 15.0}
"""Seconds between two looks while waiting."""
_METRICS = 3
"""Metrics that the table shows."""


def jobs(project: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Show the jobs of a submission: their states, starts and results; print their logs, or cancel them."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a submission's folder (default: the latest in runs/PROJECT)",
    )
    parser.add_argument("--log", metavar="NAME", help="print what this job printed; the word all prints every job's")
    parser.add_argument("--wait", action="store_true", help="wait until all jobs have ended")
    parser.add_argument("--cancel", action="store_true", help="cancel the jobs; a training saves a checkpoint first")
    given = parser.parse_args(list(words))
    submission = Submission.latest(project) if given.folder is None else Submission.open(given.folder)
    if submission.project != project:
        raise BadInput(f"{submission.path} is a submission of project {submission.project!r}, not of {project!r}")
    if given.log:
        print_logs(submission, given.log)
        return 0
    if given.cancel:
        scheduler.cancel(submission)
    if given.wait:
        wait_for(submission)
    return print_table(submission)


def wait_for(submission: Submission) -> None:
    """Return once no job can go on, and an array's runs are compared."""
    while scheduler.at_work(submission):
        time.sleep(_LOOK[submission.executor])


def print_logs(submission: Submission, name: str) -> None:
    """Print the log of one member, or of all of them."""
    members = submission.members if name == "all" else [submission.member(name)]
    for member in members:
        file = scheduler.log_of(submission, member)
        if len(members) > 1:
            print(f"== {member.name}: {file}")
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as text:
                shutil.copyfileobj(text, sys.stdout)
        else:
            print(f"runner: {file}: nothing was printed yet", file=sys.stderr)


def print_table(submission: Submission) -> int:
    """Print a line for each member; return 0, or 3 if one of them ended badly."""
    states = scheduler.states(submission)
    rows = [("name", "job", "state", "starts", "result")]
    for member in submission.members:
        starts = submission.state(member).starts
        rows.append((member.name, member.job, states[member.name], str(starts or ""), result_of(submission, member)))
    print(*aligned(rows), sep="\n")
    print(f"folder: {submission.path}; logs: runner {submission.project} jobs {shell_word(submission.path)} --log all")
    if submission.compared.is_file():
        print(f"comparison: {submission.compared}")
    bad = [state for state in states.values() if state != "done" and not scheduler.waits(state)]
    return 3 if bad else 0


def result_of(submission: Submission, member: Member) -> str:
    """Return the metrics of a member's run, or why it ended; "" where there is none."""
    if submission.command != "train":
        return ""
    summary = {}
    with suppress(OSError, ValueError):
        summary = json.loads((Path(member.folder) / "summary.json").read_text(encoding="utf-8"))
    if not isinstance(summary, dict) or not summary:
        return ""
    metrics = [f"{name} {value:.4g}" for name, value in (summary.get("metrics") or {}).items() if value is not None]
    reason = str(summary.get("reason") or "").partition("\n")[0] if submission.state(member).ended else ""
    return ", ".join([f"{summary.get('steps', 0)} steps", *metrics[:_METRICS], *filter(None, [reason])])
