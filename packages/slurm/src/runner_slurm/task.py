"""The work of a job: it runs its members, and goes back into the queue after an interruption.

Each process of the job calls `Task`. A signal (the time limit is near, the job is preempted) reaches runner's own
handlers, which save a checkpoint after the step and end with the signal's exit code. Then, and not at the signal as
submitit itself would, the job is requeued by submitit's means, and `--resume auto` goes on.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import runner_core
import submitit

from runner_slurm.submission import Member, Submission

_TERMINATED, *_TOLD = (128 + number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
"""Exit codes after SIGTERM, which srun also sends if another process has failed, and after the time limit's signals."""
_LOST = 75
"""Exit code if another process of the training is gone or silent."""
_OTHERS_WAIT = 20.0
"""Seconds that the first process of a job has to write what it must before another one ends the job."""


class Task(submitit.helpers.Checkpointable):
    """Run the members of these names that have not ended, one after another.

    It is pickled by submitit, so it holds text alone; what is run is read from the submission's folder.
    """

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.folder, self.names = folder, tuple(names)

    def __call__(self) -> None:
        submission = Submission.open(Path(self.folder))
        named = map(submission.member, self.names)
        left = [member for member in named if not submission.state(member).ended]
        if not left or submission.cancelled:
            return
        if submitit.JobEnvironment().global_rank:
            _run_beside(submission, left[0])
        code = _run_first(submission, left[0])
        _conclude(submission)
        if left[1:] and not submission.cancelled:
            _flush()  # the next member gets a new process, under this one's number, which signals are sent to
            os.execv(sys.executable, sys.orig_argv)
        if code:
            sys.exit(code)


def _run_first(submission: Submission, member: Member) -> int:
    """Run a member in the only process of its job, or in the first; return its exit code unless it is to go on."""
    submission.say(member, "start")
    before = newest(member)
    code = _run(member)
    alone = submitit.JobEnvironment().num_tasks == 1
    failing = code == _LOST or (code == _TERMINATED and not alone)  # each time perhaps: only if it came further
    if code in _TOLD or (code == _TERMINATED and alone) or (failing and newest(member) > before):
        if submission.cancelled or submission.state(member).starts > submission.restarts:
            submission.say(member, "ended", code)
            sys.exit(code)
        submission.say(member, "requeued", code)
        if not _requeued():
            submission.say(member, "stopped", code)
        sys.exit(code)
    submission.say(member, "ended", code)
    return code


def _run_beside(submission: Submission, member: Member) -> None:
    """Run a member in another process of its job, and end it.

    srun ends all processes after the first that fails (--kill-on-bad-exit). What all processes learn of, the first one
    writes down; it needs the time.
    """
    before = newest(member)
    code = _run(member)
    if code == _LOST:
        time.sleep(_OTHERS_WAIT)
        if newest(member) > before and submission.state(member).starts <= submission.restarts:
            _requeued()
    _flush()
    os._exit(code if code == _LOST else 0)


def _run(member: Member) -> int:
    """Run a command line of runner in this process; return its exit code."""
    print(f"$ runner {shlex.join(member.words)}", flush=True)
    try:
        return runner_core.main(list(member.words))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def newest(member: Member) -> str:
    """Return the name of a run's newest checkpoint, "" if there is none: names of later ones are greater."""
    folders = Path(member.folder).glob("checkpoints/step-*") if member.folder else ()
    return max((folder.name for folder in folders), default="")


def _requeued() -> bool:
    """Put this job back into the queue; return whether the scheduler took it. A local job ends here.

    SLURM refuses if it has ended the job itself: it was cancelled, or preempted, and then SLURM starts it again.
    """
    try:
        submitit.JobEnvironment()._requeue(0)
    except (subprocess.SubprocessError, OSError):
        print("runner: SLURM has ended this job; if it was preempted, SLURM starts it again", file=sys.stderr)
        return False
    return True


def _conclude(submission: Submission) -> None:
    """Compare the runs of an array, in the job that ends last."""
    if not submission.comparable:
        return
    with suppress(FileExistsError):
        submission.comparison.mkdir()
        runs = [member.folder for member in submission.members]
        _run(Member("comparison", ["compare", *runs, "--out", str(submission.comparison)]))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
