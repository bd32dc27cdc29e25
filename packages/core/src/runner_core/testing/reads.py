"""Check what a project reads: no setting that it does not declare, and no record outside the given ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from copy import deepcopy
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from runner_core.config import RunConfig
from runner_core.config.values import overlay, plain
from runner_core.contract import Array, Arrays, Json, StoredArray
from runner_core.contract.project import overrides
from runner_core.data.cache.storage import Layout, PreparedStore, Region
from runner_core.data.pipeline import RecordPipeline
from runner_core.plugins.settings import refuse_nonsense
from runner_core.testing.case import Case
from runner_core.testing.compare import assert_equal

_ELSEWHERE = ("train", "validate", "checkpoint", "health", "log", "cache", "precision")
"""Sections of the core's settings that no prepared array depends on."""
_USUAL = {int: 8, float: 0.5, bool: False}
"""Values that replace settings of None."""
_ALTERED: Mapping[str, Callable[[Array], Array]] = {
    "emptied": np.zeros_like,
    "inverted": lambda array: ~array if array.dtype == bool or not array.size else array.max() - array + array.min(),
}
"""Changes of arrays; values stay in the record's own range, so labels remain labels."""


def prepare_settings_name_what_prepare_reads(case: Case) -> None:
    """Check that a changed setting which keeps the cache's key also keeps the prepared arrays.

    Each setting that is read is changed in turn.
    """
    make = case.kind.presets["demo"]
    seen = _looked_at(case, make())
    key, prepare = _prepared(case, make())
    arrays = prepare()
    if seen is None or not _alike(seen[0], arrays):  # the recording settings change the project's behaviour
        seen = arrays, frozenset(name for name, _ in _changes(make()))
    for name, change in _changes(make()):
        if name.partition(".")[0] in _ELSEWHERE or name not in seen[1]:
            continue
        try:
            config = overlay(make(), change, "the contract test")
            refuse_nonsense(config)
            other_key, prepare = _prepared(case, config)
            if other_key != key:
                continue
            others = prepare()
        except Exception:  # a value that this project cannot use
            continue
        # Both would use the same cache.
        message = f"`prepare` reads {name}, which `prepare_settings` does not name: a cache would outlive its change"
        assert _alike(arrays, others), message


def fit_reads_training_records_alone(case: Case) -> None:
    """Check that `fit` learns the same, whatever the arrays of the other records hold."""
    if not overrides(case.project, "fit"):
        return
    store, training = case.data.store, case.data.splits["train"]
    learned = case.project.fit(store, training)
    for what, change in _ALTERED.items():
        arrays = {name: _Altered(array, set(training), change) for name, array in store.arrays.items()}
        message = f"`fit` reads records that are not of `training`: with theirs {what}"
        try:
            again = case.project.fit(PreparedStore(store.keys, store.meta, arrays, store.identity), training)
        except Exception as error:
            raise AssertionError(f"{message} it raises {type(error).__name__}: {error}") from error
        if learned or again:
            assert_equal(learned, again, f"{message} it learns something else: statistics")


def _prepared(case: Case, config: RunConfig) -> tuple[Mapping[str, Json], Callable[[], Arrays]]:
    """Return the cache's key under these settings, and a function that prepares the first record's arrays."""
    project = case.kind(config)
    pipeline = RecordPipeline(project, case.plugins.first("runner_crop", project=project, config=config))
    return pipeline.settings, lambda: pipeline(case.records[0]).arrays


def _looked_at(case: Case, config: RunConfig) -> tuple[Arrays, Set[str]] | None:
    """Return the first record's arrays, and the settings read while the project was made and prepared them.

    Returns None if the project does not work with settings that record their use.
    """
    names: set[str] = set()
    try:
        _, prepare = _prepared(case, _telling(deepcopy(config), "", names))
        return prepare(), names
    except Exception:
        return None


def _telling(section: Any, prefix: str, names: set[str]) -> Any:
    """Return the settings, which from now on add to `names` every setting that is read."""
    kind, own = type(section), [field.name for field in fields(section)]
    for name in own:
        if is_dataclass(value := getattr(section, name)):
            _telling(value, f"{prefix}{name}.", names)

    def tell(self: Any, name: str) -> Any:
        names.update(f"{prefix}{field}" for field in own if name in (field, "__dict__"))
        return object.__getattribute__(self, name)

    object.__setattr__(section, "__class__", type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": tell}))
    return section


def _alike(one: Arrays, other: Arrays) -> bool:
    same = one.keys() == other.keys() and all(one[n].dtype == other[n].dtype for n in one)
    return same and all(np.array_equal(one[n], other[n], equal_nan=one[n].dtype.kind in "fc") for n in one)


def _changes(section: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted name of each setting below `section`, and {name: … {name: another value}}, one at a time."""
    hints = get_type_hints(type(section))
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            for name, change in _changes(value):
                yield f"{field.name}.{name}", {field.name: change}
        else:
            for other in _others(hints[field.name], plain(value)):
                yield field.name, {field.name: other}


def _others(kind: Any, value: Any) -> Iterator[Any]:
    """Yield other values of a setting of this type, near its own; none for text and paths."""
    if get_origin(kind) in (Union, UnionType):
        (kind, *_) = [option for option in get_args(kind) if option is not type(None)]
        value = _USUAL.get(kind) if value is None else value
    if get_origin(kind) is Literal:
        yield from (choice for choice in get_args(kind) if choice != value)
    elif kind is bool:
        yield not value
    elif kind is int:
        yield from (value + 1, value + 2, 2 * value)
    elif kind is float:
        yield from (1.25 * value + 0.1, value / 2)
    elif get_origin(kind) in (tuple, list) and value:
        for place, item in enumerate(value):
            kinds = get_args(kind)
            for other in _others(kinds[min(place, len(kinds) - 1) if Ellipsis not in kinds else 0], item):
                yield [*value[:place], other, *value[place + 1 :]]
        yield value[:-1]


class _Altered(Layout):
    """A stored array whose records hold something else, except those in `kept`."""

    def __init__(self, own: StoredArray, kept: set[int], change: Callable[[Array], Array]) -> None:
        super().__init__(np.dtype(own.dtype), own.shapes)
        self._own, self._kept, self._change = own, kept, change

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._own.read(record)
        array = array if record in self._kept else self._change(array)
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        self.row_shape()
        for record, places, own in self.by_record(rows):
            out[places] = self.read(record)[own]
