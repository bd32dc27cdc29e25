"""Show the data as tables for screen and page: records, grey values, labels, other files, and what a training takes."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from runner_core.base.errors import BadInput
from runner_core.base.files import size_text, walk
from runner_core.base.location import Location
from runner_core.base.resources import available_ram
from runner_core.base.text import counted
from runner_core.contract import CachePlan
from runner_core.contract.records import AnyRecord, Table
from runner_core.contract.setup import Setup
from runner_core.data.cache.build import FLAT
from runner_core.data.cache.choose import STORAGES
from runner_core.tools.check.facts import GREY, ArrayFacts, Balance, Checked, Levels, RecordFacts
from runner_core.training.memory import MemoryPlan, plan, sketch

_SHOWN = 4


def other_files(folder: Location, records: Sequence[AnyRecord]) -> Mapping[str, int]:
    """Return their number by suffix ("" without one); URLs are not searched."""
    if not isinstance(folder, Path) or not folder.is_dir():
        return {}
    used = {os.path.abspath(place) for record in records for place in record.files.values() if isinstance(place, Path)}
    found: Counter[str] = Counter()
    try:
        for here, folders, names in walk(folder):
            folders[:] = [name for name in folders if os.path.abspath(here / name) not in used]
            found.update(Path(name).suffix.lower() for name in names if os.path.abspath(here / name) not in used)
    except BadInput:  # a folder that cannot be read: the project found its records without it
        return {}
    return found


def shown(others: Mapping[str, int]) -> str:
    """Return the counts as text.

    >>> shown({".json": 1, ".txt": 1200, "": 1})
    '1,202 (1,200 .txt, 1 .json, 1 without ending)'
    """
    if not others:
        return ""
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0] == "", item[0]))
    return f"{sum(others.values()):,} ({_listed(ordered[:_SHOWN])}{', …' if ordered[_SHOWN:] else ''})"


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {ending or 'without ending'}" for ending, count in counts)


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


_CLASSES = 30
"""Largest number of rows in the table of classes."""


def tables(checked: Checked, others: Mapping[str, int]) -> list[Table]:
    """Return the tables that have rows; `others` counts files that belong to no record, by suffix."""
    if not checked.records:
        return []
    found = [_what(checked, shown(others)), _arrays(checked), _classes(checked)]
    return [table for table in found if table.rows]


def _what(checked: Checked, others: str) -> Table:
    """Return a table with a column for all usable records, and one for each split."""
    parts: dict[str, Sequence[int]] = {"all": range(len(checked.records)), **checked.parts}
    if len(parts) == 2:  # all are in one split
        parts.pop("all")
    rows = [(name, *(cell(checked, numbers) for numbers in parts.values())) for name, cell in _ROWS.items()]
    rows.append(("other files", others, *[""] * (len(parts) - 1)))
    return Table("set", "What there is", ("", *parts), [row for row in rows if any(row[1:])])


def _of_facts(text: Callable[[list[RecordFacts]], str]) -> Callable[[Checked, Sequence[int]], str]:
    def cell(checked: Checked, numbers: Sequence[int]) -> str:
        known = [facts for _, facts in checked.facts(numbers)]
        return text(known) if known else ""

    return cell


def _files(known: list[RecordFacts]) -> str:
    return f"{sum(facts.files for facts in known):,} ({size_text(sum(facts.file_bytes for facts in known))})"


def _shape(known: list[RecordFacts]) -> str:
    return _ranges([facts.shape for facts in known], str)


def _spacing(known: list[RecordFacts]) -> str:
    """Return the spacings, or "" for projects without any."""
    spacings = [facts.spacing for facts in known]
    return "" if all(mm == 1 for spacing in spacings for mm in spacing) else _ranges(spacings, "{:.3g}".format)


def _labelled(checked: Checked, numbers: Sequence[int]) -> str:
    balance = checked.balance(numbers)
    return f"{balance.records:,}" if balance.records else ""


def _annotated(checked: Checked, numbers: Sequence[int]) -> str:
    balance = checked.balance(numbers)
    return f"{1 - balance.ignored_share:.1%}" if balance.ignored is not None else ""


_ROWS: dict[str, Callable[[Checked, Sequence[int]], str]] = {
    "records": lambda checked, numbers: f"{len(numbers):,}",
    "groups": lambda checked, numbers: f"{len({checked.records[n].group for n in numbers}):,}",
    "files": _of_facts(_files),
    "shape": _of_facts(_shape),
    "spacing (mm)": _of_facts(_spacing),
    "labelled records": _labelled,
    "voxels not ignored": _annotated,
    "prepared": lambda checked, numbers: size_text(sum(checked.found[n].prepared_bytes for n in numbers)),
}


def _arrays(checked: Checked) -> Table:
    """Return a table with a row for each decoded array that has grey values."""
    by_name: dict[str, list[ArrayFacts]] = {}
    for _, facts in checked.facts():
        for name, array in facts.arrays.items():
            by_name.setdefault(name, []).append(array)
    columns = ("array", "type", "lowest", "highest", "different (of a sample)", "at the highest")
    rows = [row for name, arrays in by_name.items() for row in _array(name, arrays)]
    return Table("arrays", "Grey values", columns, rows)


def _array(name: str, arrays: Sequence[ArrayFacts]) -> Iterator[Sequence[str]]:
    known = [array.levels for array in arrays if array.levels is not None and not math.isnan(array.levels.low)]
    if not known:
        return
    types = Counter(array.dtype for array in arrays)
    yield (
        name,
        ", ".join(dtype if len(types) == 1 else f"{dtype} ({n:,})" for dtype, n in types.most_common()),
        _range([levels.low for levels in known], _value),
        _range([levels.high for levels in known], _value),
        _range([levels.distinct for levels in known], "{:,}".format),
        _highest(known),
    )


def _value(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.4g}"


def _highest(known: Sequence[Levels]) -> str:
    """Return the share at the highest value, or "" for masks and labels, which often have it."""
    if max(levels.distinct for levels in known) < GREY:
        return ""
    shares = [levels.highest for levels in known]
    return f"{median(shares):.1%}, at most {max(shares):.1%}"


def _classes(checked: Checked) -> Table:
    """Return each class's share of the voxels that are not ignored in each split, and its number of records."""
    parts = checked.parts or {"all": range(len(checked.records))}
    balances = {split: balance for split, numbers in parts.items() if (balance := checked.balance(numbers)).records}
    whole = checked.balance()
    names = sorted(whole.counts, key=lambda name: -whole.counts[name]) if len(whole.counts) > _CLASSES else whole.counts
    rows = [(name, *(_class(balance, name) for balance in balances.values())) for name in [*names][:_CLASSES]]
    title = "Classes: share of the voxels that are not ignored, records that have the class"
    if len(whole.counts) > _CLASSES:
        title += f" (the {_CLASSES} largest of {len(whole.counts)})"
    return Table("classes", title, ("class", *balances), rows)


def _class(balance: Balance, name: str) -> str:
    return f"{balance.share(name):.1%}, {counted(balance.having.get(name, 0), 'record')}"


def _ranges(tuples: Sequence[Sequence[float]], text: Callable[[float], str]) -> str:
    """Return ranges per axis, from the smallest to the largest; shapes with other numbers of axes follow."""
    found = []
    for axes in sorted({len(own) for own in tuples}):
        columns = zip(*(own for own in tuples if len(own) == axes), strict=True)
        found.append(" × ".join(_range(column, text, "…") for column in columns))
    return "; ".join(found)


def _range(values: Iterable[float], text: Callable[[float], str], to: str = " to ") -> str:
    low, high = (text(end(values)) for end in (min, max))
    return low if low == high else f"{low}{to}{high}"
