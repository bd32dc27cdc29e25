"""Bad input, made from good input: every file format, setting, checkpoint and cache that a user can hand in.

A `Format` writes a valid data set. A case changes one file of it: a field of its structure, some bytes,
or what the file is at all (a folder, a link, a pipe). The real command line then reads it, and may end in two ways
only: exit code 0, or exit code 2 with one message; within 20 s, within 2 GB, and with nothing written elsewhere.

`bash .ci/run hostile` runs about 600 cases; RUNNER_HOSTILE_SEED and RUNNER_HOSTILE_CASES choose others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

PROPERTY = "hostile case"
"""Name of the property of a test's report: format, cases, refused, wrong, and the most CPU time (s) and memory (MB) of
one case."""


def table(rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    """Lines: a format each, and all of them."""
    numbers = [row[1:] for row in rows]
    whole = [sum(row[i] for row in numbers) for i in range(3)] + [max(row[i] for row in numbers) for i in (3, 4)]
    for row in [("format", "cases", "refused", "wrong", "most s", "most MB"), *sorted(rows), ("all", *whole)]:
        yield f"{row[0]:<24}" + "".join(f"{value:>10}" for value in row[1:])
