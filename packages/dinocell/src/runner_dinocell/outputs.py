"""Embeddings as parquet: one row per field or window, with its key and, in the schema's metadata, its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from runner_core import Array, Json

from runner_dinocell.fields import Field
from runner_dinocell.whole import Embedded

KEYS = ("source", "batch", "plate", "well", "site")
FILE = "embeddings.parquet"
PROFILES = "profiles.parquet"
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
    """Join the rows of all `files` in this order into one, `FILE`, never all in memory; write `PROFILES`."""
    path, together = folder / FILE, pq.read_schema(files[0])
    wells: dict[tuple[str, ...], _Well] = {}
    with pq.ParquetWriter(path, together) as writer:
        for first in range(0, len(files), _TOGETHER):
            tables = [pq.read_table(file) for file in files[first : first + _TOGETHER]]
            writer.write_table(pa.concat_tables(tables))
            for table in tables:
                _add(wells, table)
    pq.write_table(_profiles(wells, together.metadata), folder / PROFILES)
    return [path, folder / PROFILES]


@dataclass
class _Well:
    """Sum of the embeddings of a well's fields, each the mean over its windows."""

    total: Array
    sites: int = 0


def _add(wells: dict[tuple[str, ...], _Well], table: pa.Table) -> None:
    """Add the rows of one field to its well."""
    key = tuple(table[name][0].as_py() for name in KEYS[:-1])
    vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    own = wells.setdefault(key, _Well(np.zeros(vectors.shape[1])))
    own.total += vectors.mean(0, dtype=np.float64)
    own.sites += 1


def _profiles(wells: Mapping[tuple[str, ...], _Well], metadata: Mapping[bytes, bytes]) -> pa.Table:
    """Return one row for each well: pycytominer's columns `Metadata_…`, and a column for each number."""
    columns: dict[str, pa.Array] = {
        f"Metadata_{name.capitalize()}": pa.array([key[place] for key in wells], pa.string())
        for place, name in enumerate(KEYS[:-1])
    }
    columns["Metadata_Site_Count"] = pa.array([well.sites for well in wells.values()], pa.int32())
    means = np.stack([well.total / well.sites for well in wells.values()]).astype(np.float32)
    columns |= {f"Embedding_{number:04d}": pa.array(column) for number, column in enumerate(means.T)}
    return pa.table(columns).replace_schema_metadata(metadata)
