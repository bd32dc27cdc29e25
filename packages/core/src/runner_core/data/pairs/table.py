"""Read tables that people write: CSV and TSV files with the column names in the first line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.files import refuse_special_file
from runner_core.base.sizes import refuse_long_file
from runner_core.base.text import counted

SUFFIXES = (".csv", ".tsv")
MOST_BYTES = 256_000_000
"""Largest size of a table; a row of 100 bytes for each of two million files is smaller."""


@dataclass(frozen=True)
class Table:
    """Rows of text.

    `columns` holds the column names in small letters. `lines` holds the line of each row in the file, from 1.
    """

    path: Path
    columns: tuple[str, ...]
    lines: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, *names: str) -> list[str] | None:
        """Return the column that has one of `names`, or None; raise BadInput if two columns match."""
        there = [i for i, column in enumerate(self.columns) if column in names]
        if len(there) > 1:
            both = " and ".join(f"'{self.columns[i]}'" for i in there[:2])
            raise BadInput(f"{self.path}: the columns {both} say the same thing. Delete or rename one of them.")
        return [row[there[0]] for row in self.rows] if there else None

    def filled(self, *names: str) -> list[str] | None:
        """Return values like `column`; raise BadInput with the first line in which that column is empty."""
        values = self.column(*names)
        if values is not None and "" in values:
            name = next(column for column in self.columns if column in names)
            line = self.lines[values.index("")]
            raise BadInput(f"{self.path}: line {line} has no {name}. Fill it in, or delete the row.")
        return values

    def required(self, *names: str, example: str) -> list[str]:
        """Return values like `filled`; raise BadInput if there is no such column.

        `example` describes a correct table.
        """
        values = self.filled(*names)
        if values is None:
            near = did_you_mean(names[0], self.columns)
            first = ",".join(self.columns)[:80]
            raise BadInput(f"{self.path}: no column '{names[0]}'{near} (its first line is '{first}'). {example}")
        return values

    def refuse_repeats(self, values: Sequence[str], what: str) -> None:
        """Raise BadInput if two rows have the same value; `what` names the column, such as id."""
        known: dict[str, int] = {}
        for line, value in zip(self.lines, values, strict=True):
            if (first := known.setdefault(value, line)) != line:
                raise BadInput(
                    f"{self.path}: {what} {value} is on line {first} and on line {line}. Delete one of them."
                )


def read_table(path: Path, example: str, empty: bool = False) -> Table:
    """Read a CSV or TSV file, with columns separated by commas, semicolons or tabulators as in its first line.

    `example` describes a correct table and ends messages. `empty` allows a table without rows. Raises BadInput with the
    file, the line and a remedy.
    """
    (_, names), *rows = _lines(path, example) or [(1, [])]
    columns = tuple(name.strip().lower() for name in names)
    for number, values in rows:
        if len(values) != len(columns):
            raise BadInput(
                f"{path}: line {number} has {counted(len(values), 'value')}, the first line {len(columns)} names. "
                "Mend it."
            )
    if not (rows or empty):
        raise BadInput(f"{path}: it has no row below the names of its columns. {example}")
    return Table(
        path,
        columns,
        tuple(number for number, _ in rows),
        tuple(tuple(value.strip() for value in values) for _, values in rows),
    )


def _lines(path: Path, example: str) -> list[tuple[int, list[str]]]:
    """Return number and values of every line that is not empty."""
    text = _text(path)
    first = text.lstrip("\r\n").partition("\n")[0]
    separator = next((mark for mark in ("\t", ",", ";") if mark in first), ",")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return [(reader.line_num, line) for line in reader if any(value.strip() for value in line)]
    except csv.Error as error:
        raise BadInput(f"{path}: not a readable table ({error}). Mend it, or save it as CSV again.") from error


def _text(path: Path) -> str:
    try:
        if refuse_special_file(path).is_dir():
            raise BadInput(f"{path}: a folder, not a table. Name the CSV or TSV file itself.")
        if not path.is_file():
            raise BadInput(f"{path}: no such file.")
        text = refuse_long_file(path, MOST_BYTES, "a table").read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not UTF-8 text. Save it as CSV UTF-8.") from error
    if "\0" in text:  # UTF-16 without its mark
        raise BadInput(f"{path}: is not UTF-8 text. Save it as CSV UTF-8.")
    return text
