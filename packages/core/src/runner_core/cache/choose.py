"""Which mode the cache takes, given what is there and what fits; or the refusal, with numbers and remedy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner_core._errors import OutOfSpace
from runner_core._files import size_text
from runner_core._memory import available_ram
from runner_core.cache.size import Size
from runner_core.cache.storage import Storage
from runner_core.cache.write import BLOSC2, FLAT, MEMORY

if TYPE_CHECKING:
    from runner_core.config import CacheConfig

_LEAVE_FREE = 0.05
STORAGES = {"memmap": FLAT, "device": FLAT, "memory": MEMORY, "blosc2": BLOSC2}
"""What each mode keeps its arrays in."""


class Limit(NamedTuple):
    """Bytes that a new cache may take, and what says so."""

    size: int
    source: str
    from_setting: bool


def choose_mode(
    config: CacheConfig, folder: Path, built: Collection[str], size: Size, own: Storage | None = None
) -> tuple[str, str]:
    """(mode, why if that needs saying). Raises OutOfSpace when it does not fit and naming what would.

    `built`: names of the storages in which these very records are cached already; they take no further disk.
    `own`: an extension's storage, which is then the mode.
    """
    mode: str = config.mode if own is None else own.name
    why = ""
    if mode == "auto":
        mode, why = _automatic(config, folder, built, size)
    if mode == "memory" and size.plain > (there := available_ram()):
        raise OutOfSpace(
            f"cache.mode memory takes {size_text(size.plain)} of RAM, {size_text(there)} are available: set cache.mode "
            "to memmap, which needs none of its own"
        )
    storage = own or STORAGES[mode]
    wanted = size.kept_by(storage)
    limit = _disk_limit(config, folder)
    if storage.name not in built and wanted > limit.size:
        raise OutOfSpace(
            f"the cache takes about {size_text(wanted)} of disk, {limit.source} {size_text(limit.size)}: "
            + _remedy(size, limit, storage)
        )
    return mode, why


def _automatic(config: CacheConfig, folder: Path, built: Collection[str], size: Size) -> tuple[str, str]:
    """A memory map; blosc2 when that is there already or only that fits."""
    if "flat" in built:
        return "memmap", ""
    if "blosc2" in built:
        return "blosc2", "blosc2: these records are there in that form"
    limit = _disk_limit(config, folder)
    if size.plain <= limit.size or size.compressed > limit.size:
        return "memmap", ""
    return "blosc2", (
        f"blosc2, since a memory map takes about {size_text(size.plain)} and {limit.source} {size_text(limit.size)}"
    )


def _disk_limit(config: CacheConfig, folder: Path) -> Limit:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = int(shutil.disk_usage(existing).free * (1 - _LEAVE_FREE))
    if config.max_gb is not None and config.max_gb * 1e9 < free:
        return Limit(int(config.max_gb * 1e9), "cache.max_gb allows", True)
    return Limit(free, f"the disk of {existing} has (less 5 %)", False)


def _remedy(size: Size, limit: Limit, storage: Storage) -> str:
    if storage is not BLOSC2 and size.compressed <= limit.size:
        return f"set cache.mode to blosc2 (about {size_text(size.compressed)})"
    if limit.from_setting:
        return (
            f"set cache.max_gb to {math.ceil(size.compressed / 1e7) / 100} with cache.mode blosc2, or cache.mode to off"
        )
    return f"set cache.dir to a disk with {size_text(size.compressed)} free (cache.mode blosc2), or cache.mode to off"
