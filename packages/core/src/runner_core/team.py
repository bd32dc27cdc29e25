"""The processes that train one network together, one a device: who they are, and what they agree on.

Every process runs the same commands on the same settings. Only the first writes, shows and scores; the others get what
cannot be known twice (the run's folder, a validation's numbers, a checkpoint that could not be written) from it, so
that all take the same turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from runner_core._errors import BadInput, RunnerError
from runner_core._signals import Batch, Signals
from runner_core.protocols import Json

RENDEZVOUS = "RUNNER_RENDEZVOUS"
"""Variable in which `cli.launch` tells the processes that it starts where they meet: a file."""


class PeerLost(RunnerError):
    """Another process of the training ended; that one, or who started it, says why."""

    exit_code = 75


class Team(Protocol):
    number: int
    """This process's, from 0."""
    count: int

    @property
    def first(self) -> bool:
        """Is this the process that writes and shows?"""
        ...

    def share(self, value: Json) -> Json:
        """The first process's `value`, on all; waits for all, as long as it takes."""
        ...

    def every(self, value: Json) -> list[Json]:
        """The values of all, in their order, on all."""
        ...

    def noticed(self, number: int) -> int:
        """The largest `number` that any gave in the call before this one; costs no wait for slower ones."""
        ...

    def speaks(self) -> bool:
        """Is this the first to ask? Of an error that several meet one tells the user."""
        ...

    def lost(self, error: BaseException) -> bool:
        """Does this error say that another process is gone?"""
        ...

    def leave(self) -> None:
        """The training is over: from here on this process is by itself."""
        ...


class Alone:
    """`Team` of one."""

    number, count, first = 0, 1, True

    def share(self, value: Json) -> Json:
        return value

    def every(self, value: Json) -> list[Json]:
        return [value]

    def noticed(self, number: int) -> int:
        return number

    def speaks(self) -> bool:
        return True

    def lost(self, error: BaseException) -> bool:
        return False

    def leave(self) -> None:
        return None


ALONE = Alone()


@dataclass(frozen=True)
class Place:
    """Where whoever started this process has put it: `number` of `count`, on its machine `local` of `local_count`."""

    number: int
    count: int
    local: int
    local_count: int
    rendezvous: str
    """Where they meet: file://PATH or tcp://HOST:PORT; env:// as torch.distributed reads it from the environment."""


def find_place(environment: Mapping[str, str]) -> Place | None:
    """This process's place among those that `cli.launch`, torchrun or srun started; None: it is the only one.

    Raises BadInput where the environment says only half of it.
    """
    for count, names, meeting in (
        ("WORLD_SIZE", ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _from_environment),
        ("SLURM_STEP_NUM_TASKS", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"), _from_slurm),
    ):
        if int(environment.get(count, "1")) == 1:
            continue
        number, local, here = names
        if number not in environment:
            raise BadInput(f"{count} is {environment[count]} in the environment, but {number} is not there")
        # SLURM counts nodes as in 4(x2),3
        local_count = int(re.match(r"\d+", environment.get(here, environment[count]))[0])  # type: ignore[index]
        place = Place(int(environment[number]), int(environment[count]), int(environment.get(local, "0")),
                      local_count, meeting(environment))  # fmt: skip
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        bound = number == "SLURM_PROCID" and visible and "," not in visible  # srun has given it a GPU of its own
        return replace(place, local=0, local_count=1) if bound else place
    return None


def _from_environment(environment: Mapping[str, str]) -> str:
    return f"file://{environment[RENDEZVOUS]}" if RENDEZVOUS in environment else "env://"


def _from_slurm(environment: Mapping[str, str]) -> str:
    """The first node of the step, at a port of the job's own."""
    nodes = environment.get("SLURM_STEP_NODELIST", "localhost")
    first = re.match(r"([^\[,]*)(?:\[(\d+))?([^,]*\](.*))?", nodes)  # node[01-04,07]-ib
    assert first is not None
    host = f"{first[1]}{first[2] or ''}{first[4] or ''}" if first[2] else first[1]
    port = 20_000 + int(environment.get("SLURM_JOB_ID", "0")) % 20_000
    return f"tcp://{environment.get('MASTER_ADDR', host)}:{environment.get('MASTER_PORT', port)}"


class AgreedSignals:
    """`Signals` of a team: what came to one of its processes is pending in all of them, from the same batch on."""

    def __init__(self, own: Signals, team: Team) -> None:
        self._own, self._team = own, team
        self.pending = 0

    @property
    def hung_up(self) -> bool:
        return self._own.hung_up

    @hung_up.setter
    def hung_up(self, value: bool) -> None:
        self._own.hung_up = value

    def between(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, of which every process has equally many; before each the processes agree."""
        try:
            for batch in batches:
                self.pending = max(self.pending, self._team.noticed(self._own.pending))
                yield batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
