"""Find files below the data's folder that belong to no record, which shows what was left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import walk
from runner_core.base.location import Location
from runner_core.contract.records import AnyRecord

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
