"""An extension: another cache (plain lists in memory, that say so), and a tracker that counts events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner_core import hookimpl
from runner_core.config import CacheConfig
from runner_core.data.cache.prepared import PreparedCache


class ToyCache(PreparedCache):
    """The core's cache, always in memory, announcing itself."""

    def open(self, pipeline: Any, records: Sequence[Any], say: Any) -> Any:
        say("the toy cache is in use")
        return super().open(pipeline, records, say)


class CountingSink:
    """Writes counts.json: how many events of each kind there were."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "counts.json"
        self.counts: dict[str, int] = {}

    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def figure(self, name: str, step: int, png: Path) -> None:
        self.event("figure", step, {})

    def close(self) -> None:
        self.path.write_text(json.dumps(self.counts), encoding="utf-8")


@hookimpl
def runner_cache() -> ToyCache:
    return ToyCache(CacheConfig(mode="off"))


@hookimpl
def runner_sinks(folder: Path) -> Sequence[Any]:
    return [CountingSink(folder)]
