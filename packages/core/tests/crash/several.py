"""Processes that write one checkpoint together, as threads of this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """`Exchange` of thread `number` of `count`, which share the list `said`."""

    def __init__(self, number: int, count: int, barrier: threading.Barrier, said: list[Any]) -> None:
        self.number, self.count, self.first = number, count, number == 0
        self._barrier, self._said = barrier, said

    def every(self, value: Any) -> list[Any]:
        self._said[self.number] = value
        self._barrier.wait(60)
        every = list(self._said)
        self._barrier.wait(60)
        return every


def together(count: int, job: Callable[[Threads], Any]) -> list[Any]:
    """What `job` returns in each of `count` threads, or the error that it raises there."""
    barrier, said = threading.Barrier(count), [None] * count
    found: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            found[number] = job(Threads(number, count, barrier, said))
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
