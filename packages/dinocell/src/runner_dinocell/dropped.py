"""Embeddings of fields that lack channels: what is lost with each stain, and what one stain alone would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from runner_core import Array, Arrays, Table

from runner_dinocell.evaluate import held_out, probe, retrieval, standardised


class Variant(NamedTuple):
    name: str
    kept: frozenset[str]
    """Names of the channels that are shown."""


class Method(NamedTuple):
    """Features of N fields: complete (N, D), and of each variant (N, any), NaN where a field shows nothing."""

    complete: Array
    variants: Sequence[Array]


def variants(channels: Sequence[str]) -> list[Variant]:
    """Return the variants of a field: without each channel, then with each channel alone."""
    every = frozenset(channels)
    without = [Variant(f"without {name}", every - {name}) for name in channels if len(channels) > 1]
    return without + [Variant(f"only {name}", frozenset({name})) for name in channels if len(channels) > 2]


def embedded(
    prepared: Arrays, channels: Sequence[str], trained: Sequence[str], embed: Callable[[Arrays], Array]
) -> Array:
    """Return the mean embedding of a field's windows in each variant, (V, D) float32; NaN if no channel is left.

    Args:
        prepared: image (C, H, W), levels (C, 2), and grey (C,), which is 0 for channels that are missing.
        channels: names of the field's channels.
        trained: names of the channels that the network was trained with.
        embed: returns embeddings (n, D) of the windows of such arrays.
    """
    rows: list[Array | None] = []
    for variant in variants(trained):
        grey = np.where([name in variant.kept for name in channels], prepared["grey"], 0).astype(np.int32)
        rows.append(embed({**prepared, "grey": grey}).mean(0) if grey.any() else None)
    width = next((len(row) for row in rows if row is not None), 0)
    return np.stack([np.full(width, np.nan) if row is None else row for row in rows]).astype(np.float32)


def table(
    methods: Mapping[str, Method], names: Sequence[str], label: Array, plate: Array, place: Array, asked: Array
) -> Table:
    """Return the scores of every method with all channels and in each variant.

    Args:
        methods: by name. Those of the first, the network, are also compared with complete fields.
        names: names of the variants.
        label: (N,) numbers, −1 if not known.
        plate: (N,) numbers; classifiers learn from other plates.
        place: (N,) the well of a plate.
        asked: (N,) bool, the fields that are scored.
    """
    rows = []
    for number in range(-1, len(names)):
        cells: dict[str, float] = {}
        for name, method in methods.items():
            own = method.complete if number < 0 else method.variants[number]
            there = np.isfinite(own).all(1)
            known = (label[there], plate[there], asked[there])
            features = standardised(own[there])
            cells[f"label, {name}"] = held_out(features, *known, probe).value
            cells[f"well, {name}"] = retrieval(features, place[there], asked[there]).precision.value
            if name == next(iter(methods)):
                complete = standardised(method.complete[there])
                asking = standardised(method.complete[there], own[there])
                cells["label*"] = held_out(complete, *known, probe, asking).value
                cells["well*"] = retrieval(complete, place[there], asked[there], asking).precision.value
        rows.append(cells)
    columns = [column for column in rows[0] if any(math.isfinite(row[column]) for row in rows)]
    title = (
        "Fields that lack channels. label: balanced accuracy of a linear probe that learned from other plates; well: "
        "average precision of the same well's fields. *: learned from, or searched among, fields with all channels"
    )
    lines: list[list[str | float]] = [
        [name, *(row[column] for column in columns)] for name, row in zip(("all channels", *names), rows, strict=True)
    ]
    return Table("channels", title, ["channels", *columns], lines)
