"""The values that a setting may have, written at its field: `batch_size: Annotated[int, AtLeast(1)] = 32`.

`--help` shows them, and a value outside is refused by name before anything is done.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from runner_core.base.errors import BadInput

_ENDLESS = 1e12
"""A limit above this one is not shown in `--help`."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval of finite numbers. `low_open` and `high_open`: the limit itself is outside."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        """Return the interval in words, to follow "must".

        >>> print(AtLeast(1), MoreThan(0), Within(0, 1), Between(0, 1), ShareBelow(0.9), sep="; ")
        be at least 1; be more than 0; lie from 0 to 1; lie between 0 and 1; lie from 0 to below 0.9
        """
        low, high = _number(self.low), _number(self.high)
        if self.high == math.inf:
            return f"be more than {low}" if self.low_open else f"be at least {low}"
        if self.low_open and self.high_open:
            return f"lie between {low} and {high}"
        return f"lie from {'above ' if self.low_open else ''}{low} to {'below ' if self.high_open else ''}{high}"

    def short(self) -> str:
        """Return the interval as `--help` shows it.

        >>> AtLeast(1).short(), MoreThan(0).short(), Within(0, 1).short(), Between(0, 1).short()
        ('≥1', '>0', '0…1', '>0…<1')
        """
        low, high = _number(self.low), _number(self.high)
        if self.high > _ENDLESS:
            return f">{low}" if self.low_open else f"≥{low}"
        return f"{'>' if self.low_open else ''}{low}…{'<' if self.high_open else ''}{high}"


def AtLeast(low: float) -> Bounds:
    """Return the numbers from `low` on."""
    return Bounds(low)


def MoreThan(low: float) -> Bounds:
    """Return the numbers above `low`."""
    return Bounds(low, low_open=True)


def Within(low: float, high: float) -> Bounds:
    """Return the numbers from `low` to `high`, both included."""
    return Bounds(low, high)


def Between(low: float, high: float) -> Bounds:
    """Return the numbers between `low` and `high`, both excluded."""
    return Bounds(low, high, low_open=True, high_open=True)


def AboveUpTo(low: float, high: float) -> Bounds:
    """Return the numbers above `low` up to `high`."""
    return Bounds(low, high, low_open=True)


def ShareBelow(high: float) -> Bounds:
    """Return the numbers from 0 to below `high`."""
    return Bounds(0, high, high_open=True)


def refuse_out_of_bounds(config: object, section: str = "") -> None:
    """Raise BadInput for the first setting that is NaN, infinite or outside its bounds."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        name, value = f"{section}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            refuse_out_of_bounds(value, f"{name}.")
            continue
        numbers = [number for number in _scalars(value) if isinstance(number, (int, float))]
        if not all(math.isfinite(number) for number in numbers):
            raise BadInput(f"setting {name} must be a finite number, not {value!r}")
        for bounds in bounds_of(hints[field.name]):
            if any(number not in bounds for number in numbers):
                raise BadInput(f"setting {name} must {bounds}, not {value!r}")


def _scalars(value: Any) -> Iterator[Any]:
    """Yield a setting's value, or the values in it."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


def bounds_of(hint: Any) -> Iterator[Bounds]:
    """Yield the bounds in a field's type: of itself, of a member of a union, or of a sequence's items.

    Those of one item hold for all items.
    """
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        yield from (extra for extra in extras if isinstance(extra, Bounds))
        yield from bounds_of(inner)
    elif get_origin(hint) in (Union, types.UnionType, tuple, list):
        for item in get_args(hint):
            yield from bounds_of(item)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
