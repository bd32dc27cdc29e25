"""The challenge's manifest: a CSV file with the columns id and scroll_id, one row per volume."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from runner_core import BadInput, counted, did_you_mean, read_table

from runner_vesuvius.volumes import suffix

COLUMNS = ("id", "scroll_id")
_SHOWN = 5
_LONG = 80
"""Most characters of an id that a message shows."""
EXAMPLE = "A manifest has the columns id and scroll_id and a row for each volume."


def read(path: Path) -> dict[str, tuple[int, str]]:
    """Read line and scroll of every id; BadInput names the file, the line and the remedy."""
    table = read_table(path, EXAMPLE)
    keys, named = (table.required(name, example=EXAMPLE) for name in COLUMNS)
    for number, key, scroll in zip(table.lines, keys, named, strict=True):
        if not (key + scroll).isprintable():
            raise BadInput(f"{path}: line {number} has a line break or another control character. Mend it.")
    table.refuse_repeats(keys, "id")
    return {key: (number, scroll) for number, key, scroll in zip(table.lines, keys, named, strict=True)}


def ids(path: Path) -> list[str]:
    """Return the values of the column `id`, without the suffix of a volume; none if there is no such column.

    Raises BadInput for an id that is no name of a file: volumes lie in the folder beside the table.
    """
    written = [key for key in read_table(path, EXAMPLE, empty=True).column("id") or [] if key]
    if odd := next((key for key in written if "/" in key or key in (".", "..")), None):
        raise BadInput(f"{path}: the id {odd[:_LONG]!r} is no name of a file. Mend it.")
    return [key[: len(key) - len(suffix(key))] for key in written]


def scrolls(path: Path, keys: Collection[str], deprecated: Collection[str] = ()) -> Mapping[str, str]:
    """Return the scroll of each volume in `keys`; a row may name the file (ID.tif) instead of the id.

    Raises BadInput unless rows and volumes agree; rows of `deprecated` volumes need none.
    """
    rows: dict[str, tuple[int, str]] = {}
    for written, (number, scroll) in read(path).items():
        key = _id(written, keys)
        if key in rows:
            raise BadInput(
                f"{path}: id {key[:_LONG]} is on line {rows[key][0]} and on line {number}. Delete one of them."
            )
        rows[key] = (number, scroll)
    if without := sorted(set(keys) - set(rows)):
        more = f" and {counted(len(without) - 1, 'other volume')}" if len(without) > 1 else ""
        near = f"{_near(without[0], rows)}.".replace("?.", "?")
        raise BadInput(
            f"{path}: no row for {without[0]}{more}, of which files are there, so that the scroll is not known{near} "
            "Add the row, or take the files out."
        )
    if lost := [(line, key) for key, (line, _) in rows.items() if key not in {*keys, *deprecated}]:
        shown = ", ".join(f"line {line}: {key[:_LONG]}" for line, key in lost[:_SHOWN]) + (
            ", …" if lost[_SHOWN:] else ""
        )
        raise BadInput(
            f"{path}: {counted(len(lost), 'row')} without files ({shown}). Restore the files, or delete the rows."
        )
    return {key: scroll for key, (_, scroll) in rows.items()}


def _id(written: str, keys: Collection[str]) -> str:
    """Return the volume that a row means.

    >>> _id("12.tif", ["12"]), _id("12.0", ["12"])
    ('12', '12.0')
    """
    stem = written[: len(written) - len(suffix(written))]
    return stem if written not in keys and stem in keys else written


def _near(key: str, rows: Collection[str]) -> str:
    """Return the row that a volume without one may mean: spreadsheets write 12 as 12.0."""
    longer = next((row for row in rows if row.startswith(f"{key}.")), None)
    return f"; did you mean '{longer}'?" if longer else did_you_mean(key, rows)


URLS = "A table of volumes at URLs has the columns image, label and scroll, and if wanted id, split and annotated."


def url_rows(path: Path) -> list[dict[str, str]] | None:
    """Return the rows of a table in which any volume is at a URL; None if none is.

    Each row has image, label, annotated, id, scroll and split; what is not given is "". Paths are relative to the
    table. Raises BadInput with the line if an image or its label is missing, or is no zarr volume.
    """
    if not path.is_file() or b"://" not in path.read_bytes():
        return None
    table = read_table(path, URLS)
    columns = {name: table.required(name, example=URLS) for name in ("image", "label")}
    for name, others in (("annotated", ()), ("id", ("key",)), ("scroll", ("scroll_id", "group")), ("split", ())):
        columns[name] = table.column(name, *others) or [""] * len(table.rows)
    rows = []
    for number, line in enumerate(table.lines):
        row = {name: values[number] for name, values in columns.items()}
        for role in ("image", "label", "annotated"):
            if row[role] and ".zarr" not in row[role].lower():
                raise BadInput(f"{path}: line {line}: {row[role]}: no zarr volume (NAME.zarr); no others are streamed.")
            if ".." in Path(row[role]).parts:
                raise BadInput(f"{path}: line {line}: {row[role]} has '..' in it. Write it in full.")
            if row[role] and "://" not in row[role] and not Path(row[role]).is_absolute():
                row[role] = str(path.parent.absolute() / row[role])
        rows.append(row)
    return rows
