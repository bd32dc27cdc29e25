"""Check that a cache still holds what `prepare` makes.

The cache's key does not change with a setting or a code change that nobody declared. So one record is prepared anew in
the process that opens the cache. That takes seconds at most, and prevents training on old arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Pipeline
from runner_core.contract.records import AnyRecord, Record
from runner_core.data.cache.folder import verify
from runner_core.data.cache.stored import PreparedStore

_SHARE = 1e-4
"""Share of an array's values that may differ, because library versions round voxels at an edge differently."""
_FEW = 16
"""Integers with a range no larger than this are labels, in which a difference of 1 is not rounding."""


def refuse_stale(pipeline: Pipeline, record: Record, store: PreparedStore, number: int) -> None:
    """Raise BadInput if `record`, number `number` of the cache `store`, gives other arrays today.

    Raises Damaged if the cache's files cause the difference. A record whose files cannot be read is ignored.
    """
    try:
        prepared = pipeline(record).arrays
    except (BadInput, OSError):
        return
    stored = {name: array.read(number) for name, array in store.arrays.items()}
    if other := differing(prepared, stored):
        assert store.folder is not None
        verify(store.folder)
        raise stale(store.folder, pipeline, record, other)


def differing(prepared: Mapping[str, Array], stored: Mapping[str, Array]) -> list[str]:
    """Return the names of arrays that differ by more than rounding, or that only one side has."""
    if prepared.keys() != stored.keys():
        return sorted(prepared.keys() ^ stored.keys())
    return [name for name in prepared if not _same(prepared[name], stored[name])]


def stale(folder: Path, pipeline: Pipeline, record: AnyRecord, other: Sequence[str]) -> BadInput:
    """Return the error for a cache whose arrays `other` of `record` differ from what is prepared today."""
    named = ", ".join(map(repr, other))
    return BadInput(
        f"{folder}: the cache holds other arrays than `prepare` of project {pipeline.settings['project']} makes "
        f"now ({named} of record {record.key}), though neither its prepare_version nor its prepare_settings() changed. "
        f"Raise `prepare_version` if the code changed; name the setting in `prepare_settings` if one did"
    )


def _same(one: Array, other: Array) -> bool:
    """Return True if the arrays are equal up to rounding: integers within 1, others within a thousandth."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.size:
        return True
    if one.dtype.kind in "iu":
        low, high = int(other.min()), int(other.max())
        wide = np.where(one > other, one - other, other - one)  # unsigned integers have no negative difference
        differs = wide > (1 if high - low > _FEW else 0)
    elif one.dtype.kind in "fc":
        scale = float(np.nanmax(np.abs(other), initial=0, where=np.isfinite(other)))
        differs = ~np.isclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
    else:
        differs = one != other
    return float(np.mean(differs)) <= _SHARE
