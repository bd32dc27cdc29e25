"""Pairs as the user declares them: name patterns (`data.pattern`), or a table (`data.manifest`)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.files import refuse_long_file, refuse_special_file
from runner_core.base.text import counted
from runner_core.contract.values import Scalar

_TOKEN = re.compile(r"\{([^{}]*)\}|(\*)|([^{}*]+)|([{}])")
_MOST = 40
"""Largest number of pieces of a pattern between two /: plain texts, names and stars."""
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)?(\.\d+|(?<=\d)\.?)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
"""Finite numbers; 0012 is a name."""
_ANY = ""
"""Name of an unnamed part: *."""


class Pattern:
    """A pattern of paths below a folder.

    `{name}` stands for one or more characters and `*` for zero or more; neither crosses a `/`. The pattern fits the end
    of a path, starting at a folder's name: `scans/{id}.nii` finds `train/scans/a.nii` too. A part is as short as the
    rest allows. A name that occurs twice stands for the same text twice.

    >>> Pattern("{group}_{id}.tif", ("group", "id")).match("x/P1_s2_a.tif")
    {'group': 'P1', 'id': 's2_a'}
    >>> Pattern("{id}/{id}_T1.nii", ("id",)).match("a/b_T1.nii") is None
    True
    """

    def __init__(self, text: str, known: Collection[str], required: Collection[str] = (), setting: str = "") -> None:
        """Read a pattern; raise BadInput if it cannot be used.

        `known` lists the names it may have and `required` those it must have. `setting` is its name in messages.
        """
        self.text = text
        where = f"{setting or 'the pattern'} {text!r}"
        if not text.strip("/") or "\0" in text or text.startswith("/") or ".." in text.split("/"):
            raise BadInput(f"{where}: a path below the data is needed, without a leading / and without ..")
        self._parts = [_tokens(part, where) for part in text.split("/") if part not in ("", ".")]
        self.depth = len(self._parts)
        self.names = [name for part in self._parts for name, _ in part if name]
        if max(map(len, self._parts)) > _MOST:
            raise BadInput(f"{where}: more than {_MOST} pieces between two /; use fewer {{names}} and *")
        for name in self.names:
            if name not in known:
                near = did_you_mean(name, known)
                raise BadInput(f"{where}: unknown part {{{name}}}{near} (known: {', '.join(known)})")
        for name in required:
            if name not in self.names:
                raise BadInput(f"{where}: it lacks {{{name}}}, such as 'scans/{{{name}}}.tif'")

    def match(self, path: str, allowed: Mapping[str, Container[str]] | None = None) -> dict[str, str] | None:
        """Return the named parts of a path with / between its folders, or None if the pattern does not fit.

        `allowed` limits the values of some parts: {id} to known ids.
        """
        pieces = path.split("/")[-len(self._parts) :]
        if len(pieces) < len(self._parts):
            return None
        found: dict[str, str] = {}
        for part, piece in zip(reversed(self._parts), reversed(pieces), strict=True):
            known = [(_ANY, found[name]) if name in found else (name, text) for name, text in part]
            fields = _fit(known, piece, allowed or {})
            if fields is None:
                return None
            for name, text in fields:
                if found.setdefault(name, text) != text:
                    return None
        return {name: found[name] for name in dict.fromkeys(self.names)}

    def filled(self, fields: Mapping[str, str]) -> str:
        """Return the path with these parts filled in; * stays.

        >>> Pattern("masks/{id}_*.nii", ("id",)).filled({"id": "a"})
        'masks/a_*.nii'
        """
        text = self.text
        for name, value in fields.items():
            text = text.replace(f"{{{name}}}", value)
        return text


def _tokens(part: str, where: str) -> list[tuple[str, str | None]]:
    """Return the tokens: (name, None) for a named part or *, ("", text) for plain text."""
    tokens: list[tuple[str, str | None]] = []
    for name, star, text, brace in _TOKEN.findall(part):
        if brace or (not star and not text and not name.isidentifier()):
            raise BadInput(f"{where}: braces hold a name, such as {{id}}")
        tokens.append((_ANY, text) if text else (name, None))
    for one, other in pairwise(tokens):
        if one[1] is None and other[1] is None:
            raise BadInput(f"{where}: put text between two parts; without it, the end of the first one is unknown")
    return tokens


def _fit(
    tokens: Sequence[tuple[str, str | None]], text: str, allowed: Mapping[str, Container[str]]
) -> list[tuple[str, str]] | None:
    """Return named parts with their text, in order, as short as possible."""

    @cache
    def ends(token: int, start: int) -> tuple[int, ...] | None:
        """Return where each token from `token` on ends if the first one begins at `start`."""
        if token == len(tokens):
            return () if start == len(text) else None
        name, plain = tokens[token]
        if plain is not None:
            stops = [start + len(plain)] if text.startswith(plain, start) else []
        else:
            stops = list(range(start + (name != _ANY), len(text) + 1))
        for stop in stops:
            if name in allowed and text[start:stop] not in allowed[name]:
                continue
            if (rest := ends(token + 1, stop)) is not None:
                return (stop, *rest)
        return None

    found = ends(0, 0)
    if found is None:
        return None
    starts = (0, *found)
    return [(name, text[start:stop]) for (name, _), start, stop in zip(tokens, starts, found, strict=False) if name]


SUFFIXES = (".csv", ".tsv", ".parquet")
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


def typed(cell: str) -> Scalar:
    """Return a cell as a whole number, or as a number, if it is one; an empty cell as None.

    Other rows play no part, so that a new row changes no other record's identity.

    >>> [typed(cell) for cell in ("1", "", "2.5", "007", "n/a")]
    [1, None, 2.5, '007', 'n/a']
    """
    kind = int if _WHOLE.fullmatch(cell) else float if _NUMBER.fullmatch(cell) else str
    return kind(cell) if cell else None


def read_table(path: Path, example: str, empty: bool = False) -> Table:
    """Read a CSV or TSV file, with columns separated by commas, semicolons or tabulators as in its first line.

    A parquet file is read if pyarrow is installed.

    `example` describes a correct table and ends messages. `empty` allows a table without rows. Raises BadInput with the
    file, the line and a remedy.
    """
    (_, names), *rows = _lines(path, example) or [(1, [])]
    columns = tuple(name.strip().lower() for name in names)
    for number, values in rows:
        if len(values) != len(columns):
            raise BadInput(
                f"{path}: line {number} has {counted(len(values), 'value')}, the first line {len(columns)} names. "
                "Correct it."
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
    if path.suffix.lower() == ".parquet":
        return list(enumerate(_parquet(path), 1))
    text = _text(path)
    first = text.lstrip("\r\n").partition("\n")[0]
    separator = next((mark for mark in ("\t", ",", ";") if mark in first), ",")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return [(reader.line_num, line) for line in reader if any(value.strip() for value in line)]
    except csv.Error as error:
        raise BadInput(f"{path} is not a readable table ({error}). Correct it, or save it as CSV again.") from error


def _parquet(path: Path) -> list[list[str]]:
    """Return the names of the columns, and the values of each row as text."""
    _refuse_no_file(path)
    try:
        reader = import_module("pyarrow.parquet")
    except ImportError:
        raise BadInput(f"{path}: reading parquet needs the package pyarrow: install it, or save CSV instead.") from None
    try:
        file = reader.ParquetFile(path)
        size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
        if size > MOST_BYTES:
            raise BadInput(f"{path}: a table of {size:,} bytes; at most {MOST_BYTES:,} are read.")
        columns = {str(name): values for name, values in file.read().to_pydict().items()}
    except (OSError, ValueError, RuntimeError) as error:  # pyarrow's own errors are of these kinds
        raise BadInput(f"{path} cannot be read as parquet ({' '.join(str(error).split())[:200]}).") from error
    rows = zip(*columns.values(), strict=True)
    return [[*columns], *(["" if value is None else str(value) for value in row] for row in rows)]


def _refuse_no_file(path: Path) -> None:
    if refuse_special_file(path).is_dir():
        raise BadInput(f"{path}: a folder, not a table. Name the CSV or TSV file itself.")
    if not path.is_file():
        raise BadInput(f"{path}: no such file.")


def _text(path: Path) -> str:
    try:
        _refuse_no_file(path)
        text = refuse_long_file(path, MOST_BYTES, "a table").read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BadInput(f"{path} is not UTF-8 text. Save it as CSV UTF-8.") from error
    if "\0" in text:  # UTF-16 without its mark
        raise BadInput(f"{path} is not UTF-8 text. Save it as CSV UTF-8.")
    return text
