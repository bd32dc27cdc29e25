"""Does a cache still hold what `prepare` makes? Its key cannot know of a setting or a change of code that nobody named.

One record is prepared anew in the process that opens the cache: seconds at most, against a training on old arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runner_core._errors import BadInput
from runner_core.cache.folder import verify
from runner_core.cache.stored import PreparedStore
from runner_core.project import AnyRecord, Record
from runner_core.protocols import Array, Pipeline

_SHARE = 1e-4
"""Of an array's values may differ: where another version of a library rounds, a voxel at an edge falls elsewhere."""
_FEW = 16
"""Integers that span no more are labels, in which 1 is no rounding."""


def refuse_stale(pipeline: Pipeline, record: Record, store: PreparedStore, number: int) -> None:
    """Raises BadInput when `record`, number `number` of the cache `store`, is prepared to other arrays today; Damaged
    when that is so because the cache's files are. A record whose files cannot be read says nothing."""
    try:
        made = pipeline(record).arrays
    except (BadInput, OSError):
        return
    stored = {name: array.read(number) for name, array in store.arrays.items()}
    if other := differing(made, stored):
        assert store.folder is not None
        verify(store.folder)
        raise stale(store.folder, pipeline, record, other)


def differing(made: Mapping[str, Array], stored: Mapping[str, Array]) -> list[str]:
    """Names of arrays that are not the same, up to rounding, or that only one side has."""
    if made.keys() != stored.keys():
        return sorted(made.keys() ^ stored.keys())
    return [name for name in made if not _same(made[name], stored[name])]


def stale(folder: Path, pipeline: Pipeline, record: AnyRecord, other: Sequence[str]) -> BadInput:
    """What to say of a cache whose arrays `other` of `record` are not what is prepared today."""
    named = ", ".join(map(repr, other))
    return BadInput(
        f"{folder}: the cache holds other arrays than `prepare` of project {pipeline.settings['project']} makes "
        f"now ({named} of record {record.key}), though neither its prepare_version nor its prepare_settings() changed. "
        f"Raise `prepare_version` if the code changed; name the setting in `prepare_settings` if one did"
    )


def _same(one: Array, other: Array) -> bool:
    """Up to rounding: integers by 1, others by a thousandth."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.size:
        return True
    if one.dtype.kind in "iu":
        low, high = int(other.min()), int(other.max())
        wide = np.where(one > other, one - other, other - one)  # unsigned integers know no negative difference
        differs = wide > (1 if high - low > _FEW else 0)
    elif one.dtype.kind in "fc":
        scale = float(np.nanmax(np.abs(other), initial=0, where=np.isfinite(other)))
        differs = ~np.isclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
    else:
        differs = one != other
    return float(np.mean(differs)) <= _SHARE
