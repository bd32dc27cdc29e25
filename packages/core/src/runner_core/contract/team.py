"""The team of processes that train one network together, one per device: its members and their agreements.

Every process runs the same commands on the same settings. Only the first writes, shows and scores. It shares with the
others any fact that each process would find out differently (the run's folder, a validation's numbers, a checkpoint
that could not be written), so that all make the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner_core.base.errors import PeerLost
from runner_core.contract.values import Arrays, Json


class Exchange(Protocol):
    """The messages that the processes of a team exchange in one thread of each."""

    number: int
    """Number of this process, from 0."""
    count: int

    @property
    def first(self) -> bool:
        """True in the process that writes and shows."""
        ...

    def every(self, value: Json) -> list[Json]:
        """Return the values of all processes, in their order, in every process."""
        ...


class Team(Exchange, Protocol):
    devices: int
    """Number of devices of each process, each of which takes a share of the process's batch."""

    def aside(self) -> Exchange:
        """Return another exchange, for a thread beside the training; all processes must call this."""
        ...

    def share(self, value: Json) -> Json:
        """Return the first process's `value` in every process; waits for all, as long as it takes."""
        ...

    def every_arrays(self, arrays: Arrays) -> list[Arrays]:
        """Return the arrays of all processes, in their order, in every process."""
        ...

    def noticed(self, number: int) -> int:
        """Return the largest `number` that any process gave in the previous call; does not wait for slower ones."""
        ...

    def speaks(self) -> bool:
        """Return True for the first process that asks: only one tells the user of an error that several meet."""
        ...

    def stepping(self, now: bool) -> None:
        """Say whether this process is taking steps: while all are, none may stay behind for long."""
        ...

    def lost(self, error: BaseException) -> PeerLost | None:
        """Return the error to raise if this one means that another process is gone, else None."""
        ...

    def answers_for(self, lost: Sequence[int]) -> bool:
        """Return True for the first process of each machine that is not among the lost ones: it tells the user."""
        ...

    def last_words(self, say: Callable[[PeerLost], None]) -> None:
        """Set what is called before this process ends because it waits for a lost one and cannot raise an error."""
        ...

    def leave(self) -> None:
        """Leave the team when training is over: from here on this process works alone."""
        ...


class Alone:
    """A `Team` of one process."""

    number, count, first = 0, 1, True

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices

    def aside(self) -> Exchange:
        return self

    def share(self, value: Json) -> Json:
        return value

    def every(self, value: Json) -> list[Json]:
        return [value]

    def every_arrays(self, arrays: Arrays) -> list[Arrays]:
        return [arrays]

    def noticed(self, number: int) -> int:
        return number

    def speaks(self) -> bool:
        return True

    def stepping(self, now: bool) -> None:
        return None

    def lost(self, error: BaseException) -> PeerLost | None:
        return None

    def answers_for(self, lost: Sequence[int]) -> bool:
        return True

    def last_words(self, say: Callable[[PeerLost], None]) -> None:
        return None

    def leave(self) -> None:
        return None


ALONE = Alone()


@dataclass(frozen=True)
class Place:
    """Position of this process, as set by whoever started it.

    It is process `number` of `count`; on its machine it is `local` of `local_count`.
    """

    number: int
    count: int
    local: int
    local_count: int
    rendezvous: str
    """Meeting point: file://PATH or tcp://HOST:PORT; for env:// torch.distributed reads it from the environment."""
    devices: int = 1
    """Number of devices of this process. Keras has several, PyTorch a process for each."""
    attempt: int = 0
    """How often the launcher has started all processes again; what earlier ones left at the meeting point is not read.
    """
