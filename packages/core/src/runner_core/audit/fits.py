"""What a training takes, and what there is: of its cache always, of all the rest where the network may be built."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

from runner_core._files import size_text
from runner_core._memory import available_ram
from runner_core.audit.checked import Checked
from runner_core.cache.choose import STORAGES
from runner_core.cache.write import FLAT
from runner_core.memory import MemoryPlan, plan, sketch
from runner_core.project import Table
from runner_core.protocols import CachePlan
from runner_core.setup import Setup

_HEADER = 8192
"""Bytes that the file of a streamed record has besides its arrays, with its last page."""


def memory_plan(setup: Setup, checked: Checked, cache: CachePlan) -> MemoryPlan:
    """With the network, which is built and tried: seconds, and on a machine without a GPU perhaps a minute. Raises
    BadInput where no sample can be had."""
    return plan(setup, sketch(setup, checked.records, checked.sides, cache))


def prepared_already(plan: CachePlan, prepared: int) -> CachePlan:
    """The plan, corrected by the bytes that all records together came to: what is kept as it is takes these, whatever
    was estimated, and what is streamed no more than these, whatever there is room for."""
    if plan.mode == "stream":
        return replace(plan, disk_bytes=min(plan.disk_bytes, prepared + plan.records * _HEADER))
    disk = prepared if STORAGES.get(plan.mode) is FLAT else plan.disk_bytes
    ram, device = (prepared if size else 0 for size in (plan.ram_bytes, plan.device_bytes))
    return replace(plan, disk_bytes=disk, ram_bytes=ram, device_bytes=device)


def fits(cache: CachePlan | None, memory: MemoryPlan | None) -> list[Table]:
    """A table, where anything is known."""
    if memory is not None:
        return [Table("memory", "What a training takes", memory.COLUMNS, memory.rows)]
    rows = [] if cache is None else list(_of_cache(cache))
    title = "What the cache takes (--fit builds the network, and says what a training takes besides)"
    return [Table("memory", title, ("where", "takes", "there is"), rows)] if rows else []


def _of_cache(cache: CachePlan) -> Iterator[tuple[str, str, str]]:
    if cache.disk_bytes and cache.folder is not None:
        existing = next(
            place for place in (cache.folder.absolute(), *cache.folder.absolute().parents) if place.exists()
        )
        free = f"{size_text(shutil.disk_usage(existing).free)} free"
        there = f", {cache.ready} of {cache.records} records there already" if cache.ready else ""
        most = "at most " if cache.mode == "stream" else ""
        yield "disk", most + size_text(cache.disk_bytes), free + there
    if cache.ram_bytes:
        yield "RAM", size_text(cache.ram_bytes), f"{size_text(available_ram())} free"
    if cache.device_bytes:
        yield "device", size_text(cache.device_bytes), "see --fit"
