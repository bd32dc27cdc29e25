"""Tables of images, CSV, TSV (also .gz) or parquet: the field and channel of each file.

plate, well, site, channel, path             one row per image; source and batch too, if they are known,
                                             and group and split
Metadata_Plate, Metadata_Well, Metadata_Site,
FileName_OrigDNA with PathName_OrigDNA …     CellProfiler's load_data: one row per field, columns for each channel
 or URL_OrigDNA …

Paths that are neither absolute nor URLs lie below the data, and cannot lead out of there.
"""

from __future__ import annotations

import csv
import gzip
import io
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from runner_core import BadInput, Location, Url, did_you_mean, location, refuse_length

from runner_dinocell.config import TABLES
from runner_dinocell.names import FieldName, Name, number, well

SUFFIXES = TABLES
PLAIN = ("plate", "well", "site", "channel", "path")
LOAD_DATA = ("Metadata_Plate", "Metadata_Well", "Metadata_Site")
_FILE, _FOLDER, _URL = "FileName_", "PathName_", "URL_"
Image = tuple[Name, Location, str]
"""Name, location and label of an image; the label is empty if there is none."""
MOST_BYTES = 1_000_000_000
"""Larger tables are refused: load_data of a million fields with eight channels is smaller."""
_UNPACKED = "a table, unpacked,"
_ROWS = 1 << 13
"""Rows of a parquet table that are unpacked at once."""
_CORRECTION = "illum"
"""Start of the names of load_data's columns that hold illumination functions, not images."""


