"""Words in messages."""

from __future__ import annotations

import shlex
from pathlib import Path


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun; `many`: the plural where it is not `one` with an s.

    >>> counted(1, "record"), counted(2, "record"), counted(0, "batch", "batches")
    ('1 record', '2 records', '0 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def typed(path: Path) -> str:
    """A path as one types it on a command line.

    >>> typed(Path("my data"))
    "'my data'"
    """
    return shlex.quote(str(path))
