"""What tracking services have in common: one run there for a run here, however often it is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner_core.config import RunConfig
from runner_core.config.values import flat
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
    was sent. A killed run goes on from its last checkpoint, and the steps since then run again: the service has them,
    so they are not sent twice. They are told by log.jsonl, as the killed process left it: make the tracker before the
    log is cut back.
    """

    def __init__(self, service: str, folder: Path, connect: Callable[[str | None], ServiceRun]) -> None:
        """`connect(id)`: the run of this id at the service, continued; None: a new one."""
        self._folder, self._connect = RunFolder(folder), connect
        self._file = folder / f"tracker-{service}.json"
        self._id: str | None = None
        self._sent: dict[str, int] = {}
        if self._file.exists():
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            self._id, self._sent = kept["id"], kept["sent"]
            for line in self._folder.events():
                self._sent[line["event"]] = max(line["step"], self._sent.get(line["event"], -1))
        self._run: ServiceRun | None = None
        self._status = "failed"

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        if kind == "end":
            self._status = str(values["status"])
        if step <= self._sent.get(kind, -1):
            return
        run = self._connected()
        if kind in ("train", "validation"):
            run.scalars(step, numbers(kind, values))
        elif kind == "health":
            run.finding(step, values["level"], values["rule"], values["message"])

    def figure(self, name: str, step: int, png: Path) -> None:
        self._connected().image(name, step, png)

    def close(self) -> None:
        """The summary is in its file by now, but for a run that failed in some unforeseen way."""
        if self._run is not None:
            self._run.finish(self._status, {} if self._status == "failed" else _shown(self._folder.read_summary()))

    def _connected(self) -> ServiceRun:
        if self._run is None:
            self._run = self._connect(self._id)
            replace_text(self._file, json.dumps({"id": self._run.id, "sent": self._sent}))
        return self._run


def settings(config: RunConfig) -> dict[str, Json]:
    """Settings by dotted name."""
    return dict(flat(config))


def _shown(summary: Mapping[str, Any]) -> dict[str, Json]:
    """Numbers and text of a summary, by dotted name; versions and the device are left out."""
    found: dict[str, Json] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping) and name in ("metrics", "scores", "baseline", "peak_memory_bytes"):
            found |= {f"{name}.{key}": inner for key, inner in value.items() if inner is not None}
        elif isinstance(value, (str, int, float)):
            found[name] = value
    return found
