"""Give jobs to SLURM, or to this machine, by submitit; ask how they are, and cancel them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from runner_core import BadInput
from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths
from submitit.slurm.slurm import SlurmInfoWatcher

from runner_slurm import Config, minutes
from runner_slurm.submission import Member, Submission
from runner_slurm.task import Task

SLURM, LOCAL = "slurm", "local"


def executor_for(config: Config) -> str:
    """Return where jobs run. Raises BadInput if SLURM is wanted and not there, or if this machine is too little."""
    there = shutil.which("sbatch") is not None and shutil.which("srun") is not None
    if config.executor == SLURM and not there:
        raise BadInput("slurm.executor is slurm, and this machine has no sbatch and srun: submit from a login node")
    executor = (SLURM if there else LOCAL) if config.executor == "auto" else config.executor
    if executor == LOCAL and config.nodes > 1:
        raise BadInput(f"slurm.nodes is {config.nodes}, and jobs would run on this machine alone: it has no SLURM")
    return executor


def submit(submission: Submission, config: Config, tasks: int) -> list[str]:
    """Submit every member; return their jobs' numbers. Raises BadInput with SLURM's reason if it refuses.

    Args:
        submission: Saved already: a job may start before this function returns.
        config: The settings `slurm`.
        tasks: Processes on each machine.
    """
    if submission.executor == LOCAL:
        return _submit_here(submission, config)
    executor = submitit.AutoExecutor(submission.jobs, cluster=SLURM)
    executor.update_parameters(**slurm_parameters(submission, config, tasks))
    return _submitted(executor, submission, [[member.name] for member in submission.members])


def _submitted(executor: Any, submission: Submission, groups: Sequence[Sequence[str]]) -> list[str]:
    folder = str(submission.path.absolute())
    try:
        with executor.batch():
            jobs = [executor.submit(Task(folder, group)) for group in groups]
    except (FailedJobError, FailedSubmissionError) as error:
        raise BadInput(f"SLURM refused the job: {str(error).strip() or 'sbatch failed'}") from error
    return [job.job_id for job in jobs]


def slurm_parameters(submission: Submission, config: Config, tasks: int) -> dict[str, Any]:
    """Return submitit's parameters for the settings."""
    options = dict[str, Any]({option.partition("=")[0]: option.partition("=")[2] or True for option in config.sbatch})
    again = submission.command in AGAIN
    srun = ["--kill-on-bad-exit=1"]
    if config.cpus is not None:  # since SLURM 22.05, srun does not take it from the job
        srun.append(f"--cpus-per-task={config.cpus}")
    given = {
        "name": f"runner-{submission.project}",
        "timeout_min": minutes(config.time),
        "nodes": config.nodes,
        "tasks_per_node": tasks,
        "gpus_per_node": config.gpus or None,
        "cpus_per_task": config.cpus,
        "mem_gb": config.memory_gb,
        "stderr_to_stdout": True,
        "slurm_partition": config.partition,
        "slurm_account": config.account,
        "slurm_array_parallelism": config.at_once,
        "slurm_setup": list(config.setup) or None,
        "slurm_signal_delay_s": config.signal_seconds,
        "slurm_srun_args": srun,
        "slurm_additional_parameters": {**options, "requeue" if again else "no-requeue": True},
    }
    return {name: value for name, value in given.items() if value is not None}


AGAIN = ("train", "crossval", "repeat", "sweep", "predict", "evaluate", "cache")
"""Commands that may be started again: they go on, or leave what is there."""


# ---------------------------------------------------------------- this machine


def _submit_here(submission: Submission, config: Config) -> list[str]:
    """Start the jobs in a session of their own, so that neither Ctrl-C nor the terminal's end reaches them."""
    words = [str(submission.path.absolute()), json.dumps([config.at_once or 1, minutes(config.time), config.gpus])]
    words += [str(config.signal_seconds), *config.setup]
    code = "from runner_slurm.scheduler import start_here; start_here()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], start_new_session=True, text=True, stdout=subprocess.PIPE, check=True
    )
    jobs: list[str] = json.loads(done.stdout.splitlines()[-1])
    return [jobs[n % len(jobs)] for n in range(len(submission.members))]


def start_here() -> None:
    """Start local jobs and print their numbers; `_submit_here` runs this in a process of its own."""
    folder, numbers, delay, *setup = sys.argv[1:]
    at_once, limit, gpus = json.loads(numbers)
    submission = Submission.open(Path(folder))
    names = [member.name for member in submission.members]
    groups = [names[n::at_once] for n in range(min(at_once, len(names)))]
    executor = submitit.LocalExecutor(submission.jobs)
    executor.update_parameters(
        timeout_min=limit * len(groups[0]), gpus_per_node=gpus, signal_delay_s=int(delay), stderr_to_stdout=True
    )
    if setup:
        executor.update_parameters(setup=setup)
    keep = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for stream in (1, 2):  # the jobs write into their logs, and must not hold the caller's pipe open
        os.dup2(0, stream)
    jobs = _submitted(executor, submission, groups)
    os.write(keep, f"{json.dumps(jobs)}\n".encode())


