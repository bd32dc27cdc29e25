"""`--part i/n`: the share of a list that one of n processes does, on one machine or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runner_core.base.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Part `number` of `count`, counted from 1. It takes every `count`-th item, so that parts are alike in size.

    >>> Part.of("2/3").share("abcdefgh")
    'beh'
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Return the part that `--part` names; "" is all of it. Raises BadInput."""
        first, slash, count = (text or "1/1").partition("/")
        if not (slash and first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
            raise BadInput(f"--part is {text!r}; write i/n, as in 2/5 for the second of five shares")
        return cls(int(first), int(count))

    @classmethod
    def all(cls, count: int) -> list[Part]:
        """Return the parts of a list that is divided into `count`."""
        return [cls(number, count) for number in range(1, count + 1)]

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of this part, in their order."""
        return items[self.number - 1 :: self.count]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def missing_parts(count: int, items: Sequence[T], done: Callable[[T], bool]) -> list[str]:
    """Return which of `count` parts have records that are not done, each with how far it is."""
    found = []
    for part in Part.all(count):
        own = part.share(items)
        ready = sum(map(done, own))
        if ready < len(own):
            found.append(f"{part} ({ready} of {len(own)} records)" if ready else str(part))
    return found
