"""Comparisons of the contract test, for any values of a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput


def assert_equal(one: Any, other: Any, what: str) -> None:
    """Assert that every array, number and text inside is equal, and that there is at least one."""
    assert _compared(one, other, what), f"{what}: {type(one).__name__} holds nothing that can be compared"


def assert_bad_input(call: Callable[[], Any], file: Path) -> None:
    """Assert that `call` raises BadInput that names `file`."""
    outcome: Exception | None = None
    try:
        call()
    except Exception as error:
        outcome = error
    assert outcome is not None, f"{file} is broken or missing, and was accepted"
    kind = type(outcome).__name__
    assert isinstance(outcome, BadInput), f"{file} must be refused as BadInput, not {kind}: {outcome}"
    assert file.name in str(outcome), f"the message does not name {file.name}: {outcome}"


def sent(thing: Any) -> Any:
    """Return `thing` as another process would receive it."""
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def _compared(one: Any, other: Any, what: str) -> int:
    """Assert that all values are equal, and return how many there were."""
    assert type(one) is type(other), f"{what}: {type(one).__name__} and {type(other).__name__}"
    parts, others = _parts(one), _parts(other)
    if parts is not None and others is not None:
        assert parts.keys() == others.keys(), f"{what}: {list(parts)} and {list(others)}"
        return sum(_compared(parts[name], others[name], f"{what}: {name!r}") for name in parts)
    if isinstance(one, (str, bytes, Path)):
        assert one == other, f"{what} differs: {one!r} and {other!r}"
        return 1
    array, second = np.asarray(one), np.asarray(other)
    if array.dtype == object:  # None, or a type that only the project knows
        return 0
    assert array.dtype == second.dtype, f"{what}: {array.dtype} and {second.dtype}"
    assert np.array_equal(array, second, equal_nan=array.dtype.kind in "fc"), f"{what} differs"
    return array.size


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the content of a container, or None for a single value."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    plain = not hasattr(value, "__array__") and not isinstance(value, Path)
    return vars(value) if plain and hasattr(value, "__dict__") else None
