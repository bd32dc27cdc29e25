"""Words in messages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner_core.location import Location


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun; `many`: the plural where it is not `one` with an s.

    >>> counted(1, "record"), counted(2, "record"), counted(0, "batch", "batches")
    ('1 record', '2 records', '0 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def times(sizes: Iterable[int]) -> str:
    """Sizes as people write them.

    >>> times((72, 136, 136))
    '72 × 136 × 136'
    """
    return " × ".join(map(str, sizes))


def about(key: str, message: str) -> str:
    """What is said of a record, with its key before it; once, where the message begins with it already.

    >>> about("p1/A01/2", "no mask"), about("p1/A01/2", "p1/A01/2: no mask")
    ('p1/A01/2: no mask', 'p1/A01/2: no mask')
    """
    return message if message.startswith(f"{key}: ") else f"{key}: {message}"


def typed(path: Location) -> str:
    """A path or URL as one types it on a command line.

    >>> from pathlib import Path
    >>> typed(Path("my data"))
    "'my data'"
    """
    return shlex.quote(str(path))


def decimal(value: float) -> str:
    """A score with four decimals; a count that a score is, a hundred or more, without.

    >>> decimal(0.5), decimal(2.0), decimal(1835.0)
    ('0.5000', '2.0000', '1835')
    """
    return f"{value:.0f}" if value == round(value) and abs(value) >= 100 else f"{value:.4f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, indented, its columns aligned to the left.

    >>> aligned([("a", "bc"), ("def", "g")])
    ['  a    bc', '  def  g']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows]
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few names.

    >>> some(["a", "b"]), some(["a", "b", "c"], most=2)
    ('a, b', 'a, b, …')
    """
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
