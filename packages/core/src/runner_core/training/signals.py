"""Note signals during training, and act on them between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Batch = TypeVar("Batch")

DAMAGED = 1 << 16
"""Value of `Signals.pending` if the data turned out to be damaged; it goes before every signal."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Context in which SIGINT and SIGTERM ask the run to end, and SIGHUP (a lost terminal) does not.

    A second SIGINT aborts at once (KeyboardInterrupt). Outside the main thread, where Python delivers no signals, the
    context does nothing.
    """

    def __init__(self) -> None:
        self.hung_up = False
        self.pending = 0
        """Number of the signal that asked, DAMAGED, or 0; an attribute, because every training step reads it."""
        self.damage = ""
        """What is wrong with the data."""
        self._number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
            if self.damage:  # looked at last: the thread may have set it meanwhile
                self.pending = DAMAGED


@contextmanager
def outlive_terminal() -> Iterator[None]:
    """Ignore SIGHUP (a lost terminal) inside this context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
