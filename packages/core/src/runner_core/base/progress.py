"""Progress of long work: a bar on a terminal; elsewhere a line now and then, or nothing."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from runner_core.base.text import duration

if TYPE_CHECKING:
    from rich.progress import Progress

_SECONDS_BETWEEN_LINES = 10.0
_CALLS_TO_TIME, _SECONDS_TO_TIME = 20, 5.0
"""The calls are timed until there are this many, or until they have taken this long."""


class Advance(Protocol):
    """Call it after a piece of work, or after `count` of them."""

    def __call__(self, count: int = 1) -> None: ...


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
    """Yield a function to call after each of `total` pieces of work; the time that is left is shown with them."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=_Lasting(sys.stderr)), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda count=1: bar.advance(task, count)
        return
    done, began = 0, time.monotonic()
    spoken = began

    def advance(count: int = 1) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken > _SECONDS_BETWEEN_LINES and done:
            spoken = now
            left = (now - began) / done * (total - done)
            say(f"{title}: {done:,} of {total:,}, about {duration(left)} left")

    yield advance


class RecordBar:
    """Shows on a terminal which record is at work, and how often the network was called for it.

    Without a terminal, `advance` is called after each record, if it is given.
    """

    def __init__(self, bar: Progress | None = None, advance: Advance | None = None) -> None:
        self.bar, self._advance = bar, advance
        self._key, self._calls = "", 0

    def begin(self, key: str) -> None:
        """Show that work on a record begins."""
        self._key, self._calls = key, 0
        self._show(key)

    def done(self) -> None:
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])
        elif self._advance is not None:
            self._advance()

    def counting(self, infer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a network that shows each of its calls: a large record takes many."""
        if self.bar is None:
            return infer

        def counted(arrays: Any) -> Any:
            answer = infer(arrays)
            self._calls += 1
            self._show(f"{self._key}, batch {self._calls}")
            return answer

        return counted

    def _show(self, text: str) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], record=text)


class Estimate:
    """Says once how long `calls` of a network will take, after the first few: `say(seconds, seconds of each)`."""

    def __init__(self, calls: int, say: Callable[[float, float], None]) -> None:
        self.calls, self.say = calls, say
        self._done, self._began = 0, 0.0

    def counting(self, infer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the network, whose calls are counted until the time is said."""

        def timed(arrays: Any) -> Any:
            answer = infer(arrays)
            self._count(time.perf_counter())
            return answer

        return timed

    def _count(self, now: float) -> None:
        self._done += 1
        if self._done == 1:  # the first call compiles, or waits for the device
            self._began = now
        elif self.calls and (self._done >= _CALLS_TO_TIME or now - self._began > _SECONDS_TO_TIME):
            each = (now - self._began) / (self._done - 1)
            self.say(each * self.calls, each)
            self.calls = 0


@contextmanager
def record_bar(title: str, total: int, stream: TextIO, say: Callable[[str], None] | None = None) -> Iterator[RecordBar]:
    """Yield what shows the progress of work on `total` records, and the time left.

    Unless `stream` is a terminal, `say` gets a line now and then; without it, nothing is shown.
    """
    if not stream.isatty():
        if say is None:
            yield RecordBar()
            return
        with progress(title, total, say) as advance:
            yield RecordBar(advance=advance)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text, record = TextColumn("{task.description}"), TextColumn("{task.fields[record]}", markup=False)
    columns = text, BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(compact=True), record
    with Progress(*columns, console=Console(file=_Lasting(stream)), transient=True) as bar:
        bar.add_task(title, total=total, record="")
        yield RecordBar(bar)
