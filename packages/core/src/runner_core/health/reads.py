"""Finds records that two splits read: no validation sample may come from a training record, nor the reverse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import numpy as np

from runner_core.base.text import counted
from runner_core.contract import Array, Finding, HealthEvent, Json, Samples, Store, StoredArray, is_streamed

TRIED = 16
"""Samples of each split that are filled to see which records they read."""


class SplitsApart:
    """Stop before the first step if a split reads records of another one.

    Validation would measure memorised records, or training would see held-out ones. Facts used: `leaked_records` of the
    start.
    """

    name = "splits"
    _SHOWN = 3

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "start":
            return None
        leaks = []
        for split, keys in event.facts.get("leaked_records", {}).items():
            if keys:
                shown = ", ".join(keys[: self._SHOWN]) + (" …" if len(keys) > self._SHOWN else "")
                other = "validation" if split == "train" else "training"
                doing = "training reads" if split == "train" else "validation reads"
                leaks.append(f"{doing} {counted(len(keys), f'{other} record')}: {shown}")
        if not leaks:
            return None
        text = f"{'; '.join(leaks)}. `Project.samples` must use only the records that it is given"
        return Finding(self.name, "error", text)


def leaked_records(
    samples: Mapping[str, Samples], splits: Mapping[str, Sequence[int]], store: Store
) -> dict[str, Json]:
    """Return, for train and validation, the keys of the other split's records that its samples read."""
    found: dict[str, Json] = {}
    for split, other in (("train", "validation"), ("validation", "train")):
        if split in samples and splits.get(other):
            foreign = np.zeros(len(store.keys), np.bool_)
            foreign[np.asarray(splits[other], np.int64)] = True
            foreign[np.asarray(splits[split], np.int64)] = False
            read = records_read(samples[split], store)
            found[split] = [store.keys[record] for record in read[foreign[read]].tolist()]
    return found


def records_read(samples: Samples, store: Store) -> Array:
    """Return the numbers (int64, ascending) of the records that samples name as their own, or read in a few trials.

    For streamed records only the named ones: nothing is fetched for this.
    """
    named = getattr(samples, "record_of_sample", None)
    known = np.asarray(() if named is None else named, np.int64)
    if not (known[1:] > known[:-1]).all():
        known = np.unique(known)
    if is_streamed(store):
        return known
    found: set[int] = set()
    tried = {*np.linspace(0, len(samples) - 1, TRIED).astype(int).tolist()} if len(samples) else set()
    out = {name: np.empty((1, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    with noting(store, found):
        for index in sorted(tried):
            one = np.array([index], np.int64)
            copy(samples).fill(one, one, 0, 0, out)
            if "record" in out:
                found.add(int(out["record"][0]))
    return np.union1d(known, sorted(found))


@contextmanager
def noting(store: Store, found: set[int]) -> Iterator[None]:
    """Add the numbers of the records that are read from the store's arrays to `found`, inside this context."""
    noted: list[StoredArray] = []
    try:
        for array in store.arrays.values():
            with suppress(AttributeError):  # an array type whose methods cannot be replaced
                _note(array, found)
                noted.append(array)
        yield
    finally:
        for array in noted:
            del array.read, array.take


def _note(array: Any, found: set[int]) -> None:
    read, take = array.read, array.take
    ends = np.cumsum([shape[0] if shape else 0 for shape in array.shapes])

    def noted_read(record: int, *more: Any, **named: Any) -> Array:
        found.add(int(record))
        found_array: Array = read(record, *more, **named)
        return found_array

    def noted_take(rows: Array, out: Array) -> None:
        found.update(np.searchsorted(ends, rows, side="right").tolist())
        take(rows, out)

    array.read, array.take = noted_read, noted_take