def _lives_here(submission: Submission, job: str) -> bool:
    """Return whether the process of a local job is alive; another program may have its number by now."""
    try:
        words = Path(f"/proc/{int(job)}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return False
    return "submitit.local._local" in words and str(submission.jobs.absolute()) in words


# ---------------------------------------------------------------- how they are


def states(submission: Submission) -> dict[str, str]:
    """Return the state of each member in one word or two, by name; gone: nobody knows how its job ended."""
    known = {member.name: submission.state(member) for member in submission.members}
    open_jobs = [member for member in submission.members if not known[member.name].ended and member.job]
    asked = _asked(submission, open_jobs) if open_jobs else {}
    found = {}
    for member in submission.members:
        state = known[member.name]
        if state.ended:
            found[member.name] = _ENDS.get(state.code or 0, f"failed ({state.code})")
        elif member.name in asked:
            found[member.name] = asked[member.name]
        else:
            found[member.name] = "cancelled" if submission.cancelled else "gone" if member.job else "not submitted"
    return found


_ENDS = {0: "done", 2: "refused", 3: "unhealthy", 75: "process lost", 138: "stopped", 140: "stopped", 143: "stopped"}
_WAITING = ("pending", "running", "requeued", "completing", "configuring", "suspended", "preempted")
"""First words of the states in which a member may still go on."""


def waits(state: str) -> bool:
    """Return whether a member in this state may still go on."""
    return state.split(maxsplit=1)[0] in _WAITING


def at_work(submission: Submission) -> bool:
    """Return whether a member may still go on, or the job that ended last has yet to compare the runs of an array."""
    if any(map(waits, states(submission).values())):
        return True
    if not submission.comparable or submission.compared.is_file():
        return False
    return any(map(waits, _asked(submission, submission.members).values()))


def _asked(submission: Submission, members: Sequence[Member]) -> dict[str, str]:
    """Return the states of the jobs of these members, by the members' names; what nobody knows is left out."""
    return (_here if submission.executor == LOCAL else _at_slurm)(submission, members)


def _here(submission: Submission, members: Sequence[Member]) -> dict[str, str]:
    living = [member for member in members if _lives_here(submission, member.job)]
    return {m.name: "running" if submission.state(m).last == "start" else "pending" for m in living}


def _at_slurm(submission: Submission, members: Sequence[Member]) -> dict[str, str]:
    """Ask the queue, then the accounts about those that have left it, where the cluster keeps accounts."""
    numbers = ",".join(sorted({member.job.partition("_")[0] for member in members}))
    format_ = "%i|%T|%r"
    queue = _output("squeue", "--noheader", "--array", f"--format={format_}", f"--jobs={numbers}", "--states=all")
    by_job = {}
    for line in queue.splitlines():
        job, state, reason = [*line.strip().split("|"), "", ""][:3]
        told = f" ({reason})" if state == "PENDING" and reason not in ("", "None") else ""
        by_job[job] = state.lower() + told
    gone = [member for member in members if member.job not in by_job]
    if gone:
        told = _output("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", numbers)
        accounts: Mapping[str, Mapping[str, str]] = SlurmInfoWatcher().read_info(told)
        by_job |= {job: row["State"].lower() for job, row in accounts.items() if job not in by_job}
    return {member.name: by_job[member.job] for member in members if member.job in by_job}


def _output(*words: str) -> str:
    """Return what a command of SLURM prints; "" about jobs that are forgotten, or without accounts."""
    try:
        done = subprocess.run(words, text=True, capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"`{words[0]}` does not answer: {error}") from error
    if done.returncode and words[0] == "squeue" and "Invalid job id" not in done.stderr:
        raise BadInput(f"SLURM does not answer: {done.stderr.strip()}")
    return done.stdout if done.returncode == 0 else ""


# ---------------------------------------------------------------- logs, cancelling


def log_of(submission: Submission, member: Member) -> Path:
    """Return the file with what the member's job printed."""
    return Path(JobPaths(submission.jobs, member.job, 0).stdout)


def cancel(submission: Submission) -> None:
    """Cancel every job that has not ended; a training saves a checkpoint first, if the scheduler leaves it the time."""
    submission.cancel()
    jobs = {member.job for member in submission.members if member.job and not submission.state(member).ended}
    for job in sorted(jobs):
        if submission.executor == SLURM:
            with suppress(OSError):
                submitit.SlurmJob(submission.jobs, job).cancel(check=False)
        elif _lives_here(submission, job):
            os.kill(int(job), signal.SIGTERM)
