"""Signals that end a training between two steps, and how its processes agree on them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from runner_core.base.errors import ENDING
from runner_core.contract.team import Team

Batch = TypeVar("Batch")

DAMAGED = 1 << 16
"""Value of `Signals.pending` if the data turned out to be damaged; it goes before every signal."""
HANDLED = (signal.SIGINT, signal.SIGHUP, *ENDING)


_PARENT_LOOK = 1.0


def end_with_parent() -> None:
    """Save and end the training if the process that started this one is killed: no process passes signals on then."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(handler: Handler, numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals by `handler` inside this context; outside the main thread, where Python delivers none, do nothing.

    A SIGINT that is ignored stays so, as in Python itself: a shell without job control starts `runner … &` like this.
    The first of the `numbers` gets its own handler back last. SIGINT should be the first: its own handler raises
    KeyboardInterrupt, which would leave the other handlers behind.
    """
    before: dict[int, Any] = {}
    try:
        for number in numbers if threading.current_thread() is threading.main_thread() else ():
            found = signal.getsignal(number)
            if (number, found) != (signal.SIGINT, signal.SIG_IGN):
                before[number] = found
                signal.signal(number, handler)
        yield
    finally:
        for number in reversed(before):
            signal.signal(number, before[number])


class Signals:
    """Context in which SIGINT and those of `ENDING` ask the run to end, and SIGHUP (a lost terminal) does not.

    A second SIGINT aborts at once (KeyboardInterrupt). A SIGINT that was ignored before stays ignored. Outside the main
    thread, where Python delivers no signals, the context does nothing. A step may take long: with `answers`, stderr
    says at once that the signal was received.
    """

    def __init__(self, answers: bool = False) -> None:
        self.answers = answers
        self._handling = handling(self._handle, HANDLED)
        self.hung_up = False
        self.pending = 0
        """Number of the signal that asked, DAMAGED, or 0; an attribute, because every training step reads it."""
        self.damage = ""
        """A description of what is wrong with the data, or ""."""
        self._number = 0

    def __enter__(self) -> Signals:
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)

    def deliver(self) -> None:
        """Send this process once more the signal that came when no step was left: it ends what follows the training."""
        if self._number:
            signal.raise_signal(self._number)

    def damaged(self, what: str) -> None:
        """End the run without saving; called by a thread that verifies the data."""
        self.damage = what
        self.pending = DAMAGED

    def between(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches unchanged; a single process has no others to ask before each batch."""
        return batches

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
        elif number == signal.SIGINT and self._number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self._number = self.pending = number
            if self.answers and not self.damage:
                self._answer(number)
            if self.damage:  # looked at last: the thread may have set it meanwhile
                self.pending = DAMAGED

    @staticmethod
    def _answer(number: int) -> None:
        again = ", a second Ctrl-C ends the run without saving" if number == signal.SIGINT else ""
        text = f"{signal.Signals(number).name} received: the run ends after this step and saves a checkpoint{again}"
        with suppress(OSError):  # not by `print`, which the signal may have interrupted
            os.write(2, f"\nrunner: {text}\n".encode())


@contextmanager
def outlive_terminal() -> Iterator[None]:
    """Ignore SIGHUP (a lost terminal) inside this context."""
    with handling(signal.SIG_IGN, [signal.SIGHUP]):
        yield


class AgreedSignals:
    """`Signals` of a team: a signal to one process is pending in all of them from the same batch on."""

    def __init__(self, own: Signals, team: Team) -> None:
        self._own, self._team = own, team
        self.pending = 0

    @property
    def hung_up(self) -> bool:
        return self._own.hung_up

    @hung_up.setter
    def hung_up(self, value: bool) -> None:
        self._own.hung_up = value

    @property
    def damage(self) -> str:
        """Return what any process found wrong with the data; all must ask at the same time."""
        return next(filter(None, map(str, self._team.every(self._own.damage))), "")

    def between(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, equally many in all processes; the processes agree before each.

        They expect each other's steps from the second one on: the first may compile for a long time.
        """
        try:
            for batch in batches:
                self.pending = max(self.pending, self._team.noticed(self._own.pending))
                yield batch
                self._team.stepping(True)
        finally:
            self._team.stepping(False)
            close = getattr(batches, "close", None)
            if close is not None:
                close()
