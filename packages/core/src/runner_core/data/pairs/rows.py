"""Read a table of records (`data.manifest`): the files of each record, its group, its split and other columns."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.base.errors import BadInput, DataErrors
from runner_core.base.files import split_named
from runner_core.base.location import shell_word
from runner_core.config import FilesConfig
from runner_core.contract.values import Scalar
from runner_core.data.pairs.table import SUFFIXES, Table, read_table, typed

ID = ("id", "key", "name", "record")
GROUP = (
    "group", "person", "person_id", "patient", "patient_id", "subject", "subject_id", "participant", "participant_id",
    "scroll", "scroll_id",
)  # fmt: skip
_LONGEST_KEY = 150
"""Largest number of characters in a record's name, with which files of predictions begin."""


@dataclass(frozen=True)
class TableRow:
    """A row of a table: one record.

    `files` has the roles whose cells are filled. `key`, `group` and `split` are None if the table does not give them.
    `values` are those of the other columns (a class, an age), for `Record.values`. `line` is the row's line in the
    file.
    """

    files: Mapping[str, Path]
    key: str | None = None
    group: str | None = None
    split: str | None = None
    values: Mapping[str, Scalar] = field(default_factory=dict)
    line: int = 0


def is_table(path: Path) -> bool:
    """Return True if `path` has the name of a table."""
    return path.name.lower().endswith(SUFFIXES)


def named_table(root: Path, config: FilesConfig) -> Path | None:
    """Return the table that lists the records: `data.manifest`, or `root` itself; None if the user names none.

    Raises BadInput if there is no such file, and if `data.pattern` is given, too.
    """
    table = config.manifest or (root if is_table(root) else None)
    if table is None:
        return None
    if config.pattern:
        raise BadInput(f"data.pattern and the table {table} both say which files belong together: leave one out.")
    refuse_no_table(table, root)
    return table


def read_rows(
    path: Path,
    root: Path,
    role_of: Callable[[str], str | None],
    is_file: Callable[[Path], bool],
    example: str,
    required: str = "",
) -> list[TableRow]:
    """Read the table at `path`, whose relative paths lie below `root`.

    `role_of` returns the role of the files that a column names (the column's name is in small letters), or None.
    `is_file` tells by name if the project reads a file or folder. `example` describes a correct table and ends
    messages. Each row must name a file of the role `required`. Raises BadInput with the table, the line and a remedy.
    """
    table = read_table(path, example)
    columns: dict[str, list[str]] = {required: []} if required else {}
    for name in table.columns:
        if role := role_of(name):
            columns.setdefault(role, []).append(name)
    files: dict[str, list[Path | None]] = {}
    for role, names in columns.items():
        cells = table.required(role, *names, example=example) if role == required else table.column(*names) or ()
        files[role] = [
            _placed(table, line, text, root) if text else None for line, text in zip(table.lines, cells, strict=True)
        ]
    _refuse_missing(table, files, is_file)
    if required:
        table.refuse_repeats(list(map(str, files[required])), required)
    keys, groups, splits = _keys(table), table.filled(*GROUP), _splits(table)
    values = _values(table, {name for names in columns.values() for name in names})
    return [
        TableRow(
            {role: place for role, own in files.items() if (place := own[n]) is not None},
            keys[n] if keys else None,
            groups[n] if groups else None,
            splits[n] if splits else None,
            {name: cells[n] for name, cells in values.items()},
            line,
        )
        for n, line in enumerate(table.lines)
    ]


def _keys(table: Table) -> list[str] | None:
    ids = table.filled(*ID)
    if ids is None:
        return None
    table.refuse_repeats(ids, "id")
    return [record_key(text, f"{table.path}: line {line}") for line, text in zip(table.lines, ids, strict=True)]


def _splits(table: Table) -> list[str] | None:
    named = table.filled("split")
    if named is None:
        return None
    return [split_named(text, f"{table.path}: line {line}") for line, text in zip(table.lines, named, strict=True)]


def _values(table: Table, own: set[str]) -> Mapping[str, Sequence[Scalar]]:
    """Return the other columns, those that occur once."""
    own |= {*ID, *GROUP, "split", ""}
    others = (name for name in dict.fromkeys(table.columns) if name not in own and table.columns.count(name) == 1)
    return {name: [typed(cell) for cell in table.column(name) or ()] for name in others}


def refuse_no_table(path: Path, root: Path) -> None:
    """Raise BadInput if nothing is at `path`; the message says if the table lies below `root` under that path."""
    if os.path.lexists(path):
        return
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    found = next((there for name in (here, here.name) if (there := root / name).is_file()), None)
    remedy = f"; there is one at {found}: write --data.manifest {shell_word(found)}" if found else ""
    raise BadInput(f"{path}: no such file{remedy}.")


def _placed(table: Table, line: int, text: str, root: Path) -> Path:
    """Return the path in a cell: absolute, or below `root`; raise BadInput if it leaves `root`."""
    where = f"{table.path}: line {line}"
    if "\0" in text or "://" in text:
        raise BadInput(f"{where}: {text!r} is not a path on this machine.")
    path = Path(text)
    if path.is_absolute():
        return path
    if posixpath.normpath(text).startswith(".."):
        raise BadInput(f"{where}: the path {text} has `..` in it. Write it in full.")
    return root / posixpath.normpath(text)


def _refuse_missing(table: Table, files: Mapping[str, Sequence[Path | None]], is_file: Callable[[Path], bool]) -> None:
    errors = []
    for own in files.values():
        for line, path in zip(table.lines, own, strict=True):
            if path is None:
                continue
            if fault := _absent(path):
                errors.append(f"{table.path}: line {line}: {path}: {fault}.")
            elif not is_file(path):
                errors.append(f"{table.path}: line {line}: {path}: not of a format that this project reads.")
    if errors:
        raise BadInput(errors[0]) if len(errors) == 1 else DataErrors(errors)


def _absent(path: Path) -> str:
    """Return why a path leads to nothing, or "" if it leads to a file or folder."""
    try:
        path.stat()
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def record_key(text: str, where: str) -> str:
    """Return `text` as a record's name; raise BadInput if it cannot be part of file names."""
    if text in (".", "..") or any(mark in text for mark in ("/", "\\", "\0")) or not text.isprintable():
        raise BadInput(f"{where}: the id {text!r} cannot be part of a file's name. Use letters, digits, - and _.")
    if len(text.encode()) > _LONGEST_KEY:
        raise BadInput(
            f"{where}: an id of {len(text)} characters; at most {_LONGEST_KEY} can be part of a file's name."
        )
    return text
