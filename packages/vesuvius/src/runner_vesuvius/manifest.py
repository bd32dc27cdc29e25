"""The challenge's manifest: a CSV file with the columns id and scroll_id, a row for each volume."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from pathlib import Path

from runner_core._errors import BadInput, did_you_mean
from runner_core._text import counted

COLUMNS = ("id", "scroll_id")
_SHOWN = 5


def read(path: Path) -> dict[str, tuple[int, str]]:
    """Line and scroll of every id. Raises BadInput naming the file, the line and what to do."""
    lines = _lines(path)
    header = [name.strip().lower() for name in lines[0][1]] if lines else []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        near = did_you_mean(missing[0], header)
        comma = "; write it with commas" if len(header) == 1 and any(c in header[0] for c in ";\t|") else ""
        raise BadInput(
            f"{path}: no column '{missing[0]}'{near} (its first line is '{','.join(lines[0][1])[:80] if lines else ''}'"
            f"{comma}). A manifest has the columns id and scroll_id and a row for each volume."
        )
    rows: dict[str, tuple[int, str]] = {}
    for number, line in lines[1:]:
        if len(line) != len(header):
            raise BadInput(
                f"{path}: line {number} has {counted(len(line), 'value')}, the first line {len(header)} names. Mend it."
            )
        key, scroll = (line[header.index(name)].strip() for name in COLUMNS)
        if not key or not scroll:
            raise BadInput(f"{path}: line {number} has no {'id' if scroll else 'scroll_id'}. Fill it in, or delete it.")
        if key in rows:
            raise BadInput(f"{path}: id {key} is on line {rows[key][0]} and on line {number}. Delete one of them.")
        rows[key] = (number, scroll)
    return rows


def scrolls(path: Path, keys: Collection[str]) -> Mapping[str, str]:
    """The scroll of every volume `keys`, of which files are there. Raises BadInput unless rows and files agree."""
    rows = read(path)
    if without := sorted(set(keys) - set(rows)):
        more = f" and {counted(len(without) - 1, 'other volume')}" if len(without) > 1 else ""
        raise BadInput(
            f"{path}: no row for {without[0]}{more}, of which files are there, so that the scroll is not known"
            f"{did_you_mean(without[0], rows)}. Add the row, or take the files out."
        )
    if lost := [(line, key) for key, (line, _) in rows.items() if key not in set(keys)]:
        shown = ", ".join(f"line {line}: {key}" for line, key in lost[:_SHOWN]) + (", …" if lost[_SHOWN:] else "")
        raise BadInput(
            f"{path}: {counted(len(lost), 'row')} without files ({shown}). Restore the files, or delete the rows."
        )
    return {key: scroll for key, (_, scroll) in rows.items()}


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Number and values of every line that is not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, line) for line in reader if any(value.strip() for value in line)]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a readable CSV file ({error}). Save it as CSV in UTF-8.") from error
