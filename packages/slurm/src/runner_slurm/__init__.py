"""Submit a command of runner to SLURM: `runner PROJECT submit`, and `runner PROJECT jobs`.

runner imports this module at every start, so it holds the settings alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from runner_core import AtLeast, MoreThan

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@dataclass
class Config:
    executor: Literal["auto", "slurm", "local"] = "auto"
    """Where jobs run: on SLURM, or on this machine as background processes. auto: SLURM if this machine has its
    commands."""
    partition: str | None = None
    """Partition (queue). Default: the cluster's."""
    account: str | None = None
    """Account that pays."""
    nodes: Annotated[int, AtLeast(1)] = 1
    """Machines of each job."""
    gpus: Annotated[int, AtLeast(0)] = 0
    """GPUs on each machine."""
    tasks: Annotated[int, AtLeast(1)] | None = None
    """Processes on each machine, for train. Default: one for each GPU if the project uses PyTorch, else one."""
    cpus: Annotated[int, AtLeast(1)] | None = None
    """Processor cores of each process; its loader workers share them. Default: the cluster's."""
    memory_gb: Annotated[float, MoreThan(0)] | None = None
    """Memory on each machine in GB. Default: the cluster's."""
    time: str = "24:00:00"
    """Time limit of one start, as SLURM writes it: MINUTES, HH:MM:SS, or D-HH:MM:SS. The job goes on after it."""
    signal_seconds: Annotated[int, AtLeast(1)] = 120
    """Seconds before the time limit at which the job is told to save; more than one step and one checkpoint take."""
    restarts: Annotated[int, AtLeast(0)] = 100
    """How often a job may go back into the queue."""
    at_once: Annotated[int, AtLeast(1)] | None = None
    """Largest number of an array's jobs that run at the same time. Default: no limit on SLURM, 1 on this machine."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, such as qos=long constraint=a100 exclusive."""
    setup: tuple[str, ...] = ()
    """Lines of shell that the job's script runs first, such as 'module load cuda'."""

    def faults(self) -> Iterator[str]:
        """Yield what does not go together."""
        try:
            seconds = 60 * minutes(self.time)
        except ValueError as error:
            yield f"slurm.time {error}"
            return
        if self.signal_seconds >= seconds:
            yield (
                f"slurm.signal_seconds is {self.signal_seconds}, and slurm.time is only {seconds} s: a job would be "
                "told to save at its start"
            )
        for option in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z-]*(=[^\n]*)?", option):
                yield f"slurm.sbatch {option!r}: write NAME=VALUE or NAME, without dashes before it"
            elif option.partition("=")[0] in _OWN:
                yield f"slurm.sbatch {option!r}: runner sets this option itself"


_OWN = ("array", "output", "error", "signal", "requeue", "no-requeue", "open-mode", "time", "nodes", "ntasks-per-node")
"""Options of sbatch that jobs rely on."""


def minutes(time: str) -> int:
    """Return a time limit in whole minutes, rounded up, as SLURM does it. Raises ValueError.

    >>> minutes("90"), minutes("24:00:00"), minutes("1-12"), minutes("0:30")
    (90, 1440, 2160, 1)
    """
    found = _TIME.fullmatch(time.strip())
    if found is None:
        raise ValueError(f"is {time!r}: write MINUTES, MINUTES:SECONDS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    days, *parts = (int(part or 0) for part in found.group("days", "first", "second", "third"))
    if found["days"] is None and found["third"] is None:  # minutes come first
        parts = [0, *parts[:2]]
    hours, minute, second = parts
    seconds = ((days * 24 + hours) * 60 + minute) * 60 + second
    if not seconds:
        raise ValueError(f"is {time!r}: it must be above 0")
    return -(-seconds // 60)
