"""labels.csv beside the images: labels of wells, such as a compound, that evaluation looks for.

It has the columns plate, well (and source, batch, site if they are needed), and a column for each kind of label.
"""

from __future__ import annotations

from collections.abc import Callable

from runner_core import BadInput

from runner_dinocell.manifest import Table
from runner_dinocell.names import FieldName, number, well

FILE = "labels.csv"
KEYS = ("source", "batch", "plate", "well", "site")


def reader(table: Table, wanted: str | None) -> Callable[[FieldName], str | None]:
    """Return a function from a field to its label, None if the table has no row for it.

    Fields are identified by those of the columns source, batch, plate, well and site that the table has; well is
    required. `wanted` is the column of the labels; None is the only other one. Raises BadInput if that is ambiguous,
    and for two rows that label one field differently.
    """
    if "well" not in table:
        table.column("well")  # raises BadInput with the existing columns
    by = [place for place, name in enumerate(KEYS) if name in table]
    column = wanted or _only(table)
    tidy = {"well": well, "site": number}
    keys = zip(*([tidy.get(KEYS[p], str)(text) for text in table.filled(KEYS[p])] for p in by), strict=True)
    known: dict[tuple[str, ...], str] = {}
    for row, (key, label) in enumerate(zip(keys, table.column(column), strict=True)):
        if label and known.setdefault(key, label) != label:
            raise BadInput(
                f"{table.where}: {table.line(row)}: {'/'.join(key)} is {label} here and {known[key]} before. Mend it."
            )
    return lambda field: known.get(tuple(field[place] for place in by))


def _only(table: Table) -> str:
    others = [name for name in table.names if name not in KEYS]
    if len(others) != 1:
        shown = ", ".join(others) or "none"
        raise BadInput(f"{table.where}: which column has the labels ({shown})? Name it by data.label.")
    return others[0]
