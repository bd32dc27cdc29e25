"""Signals while training: noted, and acted on between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Batch = TypeVar("Batch")

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Context in which SIGINT and SIGTERM ask for the end of the run, and SIGHUP (a lost terminal) does not.

    `pending`: number of the signal that asked, or 0. A second SIGINT aborts at once (KeyboardInterrupt). Outside
    the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.hung_up = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def between(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with a look at what came before each: nothing to do, where there is one process to ask."""
        return batches

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
        elif number == signal.SIGINT and self.pending == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self.pending = number


@contextmanager
def outlive_terminal() -> Iterator[None]:
    """SIGHUP (a lost terminal) ends nothing in here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
