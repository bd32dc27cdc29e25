"""Compare what a training takes with what is there: its cache always, the rest if the network may be built."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

from runner_core.base.files import size_text
from runner_core.base.memory import available_ram
from runner_core.contract import CachePlan
from runner_core.contract.records import Table
from runner_core.contract.setup import Setup
from runner_core.data.cache.choose import STORAGES
from runner_core.data.cache.write import FLAT
from runner_core.tools.check.checked import Checked
from runner_core.training.memory import MemoryPlan, plan, sketch

_HEADER = 8192
"""Bytes of a streamed record's file in addition to its arrays, including its last page."""


def memory_plan(setup: Setup, checked: Checked, cache: CachePlan) -> MemoryPlan:
    """Plan the memory with the network, which is built and tried; raise BadInput if there is no sample.

    This takes seconds, or perhaps a minute on a machine without a GPU.
    """
    return plan(setup, sketch(setup, checked.records, checked.splits, cache))


def prepared_already(plan: CachePlan, prepared: int) -> CachePlan:
    """Return the plan, corrected by the bytes that all records together have.

    An uncompressed cache takes these bytes, whatever was estimated. A streaming cache takes no more than these,
    whatever there is room for.
    """
    if plan.mode == "stream":
        return replace(plan, disk_bytes=min(plan.disk_bytes, prepared + plan.records * _HEADER))
    disk = prepared if STORAGES.get(plan.mode) is FLAT else plan.disk_bytes
    ram, device = (prepared if size else 0 for size in (plan.ram_bytes, plan.device_bytes))
    return replace(plan, disk_bytes=disk, ram_bytes=ram, device_bytes=device)


def fits(cache: CachePlan | None, memory: MemoryPlan | None) -> list[Table]:
    """Return a table, if anything is known."""
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
