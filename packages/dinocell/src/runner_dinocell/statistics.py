"""What the training fields teach before any training: which channels there are, and how bright they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from runner_core import BadInput
from runner_core.project import Statistics
from runner_core.protocols import Array, Json, Store

from runner_dinocell.config import CellConfig
from runner_dinocell.fields import at_percentiles, histogram

FIELDS = 64
"""Fields at most whose grey values are counted for `data.scale set`: more would be fetched for nothing."""


def fit(store: Store, training: Sequence[int], config: CellConfig) -> Statistics:
    """`channels`: their names, in order; under `data.scale set` also `levels` (C, 2) float32: the grey values of
    `FIELDS` training fields together, spread over the plates, at `data.percentiles`.

    Records of a streamed store that cannot be read are passed over. Raises BadInput where none can.
    """
    channels = list(_first_readable(store, training)["channels"])
    if config.data.scale == "field":
        return {"channels": channels}
    counts: Array | None = None
    for image in _images(store, spread(store.keys, training)):
        own = np.stack([histogram(channel) for channel in image])
        counts = own if counts is None else counts + own
    assert counts is not None  # one was readable
    levels = np.array([at_percentiles(own, config.data.percentiles) for own in counts], np.float32)
    return {"channels": channels, "levels": levels}


def spread(keys: Sequence[str], training: Sequence[int]) -> list[int]:
    """`FIELDS` of the training records at most, as many of each plate as there are, evenly from its first to its last.

    `keys`: …/plate/well/site.
    """
    plates: dict[str, list[int]] = {}
    for number in training:
        plates.setdefault(keys[number].rsplit("/", 2)[0], []).append(number)
    chosen: list[int] = []
    for rest, own in enumerate(sorted(plates.values(), key=len)):  # what small plates lack, larger ones give
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


def _images(store: Store, records: Sequence[int]) -> Iterator[Array]:
    """Those that can be read. Raises the first one's error where none can."""
    first: BadInput | None = None
    read = 0
    for number in records:
        try:
            image = store.arrays["image"].read(number)
        except BadInput as error:
            first = first or error
            continue
        read += 1
        yield image
    if not read and first:
        raise first
