"""The cache of prepared arrays: a folder with one file (or folder) per array, keyed by what went in.

storage   what an extension writes to keep arrays in its own way
identity  what the source files hold, remembered so that the next start need not read them
folder    where caches lie, their meta.json, checksums and locks
stored    prepared arrays opened for reading: memory map, blosc2, RAM, or prepared anew at each read
write     the core's storages: flat files and blosc2; what is written is read back
build     preparing in parallel, written beside and renamed
prepared  the capability: plan, build what is missing, open
place     the cache that suits where the records are
manage    list, verify, prune
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.project import Project
    from runner_core.protocols import Cache


def default_cache(project: Project, config: RunConfig) -> Cache:
    """The cache that `config.cache` describes; of mode auto, for records at URLs one that fetches them when needed."""
    if config.cache.mode == "stream":
        from runner_core.stream.cache import StreamCache

        return StreamCache(config.cache, config.remote)
    from runner_core.cache.prepared import PreparedCache

    if config.cache.mode != "auto":
        return PreparedCache(config.cache)
    from runner_core.cache.place import CacheByPlace

    return CacheByPlace(config)
