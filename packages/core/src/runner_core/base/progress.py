"""Progress of building a cache: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_SECONDS_BETWEEN_LINES = 10.0

Advance = Callable[[], None]


class _Lasting(io.StringIO):
    """A terminal that falls silent when it is gone (SIGHUP), instead of ending the process that prints to it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def progress(title: str, total: int, say: Callable[[str], None]) -> Iterator[Advance]:
    """Yield a function to call after each of `total` pieces of work."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=_Lasting(sys.stderr)), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)
        return
    done, spoken = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, spoken
        done += 1
        if time.monotonic() - spoken > _SECONDS_BETWEEN_LINES:
            spoken = time.monotonic()
            say(f"{title}: {done} of {total}")

    yield advance
