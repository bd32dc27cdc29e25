"""A sink that may be slow or hang, in its own thread: training never waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from runner_core.contract import Json, Sink

_Call = Callable[[Sink], None]


class BackgroundSink:
    """Passes calls on to the sink that `make` returns, in order, from another thread.

    The thread calls `make` at the first event: connecting may take time too, and a run that is refused before its first
    step has touched nothing. The next call here raises the thread's error, so that `Sinks` reports it once and drops
    the sink. `close` waits for the remaining calls, at most `seconds`.

    >>> received = []
    >>> class Mail:
    ...     def event(self, kind, step, values):
    ...         received.append((kind, step))
    ...     def close(self):
    ...         received.append("closed")
    >>> sink = BackgroundSink("mail", Mail)
    >>> sink.event("start", 0, {})
    >>> sink.close()
    >>> received
    [('start', 0), 'closed']
    """

    def __init__(self, name: str, make: Callable[[], Sink], seconds: float = 30) -> None:
        self.name, self._make, self._seconds = name, make, seconds
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._error: BaseException | None = None
        # A daemon: the process can end even if this thread hangs.
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._begun = False

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        self._pass_on(lambda sink: sink.event(kind, step, values))

    def figure(self, name: str, step: int, png: Path) -> None:
        self._pass_on(lambda sink: sink.figure(name, step, png))

    def close(self) -> None:
        """Wait for the remaining calls. Raises the thread's error, or TimeoutError."""
        if not self._begun:
            return
        self._calls.put(lambda sink: sink.close())
        self._calls.put(None)
        self._thread.join(self._seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"it was not done within {self._seconds:g} s after the run's end; the rest is lost")
        self._raise()

    def _pass_on(self, call: _Call) -> None:
        self._raise()
        if not self._begun:
            self._begun = True
            self._thread.start()
        self._calls.put(call)

    def _raise(self) -> None:
        if self._error is not None:
            if isinstance(self._error, Exception):
                raise self._error
            raise RuntimeError(f"it ended with {type(self._error).__name__}: {self._error}") from self._error

    def _work(self) -> None:
        try:
            sink = self._make()
            while call := self._calls.get():
                call(sink)
        except BaseException as error:  # also SystemExit, which would end a thread silently
            self._error = error
