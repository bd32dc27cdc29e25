"""Statistics of the training fields: their channels, and how bright they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Json, Statistics, Store

from runner_dinocell.brightness import brightness
from runner_dinocell.config import CellConfig
from runner_dinocell.windows import at_percentiles, histogram

FIELDS = 64
"""Most fields whose grey values are counted for `data.scale set`; fetching more would not help."""


def fit(store: Store, training: Sequence[int], config: CellConfig) -> Statistics:
    """Return `channels`, their names in order, and if `data.scale` is or becomes set also `levels`.

    `cells` is true if windows lie around cells.

    levels (C, 2) float32 are the grey values of `FIELDS` training fields together, spread over the plates, at
    `data.percentiles`. Under `data.scale auto` these are two sites of each well, and there are no levels if their
    brightness says so, or if no well has two sites. Records of a streamed store that cannot be read are skipped. Raises
    BadInput if none can be read.
    """
    scale = config.data.scale
    known: dict[str, Any] = {"channels": list(_first_readable(store, training)["channels"])}
    if config.data.cells is not None:
        known["cells"] = True
    numbers = [] if scale == "field" else (pairs if scale == "auto" else spread)(store.keys, training)
    if not numbers:
        return known
    counts: Array | None = None
    own_levels, keys = [], []
    for number, image, grey in _images(store, numbers):
        own = np.stack([histogram(channel) for channel in image]) * (grey > 0)[:, None]
        counts = own if counts is None else counts + own
        own_levels.append(_levels(own, config))
        keys.append(store.keys[number])
    assert counts is not None  # one was readable
    if scale == "auto" and brightness(np.stack(own_levels), keys).scale == "field":
        return known
    return known | {"levels": _levels(counts, config)}


def _levels(counts: Array, config: CellConfig) -> Array:
    """Return the grey values (C, 2) float32 at `data.percentiles`; 0 for a channel without pixels."""
    percentiles = config.data.percentiles
    return np.array([at_percentiles(own, percentiles) if own.any() else (0.0, 0.0) for own in counts], np.float32)


def pairs(keys: Sequence[str], training: Sequence[int]) -> list[int]:
    """Choose two sites of wells that have them, at most `FIELDS` records, as evenly as possible from all plates."""
    sites: dict[str, list[int]] = {}
    for number in training:
        sites.setdefault(keys[number].rsplit("/", 1)[0], []).append(number)
    second = {own[0]: own[1] for own in sites.values() if len(own) > 1}
    return sorted(number for first in spread(keys, list(second), FIELDS // 2) for number in (first, second[first]))


def spread(keys: Sequence[str], training: Sequence[int], most: int = FIELDS) -> list[int]:
    """Choose at most `most` of the training records, as evenly as possible from all plates.

    Each plate contributes evenly from its first record to its last. `keys` are …/plate/well/site.
    """
    plates: dict[str, list[int]] = {}
    for number in training:
        plates.setdefault(keys[number].rsplit("/", 2)[0], []).append(number)
    chosen: list[int] = []
    for rest, own in enumerate(sorted(plates.values(), key=len)):  # larger plates make up for small ones
        share = -(-(most - len(chosen)) // (len(plates) - rest))
        places = np.linspace(0, len(own) - 1, min(share, len(own))).round().astype(int)
        chosen += [own[place] for place in places.tolist()]
    return sorted(chosen)


def _first_readable(store: Store, training: Sequence[int]) -> Mapping[str, Json]:
    first: BadInput | None = None
    for number in training:
        try:
            return store.meta[number]
        except BadInput as error:
            first = first or error
    raise first or BadInput("there is no field to train on")


def _images(store: Store, records: Sequence[int]) -> Iterator[tuple[int, Array, Array]]:
    """Yield records that can be read: number, image and the grey values of its channels (0 for a missing one).

    Raises the first one's error if none can be read.
    """
    first: BadInput | None = None
    read = 0
    for number in records:
        try:
            image, grey = store.arrays["image"].read(number), store.arrays["grey"].read(number)
        except BadInput as error:
            first = first or error
            continue
        read += 1
        yield number, image, grey
    if not read and first:
        raise first
