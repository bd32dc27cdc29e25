"""Count what a process fetched, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Counters since the last `take`, and `fetched_seconds`; safe for threads.

    `fetched_seconds` is the wall time in which at least one `running` block was active.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(names, 0.0)
        self._under_way = 0
        self._since = self._seconds = 0.0

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._lock:
            if not self._under_way:
                self._since = time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    self._seconds += time.monotonic() - self._since

    def take(self) -> dict[str, float]:
        """Return the counts and `fetched_seconds`, and reset them."""
        with self._lock:
            if self._under_way:
                now = time.monotonic()
                self._seconds += now - self._since
                self._since = now
            taken = self._counts | {"fetched_seconds": self._seconds}
            self._counts, self._seconds = dict.fromkeys(self._names, 0.0), 0.0
        return taken
