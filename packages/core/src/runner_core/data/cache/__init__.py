"""The cache of prepared arrays: a folder with one file (or folder) per array, keyed by its inputs.

folder        where caches lie, their meta.json, locks, and checksums of their files by block
identity      digests of the source files, remembered so that the next start need not read them
storage       what an extension that stores arrays implements; prepared arrays opened for reading
verification  an opened cache checked: its bytes in the background, one record prepared anew
build         preparing in parallel, writing (flat files and blosc2), reading back, renaming
choose        the size of a cache, and the mode that fits
survey        what is prepared already of some records
prepared      the capability: plan, build what is missing, open
manage        list, verify, prune
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.contract import Cache
    from runner_core.contract.project import Project
    from runner_core.contract.records import AnyRecord


def is_streaming(config: RunConfig, records: Sequence[AnyRecord]) -> bool:
    """Return True if these records are fetched as they are used."""
    from runner_core.data.table import any_at_url

    return config.cache.mode == "stream" or (config.cache.mode == "auto" and any_at_url(records))


def default_cache(project: Project, config: RunConfig, records: Sequence[AnyRecord] = ()) -> Cache:
    """Return the cache that `config.cache` describes; mode auto fetches records at URLs when they are needed."""
    if is_streaming(config, records):
        from runner_core.data.stream.cache import StreamCache

        return StreamCache(replace(config.cache, mode="stream"), config.remote)
    from runner_core.data.cache.prepared import PreparedCache

    return PreparedCache(config.cache)
