"""Embeddings as parquet: one row per field or window, with its key and, in the schema's metadata, its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from runner_core import Json

from runner_dinocell.fields import Field
from runner_dinocell.whole import Embedded

KEYS = ("source", "batch", "plate", "well", "site")
FILE = "embeddings.parquet"
METADATA = b"runner_dinocell"
_TOGETHER = 1000
"""Fields whose rows are written at once."""


def schema(width: int, settings: Mapping[str, Json]) -> pa.Schema:
    """Return the columns of the table.

    They are source, batch, plate, well, site (text), window_y, window_x (upper left pixel, null for whole fields) and
    embedding (`width` float32).
    """
    columns = [*((name, pa.string()) for name in KEYS), ("window_y", pa.int32()), ("window_x", pa.int32())]
    named = pa.schema([*columns, ("embedding", pa.list_(pa.float32(), width))])
    return named.with_metadata({METADATA: json.dumps(dict(settings), sort_keys=True)})


def rows(
    record: Field, prediction: Embedded, unit: Literal["field", "window"], settings: Mapping[str, Json]
) -> pa.Table:
    """Return the one row of a field, or one for each of its windows."""
    found = prediction.windows if unit == "window" else prediction.field[None]
    count, width = found.shape
    y, x = prediction.corners.T if unit == "window" else ([None], [None])
    keys = [pa.array([getattr(record, name)] * count, pa.string()) for name in KEYS]
    corners = [pa.array(y, pa.int32()), pa.array(x, pa.int32())]
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(found.ravel(), pa.float32()), width)
    return pa.Table.from_arrays([*keys, *corners, embedding], schema=schema(width, settings))


def write(table: pa.Table, key: str, folder: Path) -> list[Path]:
    """Write one field's rows as a small file, until `collect`; no two keys share a file name."""
    path = folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.parquet"
    pq.write_table(table, path)
    return [path]


def collect(files: Sequence[Path], folder: Path) -> list[Path]:
    """Join the rows of all `files` in this order into one, `FILE`, never all in memory."""
    path = folder / FILE
    with pq.ParquetWriter(path, pq.read_schema(files[0])) as writer:
        for first in range(0, len(files), _TOGETHER):
            writer.write_table(pa.concat_tables([pq.read_table(f) for f in files[first : first + _TOGETHER]]))
    return [path]
