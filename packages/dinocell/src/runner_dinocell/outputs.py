"""Embeddings as parquet: a row per field, window or cell, with its key and, in the schema's metadata, its settings."""

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
CELLS = ("cells", "cell", "cell_y", "cell_x")
_TOGETHER = 1000
"""Fields whose rows are written at once."""
_NONE = 1e-9
"""Weight of a field without cells in its well, in cells."""


def schema(width: int, settings: Mapping[str, Json]) -> pa.Schema:
    """Return the columns of the table.

    They are source, batch, plate, well, site (text), window_y, window_x (upper left pixel, null for whole fields) and
    embedding (`width` float32). With `cells` in the settings: cells (how many the embedding is the mean of), and for
    unit cell also its number and its centre, cell, cell_y, cell_x.
    """
    columns = [*((name, pa.string()) for name in KEYS), ("window_y", pa.int32()), ("window_x", pa.int32())]
    if settings.get("cells"):
        columns += [(name, pa.int32()) for name in (CELLS if settings.get("unit") == "cell" else CELLS[:1])]
    named = pa.schema([*columns, ("embedding", pa.list_(pa.float32(), width))])
    return named.with_metadata({METADATA: json.dumps(dict(settings), sort_keys=True)})


def rows(
    record: Field, prediction: Embedded, unit: Literal["field", "window", "cell"], settings: Mapping[str, Json]
) -> pa.Table:
    """Return the one row of a field, or one for each of its windows, or for each of its cells."""
    cells, whole = prediction.cells, unit == "field"
    count = len(prediction.windows) if cells is None else len(cells)
    found = prediction.field[None] if whole else prediction.windows[: count if unit == "cell" else None]
    y, x = ([None], [None]) if whole else prediction.corners[: len(found)].T
    columns = [pa.array([getattr(record, name)] * len(found), pa.string()) for name in KEYS]
    columns += [pa.array(y, pa.int32()), pa.array(x, pa.int32())]
    if cells is not None:
        columns += [pa.array([count if whole else min(count, 1)] * len(found), pa.int32())]
        columns += [pa.array(own, pa.int32()) for own in cells.T] if unit == "cell" else []
    width = prediction.windows.shape[1]
    columns += [pa.FixedSizeListArray.from_arrays(pa.array(found.ravel(), pa.float32()), width)]
    own = settings if cells is None else {**settings, "unit": unit, "cells": settings.get("cells", True)}
    return pa.Table.from_arrays(columns, schema=schema(width, own))


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
    pq.write_table(_profiles(wells, together), folder / PROFILES)
    return [path, folder / PROFILES]


@dataclass
class _Well:
    """Sum of the embeddings of a well's fields, each the mean over its windows, or of its cells."""

    total: Array
    weight: float = 0.0
    sites: int = 0
    cells: int = 0


def _add(wells: dict[tuple[str, ...], _Well], table: pa.Table) -> None:
    """Add the rows of one field to its well. With cells each cell counts the same."""
    if not len(table):  # no cell was found
        return
    key = tuple(table[name][0].as_py() for name in KEYS[:-1])
    vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    own = wells.setdefault(key, _Well(np.zeros(vectors.shape[1])))
    cells = int(np.sum(table["cells"].to_numpy())) if "cells" in table.column_names else None
    weight = 1 if cells is None else max(cells, _NONE)  # a field without cells counts if the well has no other
    own.total += weight * vectors.mean(0, dtype=np.float64)
    own.weight += weight
    own.sites += 1
    own.cells += cells or 0


def _profiles(wells: Mapping[tuple[str, ...], _Well], together: pa.Schema) -> pa.Table:
    """Return one row for each well: pycytominer's columns `Metadata_…`, and a column for each number."""
    width, cells = together.field("embedding").type.list_size, "cells" in together.names
    columns: dict[str, pa.Array] = {
        f"Metadata_{name.capitalize()}": pa.array([key[place] for key in wells], pa.string())
        for place, name in enumerate(KEYS[:-1])
    }
    columns["Metadata_Site_Count"] = pa.array([well.sites for well in wells.values()], pa.int32())
    if cells:
        columns["Metadata_Cell_Count"] = pa.array([well.cells for well in wells.values()], pa.int32())
    means = np.array([well.total / well.weight for well in wells.values()], np.float32).reshape(-1, width)
    columns |= {f"Embedding_{number:04d}": pa.array(column) for number, column in enumerate(means.T)}
    return pa.table(columns).replace_schema_metadata(together.metadata)