class Table:
    """A table of text: `columns` by name, all of one length. `where` is named in messages."""

    def __init__(self, where: str, content: bytes) -> None:
        self.where = where
        try:
            table = _parquet(where, content) if where.lower().endswith(".parquet") else _csv(where, content)
        except (pa.ArrowException, csv.Error, OSError, EOFError, ValueError, zlib.error) as error:
            raise BadInput(
                f"{where}: not a readable table: {error}. Save it again, as CSV UTF-8 or parquet."
            ) from error
        self._table = table
        self.names: list[str] = table.column_names
        if not len(table):
            raise BadInput(f"{where}: it has no row below its names of columns. A manifest has one for each image.")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def column(self, name: str) -> list[str]:
        """Return a column's values, empty ones included; BadInput names the existing columns."""
        if name not in self.names:
            raise BadInput(f"{self.where}: no column '{name}'{self.near(name)} {self.there()}")
        if self.names.count(name) > 1:
            raise BadInput(f"{self.where}: two columns are named '{name}'. Rename one of them.")
        return [value.strip() if value else "" for value in self._table.column(name).to_pylist()]

    def column_if_any(self, name: str) -> Sequence[str]:
        return self.column(name) if name in self.names else [""] * len(self)

    def filled(self, name: str) -> list[str]:
        """Return a column that has a value in each row; BadInput names the row that is empty."""
        values = self.column(name)
        if "" in values:
            raise BadInput(f"{self.where}: {self.line(values.index(''))} has no {name}. Fill it in, or delete the row.")
        return values

    def line(self, row: int) -> str:
        """Return an editor's name of a row: the names of columns are a CSV file's line 1."""
        return f"row {row + 1}" if self.where.lower().endswith(".parquet") else f"line {row + 2}"

    def near(self, name: str) -> str:
        """Return the end of a sentence: the unknown column that may be meant by the missing one."""
        own = [column for column in self.names if column not in (*PLAIN, *LOAD_DATA)]
        holding = [column for column in own if name.casefold() in column.casefold()]
        return f"; did you mean '{holding[0]}'?" if holding else did_you_mean(name, own) or "."

    def refuse_repeats(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Raise BadInput for a row that repeats an earlier one."""
        known: dict[tuple[object, ...], int] = {}
        for row, values in enumerate(rows):
            if (first := known.setdefault(values, row)) != row:
                raise BadInput(f"{self.where}: {self.line(row)} repeats {self.line(first)}. Delete one of them.")

    def __len__(self) -> int:
        return len(self._table)

    def there(self) -> str:
        shown = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
        return f"It has the columns {shown}."


def images(table: Table, root: Location, label: str | None) -> Iterator[Image]:
    """Yield every image of the table; `label` is the column of labels, if the table has it.

    Raises BadInput for a table without the columns of either kind, for empty cells and for paths that lead out of
    `root`.
    """
    labels = table.column_if_any(label) if label else [""] * len(table)
    if any(name.startswith((_FILE, _URL)) for name in table.names) or LOAD_DATA[0] in table:
        yield from _load_data(table, root, labels)
        return
    if missing := [name for name in PLAIN if name not in table]:
        raise BadInput(
            f"{table.where}: no column '{missing[0]}'{table.near(missing[0])} {table.there()} "
            f"A manifest has {', '.join(PLAIN)}, a row for each image, or is a load_data table of CellProfiler's."
        )
    fields = names_of(table, "source", "batch", "plate", "well", "site")
    channels, paths = table.filled("channel"), table.filled("path")
    table.refuse_repeats(zip(fields, channels, paths, strict=True))
    place = _placed(table, root)
    for row, (own, channel, path) in enumerate(zip(fields, channels, paths, strict=True)):
        yield Name(*own, number(channel)), place(row, path), labels[row]


def of_fields(table: Table, column: str) -> Mapping[FieldName, str]:
    """Return what a column says of each field, empty if there is no such column; BadInput if a field has two values."""
    if column not in table:
        return {}
    load_data = LOAD_DATA[0] in table
    parts = ("Metadata_Source", "Metadata_Batch", *LOAD_DATA) if load_data else ("source", "batch", *PLAIN[:3])
    found: dict[FieldName, str] = {}
    for field, value in zip(names_of(table, *parts), table.filled(column), strict=True):
        if (other := found.setdefault(field, value)) != value:
            raise BadInput(
                f"{table.where}: {'/'.join(filter(None, field))} has two values of {column}, {other} and {value}. A "
                "field has one: mend it."
            )
    return found


def _load_data(table: Table, root: Location, labels: Sequence[str]) -> Iterator[Image]:
    fields = names_of(table, "Metadata_Source", "Metadata_Batch", *LOAD_DATA)
    place = _placed(table, root)
    channels = _channels(table)
    table.refuse_repeats(zip(fields, *channels.values(), strict=True))
    for channel, paths in channels.items():
        for row, (own, path) in enumerate(zip(fields, paths, strict=True)):
            yield Name(*own, channel), place(row, path), labels[row]


def _channels(table: Table) -> Mapping[str, Sequence[str]]:
    """Return the paths of every channel, by its name without CellProfiler's Orig; URLs if the table has them."""
    found: dict[str, Sequence[str]] = {}
    columns = [name for name in table.names if name.startswith((_FILE, _URL))]
    for image in dict.fromkeys(name.partition("_")[2] for name in columns):
        if image.casefold().startswith(_CORRECTION):
            continue
        channel = image.removeprefix("Orig")
        if _URL + image in table:
            found[channel] = table.filled(_URL + image)
            continue
        files = table.filled(_FILE + image)
        found[channel] = [posixpath.join(a, b) for a, b in zip(table.column(_FOLDER + image), files, strict=True)]
    if not found:
        raise BadInput(
            f"{table.where}: no column FileName_NAME with PathName_NAME, nor URL_NAME, for an image. {table.there()}"
        )
    return found


def names_of(table: Table, source: str, batch: str, plate: str, place: str, site: str) -> list[FieldName]:
    """Return source, batch, plate, well and site of each row, the first two empty without such a column."""
    wells = _each(well, table.filled(place))
    sites = _each(number, table.filled(site))
    sources, batches = table.column_if_any(source), table.column_if_any(batch)
    return list(zip(sources, batches, table.filled(plate), wells, sites, strict=True))


def _each(tidy: Callable[[str], str], values: Sequence[str]) -> list[str]:
    """Apply `tidy` to all values, once to each distinct one, because values repeat."""
    known = {value: tidy(value) for value in set(values)}
    return [known[value] for value in values]


def _placed(table: Table, root: Location) -> Callable[[int, str], Location]:
    def place(row: int, path: str) -> Location:
        try:
            path = _of_file_url(path)
            found = location(path)
        except ValueError as error:
            prefix = f"{table.where}: {table.line(row)}: the path {path}"
            raise BadInput(f"{prefix} is no URL ({error}). Mend it.") from error
        if isinstance(found, Url) or found.is_absolute():
            return found
        if posixpath.normpath(path).startswith(".."):
            raise BadInput(f"{table.where}: {table.line(row)}: the path {path} has `..` in it. Write it in full.")
        return root / posixpath.normpath(path)

    return place


def _of_file_url(path: str) -> str:
    """Return the path of a file URL; CellProfiler writes file:/a%20b, other programs file:///a%20b.

    >>> _of_file_url("file:///a%20b"), _of_file_url("s3://a%20b")
    ('/a b', 's3://a%20b')
    """
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def _parquet(where: str, content: bytes) -> pa.Table:
    """Read parquet in batches, so that the unpacked size is counted before memory is taken for all of it."""
    file = pa.parquet.ParquetFile(pa.BufferReader(content))
    plain = [field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)]
    batches, size = [], 0
    for batch in file.iter_batches(_ROWS, columns=plain):
        batches.append(
            pa.RecordBatch.from_arrays([column.cast(pa.string()) for column in batch.columns], batch.schema.names)
        )
        size += batches[-1].nbytes
        refuse_length(where, size, MOST_BYTES, _UNPACKED)
    return pa.Table.from_batches(batches, pa.schema([(name, pa.string()) for name in plain]))


def _unpacked(where: str, content: bytes) -> bytes:
    """Unpack gzip, or raise BadInput if there is more than a table may have."""
    with gzip.open(io.BytesIO(content)) as file:
        unpacked = file.read(MOST_BYTES + 1)
    refuse_length(where, len(unpacked), MOST_BYTES, _UNPACKED)
    return unpacked


def _csv(where: str, content: bytes) -> pa.Table:
    """Read CSV with commas, semicolons or tabulators, all as text: plate 0012 is not 12."""
    content = _unpacked(where, content) if where.lower().endswith(".gz") else content
    content = content.removeprefix(b"\xef\xbb\xbf")
    first = content[: content.find(b"\n") + 1 or None].decode()
    mark = next((mark for mark in ("\t", ",", ";") if mark in first), ",")
    names = [name.strip() for name in next(csv.reader(io.StringIO(first), delimiter=mark), [])]
    return pa.csv.read_csv(
        pa.BufferReader(content),
        read_options=pa.csv.ReadOptions(column_names=names, skip_rows=1),
        parse_options=pa.csv.ParseOptions(delimiter=mark),
        convert_options=pa.csv.ConvertOptions(column_types={name: pa.string() for name in names}),
    )
