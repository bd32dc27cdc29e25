"""The entries of meta.json for each record of a large cache: columns in files of their own, mapped by all processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner_core.base.files import hash_file
from runner_core.contract import Json
from runner_core.data.blocks import Blocks, Texts
from runner_core.data.columns import Column, Digests, Shapes

FILE = re.compile(r"column-[a-z0-9-]+\.[a-z]+\.npy")


def save_columns(
    folder: Path,
    keys: Sequence[str],
    identities: Sequence[str],
    meta: Sequence[Mapping[str, Json]],
    shapes: Sequence[Sequence[tuple[int, ...]]],
) -> dict[str, str]:
    """Write the records' keys, identities, meta and the shapes of each array; return the files' digests by name."""
    columns: dict[str, Column[Any]] = {
        "keys": Texts(keys), "identities": Digests(identities), "meta": Blocks(map(dict, meta)),
        **{f"shapes-{number}": Shapes(own) for number, own in enumerate(shapes)},
    }  # fmt: skip
    for name, column in columns.items():
        column.save(folder, f"column-{name}")
    return {file.name: hash_file(file) for file in sorted(folder.glob("column-*"))}


def map_columns(folder: Path, digests: Mapping[str, str], arrays: int) -> tuple[dict[str, Any], list[Shapes]]:
    """Return keys, identities and meta by name, and each array's shapes; raise ValueError or OSError for damage."""
    for name, digest in digests.items():
        if not FILE.fullmatch(name) or hash_file(folder / name) != digest:
            raise ValueError(f"{name} has changed since it was written")
    kinds: Mapping[str, type[Column[Any]]] = {"keys": Texts, "identities": Digests, "meta": Blocks}
    found = {name: kind.map(folder, f"column-{name}") for name, kind in kinds.items()}
    return found, [Shapes.map(folder, f"column-shapes-{number}") for number in range(arrays)]
