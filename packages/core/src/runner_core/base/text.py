"""Text of messages: numbers with nouns, lists, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun; `many` is the plural if it is not `one` with an s.

    >>> counted(1, "record"), counted(2, "record"), counted(0, "batch", "batches")
    ('1 record', '2 records', '0 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shape_text(sizes: Iterable[int]) -> str:
    """Return sizes as people write them.

    >>> shape_text((72, 136, 136))
    '72 × 136 × 136'
    """
    return " × ".join(map(str, sizes))


def duration(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours if there are any.

    >>> duration(75), duration(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def about(key: str, message: str) -> str:
    """Return a message about a record that begins with the record's key, once.

    >>> about("p1/A01/2", "no mask"), about("p1/A01/2", "p1/A01/2: no mask")
    ('p1/A01/2: no mask', 'p1/A01/2: no mask')
    """
    return message if message.startswith(f"{key}: ") else f"{key}: {message}"


def decimal(value: float) -> str:
    """Return a score with four decimals, or without any if it is a whole number of a hundred or more (a count).

    >>> decimal(0.5), decimal(2.0), decimal(1835.0)
    ('0.5000', '2.0000', '1835')
    """
    return f"{value:.0f}" if value == round(value) and abs(value) >= 100 else f"{value:.4f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, indented, with its columns aligned to the left.

    >>> aligned([("a", "bc"), ("def", "g")])
    ['  a    bc', '  def  g']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows]
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names.

    >>> first_few(["a", "b"]), first_few(["a", "b", "c"], most=2)
    ('a, b', 'a, b, …')
    """
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
