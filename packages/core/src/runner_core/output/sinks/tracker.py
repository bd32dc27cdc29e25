"""Shared by tracking services: a run here is one run there, however often it resumes, and training never waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from runner_core.base.writing import replace_text
from runner_core.contract import Json, Sink
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import numbers


class ServiceRun(Protocol):
    """A run as the service stores it."""

    @property
    def id(self) -> str: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def finding(self, step: int, level: str, rule: str, message: str) -> None:
        """Send the finding of a health rule."""
        ...

    def image(self, name: str, step: int, png: Path) -> None: ...

    def finish(self, status: str, summary: Mapping[str, Json]) -> None:
        """End the run.

        `status` is done, stopped (by a signal), unhealthy or failed; `summary` holds numbers and text of summary.json.
        """
        ...


class Tracker:
    """The sink in front of a service.

    tracker-SERVICE.json in the run folder keeps the service's id of the run, and the last step of each kind of event
    that was sent. A killed run goes on from its last checkpoint, so that steps since then run again: the service keeps
    what it has of them, and only gets what it lacks.
    """

    def __init__(self, service: str, folder: Path, connect: Callable[[str | None], ServiceRun]) -> None:
        """Take `connect(id)`, which continues the run of this id at the service; None starts a new one."""
        self._folder, self._connect = folder, connect
        self._file = folder / f"tracker-{service}.json"
        self._sent: dict[str, int] = {}
        self._run: ServiceRun | None = None
        self._status = "failed"

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        if kind == "end":
            self._status = str(values["status"])
        run = self._connected()
        if kind in ("health", "speed"):  # a repeated finding replaces the first
            fields = values if kind == "health" else values["timing"]
            run.finding(step, fields["level"], fields["rule"], fields["message"])
        elif kind in ("train", "data", "losses", "validation") and step > self._sent.get(kind, -1):
            run.scalars(step, numbers(kind, values))
            self._sent[kind] = step
            self._save(run)

    def figure(self, name: str, step: int, png: Path) -> None:
        self._connected().image(name, step, png)

    def close(self) -> None:
        """Send the summary, which is in its file by now unless the run failed unexpectedly."""
        if self._run is not None:
            summary = RunFolder(self._folder).read_summary() if self._status != "failed" else {}
            self._run.finish(self._status, _shown(summary))

    def _connected(self) -> ServiceRun:
        if self._run is None:
            kept = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
            self._sent = kept.get("sent", {})
            self._run = self._connect(kept.get("id"))
            self._save(self._run)
        return self._run

    def _save(self, run: ServiceRun) -> None:
        replace_text(self._file, json.dumps({"id": run.id, "sent": self._sent}))


def _shown(summary: Mapping[str, Any]) -> dict[str, Json]:
    """Return numbers and text of a summary, by dotted name, without versions and the device."""
    found: dict[str, Json] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping) and name in ("metrics", "scores", "baseline", "peak_memory_bytes"):
            found |= {f"{name}.{key}": inner for key, inner in value.items() if inner is not None}
        elif isinstance(value, (str, int, float)):
            found[name] = value
    return found


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
