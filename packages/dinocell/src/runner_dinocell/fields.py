"""A field: what is known of it, and its images read and prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from runner_core import BadInput
from runner_core._text import times
from runner_core.location import Location
from runner_core.project import Decoded, Record
from runner_core.protocols import Array, Arrays

from runner_dinocell import tiff


@dataclass(frozen=True, kw_only=True)
class Field(Record[Location]):
    """A site of a well: one image a channel.

    `key` is source/batch/plate/well/site and `group` source/batch/plate, without what is not known. `channels`: those
    of the data set, in the order in which they are stacked; `files` has each that is there; `unused`: others that are
    there. `label` (a compound, say) is here and not in a cache, which would outlive its change.
    """

    plate: str
    well: str
    site: str
    source: str = ""
    batch: str = ""
    label: str | None = None
    channels: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def decode(record: Record) -> Decoded:
    """image (C, H, W), uint16, or uint8 where all files of the field are 8-bit; meta: the names of its channels.

    Raises BadInput for a channel that is missing or cannot be read, and for one of another size or depth than the
    field's others.
    """
    channels = record.channels if isinstance(record, Field) else tuple(record.files)
    if missing := [name for name in channels if name not in record.files]:
        raise BadInput(
            f"{record.key}: no image of channel {missing[0]} (there are {', '.join(record.files) or 'none'}). Restore "
            "the file, leave the field out, or choose other channels with data.channels."
        )
    images = [tiff.read(record.files[name]) for name in channels]
    _must_agree(record, channels, images)
    return Decoded({"image": np.stack(images)}, (1.0, 1.0, 1.0), "image", {"channels": list(channels)})


def _must_agree(record: Record, channels: Sequence[str], images: Sequence[Array]) -> None:
    depths = [image.dtype.itemsize for image in images]
    if narrow := [name for name, depth in zip(channels, depths, strict=True) if depth < max(depths)]:
        raise BadInput(
            f"{record.files[narrow[0]]}: 8 bits a pixel, where other channels of {record.key} have 16: its grey "
            "values were lost on the way. Export it again as 16-bit TIFF."
        )
    sizes = [image.shape for image in images]
    usual = max(sizes, key=sizes.count)
    for name, size in zip(channels, sizes, strict=True):
        if size != usual:
            raise BadInput(
                f"{record.files[name]}: {times(size)} pixels, where other channels of {record.key} have "
                f"{times(usual)}. All images of a field show the same place: replace it, or leave the field out."
            )


def prepare(image: Array, percentiles: tuple[float, float]) -> Arrays:
    """`image` (C, H, W) as decoded; levels (C, 2) float32: its grey values at these percentiles, the two equal where a
    channel is constant; grey (C,) int32: how many different grey values each channel has."""
    counts = [histogram(channel) for channel in image]
    levels = np.array([at_percentiles(own, percentiles) for own in counts], np.float32)
    return {"image": image, "levels": levels, "grey": np.array([np.count_nonzero(own) for own in counts], np.int32)}


def histogram(channel: Array) -> Array:
    """Pixels of each grey value (int64), of an image of uint8 or uint16."""
    return np.bincount(channel.ravel(), minlength=1 << 8 * channel.dtype.itemsize)


def at_percentiles(counts: Array, percentiles: Sequence[float]) -> list[float]:
    """Grey values at percentiles, linear between neighbouring pixels as in `numpy.percentile`; `counts`: pixels of
    each grey value."""
    below = np.cumsum(counts)
    places = np.asarray(percentiles) / 100 * (below[-1] - 1)
    first = np.floor(places)
    low, high = (np.searchsorted(below, rank, side="right") for rank in (first, np.ceil(places)))
    return list((low + (places - first) * (high - low)).tolist())
