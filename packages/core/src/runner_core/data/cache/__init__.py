"""The cache of prepared arrays: a folder with one file (or folder) per array, keyed by its inputs.

storage       the interface for extensions that store arrays in their own format
identity      digests of the source files, remembered so that the next start need not read them
content       the files of arrays, and their checksums by block
folder        the location of caches, their meta.json and locks
stored        prepared arrays opened for reading: memory map, blosc2, RAM, or prepared anew at each read
verification  reading an opened cache again, in the background
write         the core's storages: flat files and blosc2; what is written is read back
build         preparing in parallel, written beside and renamed
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
    from runner_core.contract.records import at_url

    return config.cache.mode == "stream" or (config.cache.mode == "auto" and any(map(at_url, records)))


def default_cache(project: Project, config: RunConfig, records: Sequence[AnyRecord] = ()) -> Cache:
    """Return the cache that `config.cache` describes; mode auto fetches records at URLs when they are needed."""
    if is_streaming(config, records):
        from runner_core.data.stream.cache import StreamCache

        return StreamCache(replace(config.cache, mode="stream"), config.remote)
    from runner_core.data.cache.prepared import PreparedCache

    return PreparedCache(config.cache)
