"""The challenge's manifest: a CSV file with the columns id and scroll_id, a row for each volume."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping
from pathlib import Path

from runner_core._errors import BadInput, did_you_mean
from runner_core._text import counted

from runner_vesuvius.volumes import SUFFIXES

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
    if not rows:
        raise BadInput(f"{path}: its first line is all there is; write a row (id,scroll_id) for each volume below it.")
    return rows


def scrolls(path: Path, keys: Collection[str]) -> Mapping[str, str]:
    """The scroll of every volume `keys`, of which files are there; a row may name the file (ID.tif) instead of the id.

    Raises BadInput unless rows and files agree.
    """
    rows: dict[str, tuple[int, str]] = {}
    for written, (number, scroll) in read(path).items():
        key = _id(written, keys)
        if key in rows:
            raise BadInput(f"{path}: id {key} is on line {rows[key][0]} and on line {number}. Delete one of them.")
        rows[key] = (number, scroll)
    if without := sorted(set(keys) - set(rows)):
        more = f" and {counted(len(without) - 1, 'other volume')}" if len(without) > 1 else ""
        raise BadInput(
            f"{path}: no row for {without[0]}{more}, of which files are there, so that the scroll is not known"
            f"{_near(without[0], rows)}. Add the row, or take the files out."
        )
    if lost := [(line, key) for key, (line, _) in rows.items() if key not in set(keys)]:
        shown = ", ".join(f"line {line}: {key}" for line, key in lost[:_SHOWN]) + (", …" if lost[_SHOWN:] else "")
        raise BadInput(
            f"{path}: {counted(len(lost), 'row')} without files ({shown}). Restore the files, or delete the rows."
        )
    return {key: scroll for key, (_, scroll) in rows.items()}


def _id(written: str, keys: Collection[str]) -> str:
    """The volume that a row means.

    >>> _id("12.tif", ["12"]), _id("12.0", ["12"])
    ('12', '12.0')
    """
    stem, suffix = Path(written).stem, Path(written).suffix
    return stem if written not in keys and stem in keys and suffix.lower() in SUFFIXES else written


def _near(key: str, rows: Collection[str]) -> str:
    """Which row may be meant by a volume without one: spreadsheets write 12 as 12.0."""
    longer = next((row for row in rows if row.startswith(f"{key}.")), None)
    return f"; did you mean '{longer}'?" if longer else did_you_mean(key, rows)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Number and values of every line that is not empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if "\0" in text:  # UTF-16 without its mark
            raise ValueError("zeros between its characters")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        return [(reader.line_num, line) for line in reader if any(value.strip() for value in line)]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not UTF-8 text. Save it as CSV UTF-8.") from error
    except csv.Error as error:
        raise BadInput(
            f"{path}: not a readable CSV file ({error}). Mend that line, or save it as CSV again."
        ) from error
