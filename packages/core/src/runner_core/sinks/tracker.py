"""What tracking services have in common: one run there for a run here, however often it is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner_core.protocols import Json
from runner_core.runfolder import RunFolder, replace_text
from runner_core.sinks import numbers


class ServiceRun(Protocol):
    """A run as a service keeps it."""

    @property
    def id(self) -> str: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def finding(self, step: int, level: str, rule: str, message: str) -> None:
        """What a health rule found."""
        ...

    def image(self, name: str, step: int, png: Path) -> None: ...

    def finish(self, status: str, summary: Mapping[str, Json]) -> None:
        """`status`: done, stopped (by a signal), unhealthy, failed; `summary`: numbers and text of summary.json."""
        ...


class Tracker:
    """The sink in front of a service.

    tracker-SERVICE.json in the run folder keeps the service's id of the run, and up to which step each kind of event
    was sent. A killed run goes on from its last checkpoint, so that steps since then run again: what the service has
    of them stays, and only what it lacks is sent.
    """

    def __init__(self, service: str, folder: Path, connect: Callable[[str | None], ServiceRun]) -> None:
        """`connect(id)`: the run of this id at the service, continued; None: a new one."""
        self._folder, self._connect = folder, connect
        self._file = folder / f"tracker-{service}.json"
        self._sent: dict[str, int] = {}
        self._run: ServiceRun | None = None
        self._status = "failed"

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        if kind == "end":
            self._status = str(values["status"])
        run = self._connected()
        if kind in ("health", "speed"):  # said again, it replaces what was said
            told = values if kind == "health" else values["timing"]
            run.finding(step, told["level"], told["rule"], told["message"])
        elif kind in ("train", "data", "losses", "validation") and step > self._sent.get(kind, -1):
            run.scalars(step, numbers(kind, values))
            self._sent[kind] = step
            self._save(run)

    def figure(self, name: str, step: int, png: Path) -> None:
        self._connected().image(name, step, png)

    def close(self) -> None:
        """The summary is in its file by now, but for a run that failed in some unforeseen way."""
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
    """Numbers and text of a summary, by dotted name; versions and the device are left out."""
    found: dict[str, Json] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping) and name in ("metrics", "scores", "baseline", "peak_memory_bytes"):
            found |= {f"{name}.{key}": inner for key, inner in value.items() if inner is not None}
        elif isinstance(value, (str, int, float)):
            found[name] = value
    return found
