"""Threads that fetch and prepare records, first those that a caller waits for, and counters of what was fetched."""

from __future__ import annotations

import atexit
import fcntl
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from runner_core.data.stream.lru import Entry


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


_PATIENCE = 10.0
"""Seconds that `close` waits for the threads."""


class Fetcher:
    """Fetches records in threads; one for each process.

    `prepare(number)` returns a record's entry. `there(number)` says that nothing needs to be done. At the end of the
    process `give_up` must cancel running requests.
    """

    def __init__(
        self,
        prepare: Callable[[int], Entry],
        there: Callable[[int], bool],
        give_up: Callable[[], None],
        threads: int,
    ) -> None:
        self._prepare, self._there, self._give_up = prepare, there, give_up
        self._change = threading.Condition()
        self._now: deque[int] = deque()
        self._later: deque[int] = deque()
        self._asked: dict[int, Future[Entry]] = {}
        """Futures of records that are waited for or being fetched."""
        self._ended = False
        self._threads = [threading.Thread(target=self._work, name="runner: fetch", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        atexit.register(self._end)

    def expect(self, numbers: Iterable[int]) -> None:
        """Announce records that will be wanted after those expected before."""
        with self._change:
            self._later.extend(numbers)
            self._change.notify_all()

    def fetch(self, number: int) -> Future[Entry]:
        """Return a future of the record, which goes before all expected ones.

        The future keeps the entry alive; release it.
        """
        with self._change:
            asked = self._asked.get(number)
            if asked is None:
                asked = self._asked[number] = Future()
                self._now.append(number)
                self._change.notify()
            return asked

    def close(self) -> None:
        """Start nothing more; running work may end."""
        with self._change:
            self._ended = True
            self._change.notify_all()
        until = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        atexit.unregister(self._end)

    def _end(self) -> None:
        """Stop all threads, because none may return from a request or a library while Python ends."""
        self._ended = True
        self._give_up()
        self.close()

    def _work(self) -> None:
        while (number := self._next()) is not None:
            try:
                entry = self._prepare(number)
            except BaseException as error:
                self._done(number).set_exception(error)
            else:
                self._done(number).set_result(entry)
                del entry  # otherwise it would be in use until this thread gets its next one

    def _next(self) -> int | None:
        """Wait for the next record to fetch; return None at the end."""
        with self._change:
            while True:
                if self._ended:
                    return None
                if self._now:
                    return self._now.popleft()
                if self._later:
                    number = self._later.popleft()
                    if number not in self._asked and not self._there(number):
                        self._asked[number] = Future()
                        return number
                else:
                    self._change.wait()

    def _done(self, number: int) -> Future[Entry]:
        with self._change:
            return self._asked.pop(number)


@contextmanager
def claimed(file: Path, name: str) -> Iterator[None]:
    """Hold an exclusive claim on `name` (hexadecimal digits) among all processes.

    A byte of `file`, which stays empty, is locked, so nothing is left behind however a process ends. The lock belongs
    to the open file (F_OFD_SETLKW), not to the process, so threads wait for each other too.
    """
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        lock = struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, int(name[:15], 16), 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, lock)
        yield
    finally:
        os.close(descriptor)
