"""Fields: their names and labels, and their images read and prepared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from runner_core import Array, BadInput, Decoded, Json, Location, Record, did_you_mean, shape_text

from runner_dinocell import objects, tiff
from runner_dinocell.config import CellDataConfig
from runner_dinocell.nuclei import find_nuclei


@dataclass(frozen=True, kw_only=True)
class Field(Record[Location]):
    """A site of a well: one image per channel.

    `key` is source/batch/plate/well/site and `group` source/batch/plate, without the parts that are not known; a table
    may give other groups.
    `channels` are those of the data set, in the order of stacking; `files` has those that exist; `unused` are others
    that exist. `label` (such as a compound) is kept here and not in a cache, which would outlive a change of it. With
    `partial`, a channel without a file is left empty (the network was made for that) instead of refused.
    """

    plate: str
    well: str
    site: str
    source: str = ""
    batch: str = ""
    label: str | None = None
    channels: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    partial: bool = False
    centres: bytes | None = None
    """Cells of a table (n, 3) float32, number, y and x; None without a table."""

    @property
    def images(self) -> Mapping[str, Location]:
        """Return the images by channel, without the label image."""
        return {name: place for name, place in self.files.items() if name != objects.MASK}

    @property
    def name(self) -> tuple[str, str, str, str, str]:
        return (self.source, self.batch, self.plate, self.well, self.site)

    @property
    def whole_plate(self) -> str:
        """Return source/batch/plate, without the parts that are not known."""
        return "/".join(filter(None, self.name[:3]))

    @property
    def missing(self) -> list[str]:
        return [name for name in self.channels if name not in self.files]


_DNA = re.compile(r"dna|dapi|hoechst|nucle[iu]s?\b", re.IGNORECASE)


def decode(record: Record) -> Decoded:
    """Read image (C, H, W), and as meta the names of its channels and of the missing ones.

    The image is uint16, or uint8 if all files of the field are 8-bit. Missing channels of a `partial` field are 0.
    Raises BadInput for a channel that is missing or cannot be read, or that has another size or depth than the field's
    others.
    """
    channels = record.channels if isinstance(record, Field) else tuple(record.files)
    missing = [name for name in channels if name not in record.files]
    if missing and not (isinstance(record, Field) and record.partial and record.images):
        raise BadInput(
            f"{record.key}: no image of channel {missing[0]} (there are {', '.join(record.files) or 'none'}). Restore "
            "the file, leave the field out, or choose other channels with data.channels."
        )
    there = [name for name in channels if name in record.files]
    images = {name: tiff.read(record.files[name], together=len(there)) for name in there}
    _must_agree(record, there, list(images.values()))
    empty = np.zeros_like(images[there[0]])
    image = np.stack([images.get(name, empty) for name in channels])
    meta: dict[str, Json] = {"channels": list(channels)}
    if objects.MASK in record.files:
        meta["cells"] = objects.of_labels(record.files[objects.MASK], image.shape[1:]).tolist()
    elif isinstance(record, Field) and record.centres is not None:
        meta["cells"] = np.frombuffer(record.centres, np.float32).reshape(-1, 3).tolist()
    return Decoded({"image": image}, (1.0, 1.0, 1.0), "image", meta | ({"missing": missing} if missing else {}))


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
                f"{record.files[name]}: {shape_text(size)} pixels, where other channels of {record.key} have "
                f"{shape_text(usual)}. All images of a field show the same place: replace it, or leave the field out."
            )


def cells(decoded: Decoded, settings: CellDataConfig, kind: str) -> Array:
    """Return the cells of a field: (`data.most_cells`, 3) int32, number, y and x, −1 where there is none.

    They are those that came with it, or with `kind` find those that the finder finds.
    """
    image, channels = decoded.arrays["image"], decoded.meta["channels"]
    if kind == "find":
        centres = find_nuclei(image[channels.index(nuclei_channel(channels, settings.nuclei))])
        found = np.column_stack([np.arange(1, len(centres) + 1), centres])
    else:
        found = np.array(decoded.meta.get("cells", []), np.float32).reshape(-1, 3)
    return objects.stored(found, image.shape[1:], settings.most_cells, "data.cells")


def nuclei_channel(channels: Sequence[str], wanted: str | None) -> str:
    """Return the channel that shows nuclei: `wanted`, or one named like a stain of DNA, else the first.

    >>> nuclei_channel(["ER", "Hoechst 33342"], None), nuclei_channel(["1", "2"], None)
    ('Hoechst 33342', '1')
    """
    if wanted is None:
        return next((name for name in channels if _DNA.search(name)), channels[0])
    if wanted not in channels:
        near = did_you_mean(wanted, channels)
        raise BadInput(f"data.nuclei is {wanted}{near}; there are the channels {', '.join(channels)}")
    return wanted
