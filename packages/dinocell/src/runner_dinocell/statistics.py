"""Statistics of the training fields: their channels, and how bright they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Json, Statistics, Store

from runner_dinocell.config import CellConfig
from runner_dinocell.fields import at_percentiles, histogram

FIELDS = 64
"""Most fields whose grey values are counted for `data.scale set`; fetching more would not help."""


def fit(store: Store, training: Sequence[int], config: CellConfig) -> Statistics:
    """Return `channels`, their names in order, and under `data.scale set` also `levels`.

    levels (C, 2) float32 are the grey values of `FIELDS` training fields together, spread over the plates, at
    `data.percentiles`. Records of a streamed store that cannot be read are skipped. Raises BadInput if none can be
    read.
    """
    channels = list(_first_readable(store, training)["channels"])
    if config.data.scale == "field":
        return {"channels": channels}
    counts: Array | None = None
    for image, grey in _images(store, spread(store.keys, training)):
        own = np.stack([histogram(channel) for channel in image]) * (grey > 0)[:, None]
        counts = own if counts is None else counts + own
    assert counts is not None  # one was readable
    percentiles = config.data.percentiles
    levels = [at_percentiles(own, percentiles) if own.any() else (0.0, 0.0) for own in counts]
    return {"channels": channels, "levels": np.array(levels, np.float32)}


def usable(levels: Any, own: Any) -> Any:
    """Return the set's levels (C, 2), with a field's `own` for channels that none of the counted fields had.

    Both are arrays or tensors.
    """
    seen = levels[..., 1:] > levels[..., :1]
    return levels * seen + own * ~seen


def spread(keys: Sequence[str], training: Sequence[int]) -> list[int]:
    """Choose at most `FIELDS` of the training records, as evenly as possible from all plates.

    Each plate contributes evenly from its first record to its last. `keys` are …/plate/well/site.
    """
    plates: dict[str, list[int]] = {}
    for number in training:
        plates.setdefault(keys[number].rsplit("/", 2)[0], []).append(number)
    chosen: list[int] = []
    for rest, own in enumerate(sorted(plates.values(), key=len)):  # larger plates make up for small ones
        share = -(-(FIELDS - len(chosen)) // (len(plates) - rest))
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


def _images(store: Store, records: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield images that can be read, and the grey values of their channels (0 for a missing one).

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
        yield image, grey
    if not read and first:
        raise first
