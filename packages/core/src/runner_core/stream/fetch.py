"""Threads that fetch and prepare records: what somebody waits for first, then what is expected, in its order."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from runner_core.stream.entry import Entry

_PATIENCE = 10.0
"""Seconds that `close` waits for the threads."""


class Fetcher:
    """`prepare(number)` gives a record's entry; `there(number)` says that nothing need be done. One for a process, at
    the end of which `give_up` must end what is under way."""

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
        """Of what is waited for or under way."""
        self._ended = False
        self._threads = [threading.Thread(target=self._work, name="runner: fetch", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        atexit.register(self._end)

    def expect(self, numbers: Iterable[int]) -> None:
        """These will be wanted, after those that were expected before."""
        with self._change:
            self._later.extend(numbers)
            self._change.notify_all()

    def fetch(self, number: int) -> Future[Entry]:
        """The record, before all that is only expected. Its result keeps the entry: let go of it."""
        with self._change:
            asked = self._asked.get(number)
            if asked is None:
                asked = self._asked[number] = Future()
                self._now.append(number)
                self._change.notify()
            return asked

    def close(self) -> None:
        """Nothing more is begun; what is under way may end."""
        with self._change:
            self._ended = True
            self._change.notify_all()
        until = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        atexit.unregister(self._end)

    def _end(self) -> None:
        """No thread may come back from a request, or from a library, while Python ends."""
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
                del entry  # or it would be in use until this thread has its next

    def _next(self) -> int | None:
        """Waits for something to do; None: there is no more."""
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
