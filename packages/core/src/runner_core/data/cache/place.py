"""Choose the cache in mode auto: records at URLs are streamed, others are prepared before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from runner_core.config import RunConfig
from runner_core.contract import Cache, CachePlan, Pipeline, Store
from runner_core.contract.records import AnyRecord, at_url
from runner_core.data.cache.prepared import PreparedCache


def is_streaming(config: RunConfig, records: Sequence[AnyRecord]) -> bool:
    """Return True if these records are fetched as they are used."""
    return config.cache.mode == "stream" or (config.cache.mode == "auto" and any(map(at_url, records)))


class CacheByPlace:
    """Cache that suits the location of the records."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._prepared = PreparedCache(config.cache)

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        return self._for(records).plan(pipeline, records)

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        return self._for(records).open(pipeline, records, say)

    def _for(self, records: Sequence[AnyRecord]) -> Cache:
        if not is_streaming(self._config, records):
            return self._prepared
        from runner_core.data.stream.cache import StreamCache

        return StreamCache(replace(self._config.cache, mode="stream"), self._config.remote)
