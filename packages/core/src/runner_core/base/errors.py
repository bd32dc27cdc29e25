"""All errors that a user can meet, and the exit code each becomes.

RunnerError                      1
├── BadInput                     2    a file, a setting or a folder is wrong: what, where, what to do
│   ├── DataErrors               2    several faulty records, listed together
│   ├── OutOfSpace               2    disk or memory will not (or did not) suffice
│   └── NotSaved                 2    a checkpoint could not be written
├── Unhealthy                    3    a health rule stopped the run
├── PeerLost             75    another process of a training is gone or silent
└── Stopped            128 + signal    SIGINT (130), or one of `ENDING`, after a checkpoint was saved
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from runner_core.base.secrets import without_secrets
from runner_core.base.text import counted

ENDING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which a scheduler ends a job: exit codes 143, 138 and 140."""


class RunnerError(Exception):
    """Base of the errors that the command line prints as one message, without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class BadInput(RunnerError):
    """Wrong input; the message names the file or setting, its fault, and the remedy."""

    exit_code = 2


class DataErrors(BadInput):
    """Several records are faulty; `errors` holds one message each."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(map(without_secrets, errors))
        shown = "\n".join(f"  - {e}" for e in self.errors[:20])
        more = f"\n  … and {len(self.errors) - 20} more" if len(self.errors) > 20 else ""
        super().__init__(f"{counted(len(self.errors), 'record')} cannot be used:\n{shown}{more}")


class OutOfSpace(BadInput):
    """Disk, RAM or device memory does not suffice; the message has the number and the remedy."""


class NotSaved(BadInput):
    """A checkpoint could not be written; older ones are kept."""


class Unhealthy(RunnerError):
    """A health rule found that this run only looks healthy."""

    exit_code = 3


class PeerLost(RunnerError):
    """Another process of the training ended, or nothing is heard from it; started again, the run may go on.

    Args:
        message: Who is lost, and what to do.
        numbers: Numbers of the lost processes, as far as known.
        ended: True if they ended, so that whoever started them knows why.
    """

    exit_code = 75

    def __init__(self, message: str, numbers: Sequence[int] = (), ended: bool = False) -> None:
        super().__init__(message)
        self.numbers, self.ended = tuple(numbers), ended


class Stopped(RunnerError):
    """A signal stopped the run; everything is saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the known word nearest to `word`, else an empty string.

    >>> did_you_mean("epoch", ["epochs", "batch_size"])
    "; did you mean 'epochs'?"
    """
    import difflib  # only errors need it

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
