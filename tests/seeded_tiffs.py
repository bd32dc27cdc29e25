"""Faults in data files of vesuvius and dinocell, as `seeded_data` has those of the others."""

from __future__ import annotations

import csv
from collections.abc import Callable

import numpy as np
import tifffile
from scipy import ndimage
from seeded_data import EVERY, REFUSED, Array, Change, Data, DataFault, cut, cut_short, exchanged

# ---------------------------------------------------------------- vesuvius


def volumes(role: str, change: Change, side: str = "train", which: slice = slice(1)) -> Callable[[Data], None]:
    """Other voxels in some of a side's images or labels."""

    def damage(data: Data) -> None:
        for record in data.sides[side][which]:
            volume = change(tifffile.imread(record.files[role]))
            tifffile.imwrite(record.files[role], volume, photometric="minisblack", metadata=None)

    return damage


def each(*damages: Callable[[Data], None]) -> Callable[[Data], None]:
    def damage(data: Data) -> None:
        for one in damages:
            one(data)

    return damage


def volume_again(data: Data) -> None:
    for role in ("image", "label"):
        volume = tifffile.imread(data.of("train", role))
        place = data.of("validation", role)
        tifffile.imwrite(place, volume, photometric="minisblack", compression="zlib", metadata=None)


def scroll_renamed(data: Data) -> None:
    """One volume of PHerc-A is of "pherc a"."""
    place = data.folder / "train.csv"
    with place.open(newline="") as file:
        rows = list(csv.reader(file))
    row = next(row for row in rows if row[1] == "PHerc-A")
    row[1] = "pherc a"
    with place.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def ignored_as(value: int) -> Change:
    return lambda label: np.where(label == 2, value, label).astype(np.uint8)


def colours(data: Data) -> None:
    place = data.of("train", "image")
    volume = tifffile.imread(place)
    tifffile.imwrite(place, np.stack([volume] * 3, -1), photometric="rgb", metadata=None)


def moved(label: Array) -> Array:
    return np.roll(label, 6, 1)


def turned(label: Array) -> Array:
    return np.where(label < 2, 1 - label, 2).astype(np.uint8)


def with_nan(image: Array) -> Array:
    image = image.astype(np.float32)
    image[3, 3, 3] = np.nan
    return image


VESUVIUS = [
    DataFault("a training volume again in validation, compressed", "copies", volume_again, REFUSED),
    DataFault("a volume is cut short", "decode", cut_short("image"), REFUSED),
    DataFault("NaN in a volume of floats", "decode", volumes("image", with_nan), REFUSED),
    DataFault("a volume in colours", "decode", colours, REFUSED),
    DataFault("a label lacks a slice", "decode", volumes("label", lambda label: label[:-1]), REFUSED),
    DataFault("all of a label is ignored", "decode", volumes("label", lambda y: np.full_like(y, 2)), REFUSED),
    DataFault(
        "8 bits in a file of 16", "decode", volumes("image", lambda image: image.astype(np.uint16)), REFUSED
    ),
    DataFault("dark half of a scan is clipped", "clipped", volumes("image", lambda x: np.where(x < 110, 0, x - 110))),
    DataFault("a scan of a dozen grey values", "intensity", volumes("image", lambda image: image // 20)),
    DataFault(
        "no label is ignored: background where nobody looked", "ignore",
        each(*(volumes("label", ignored_as(0), side, EVERY) for side in ("train", "validation"))),
    ),
    DataFault(
        "the validation's ignored voxels are background", "ignore", volumes("label", ignored_as(0), "validation", EVERY)
    ),
    DataFault(
        "no surface in the validation's labels", "classes",
        volumes("label", lambda y: np.where(y == 1, 0, y).astype(np.uint8), "validation", EVERY),
    ),
    DataFault("a label moved by 6 voxels", "shift", volumes("label", moved)),
    DataFault("surface and background exchanged", "label", volumes("label", turned)),
    DataFault(
        "labels of two volumes exchanged", "shift", exchanged("label"),
        missed="nowhere does the other's label fit, and that a label fits its image badly is said of darker ones alone",
    ),
    DataFault("a scroll under two names", "scrolls", scroll_renamed),
]  # fmt: skip

# ---------------------------------------------------------------- dinocell


def fields(change: Change, which: slice = slice(1), channels: slice = EVERY) -> Callable[[Data], None]:
    """Other pixels in some training fields' channels."""

    def damage(data: Data) -> None:
        for record in data.sides["train"][which]:
            for place in list(record.files.values())[channels]:
                image = change(tifffile.imread(place))
                tifffile.imwrite(place, image, compression="zlib", metadata=None)

    return damage


def field_again(data: Data) -> None:
    first, second = data.sides["train"][0], data.sides["validation"][0]
    for name, place in first.files.items():
        tifffile.imwrite(second.files[name], tifffile.imread(place), photometric="minisblack", metadata=None)


def plate_renamed(data: Data) -> None:
    """The wells of the plate BR0101's last rows are of a plate BR-0101."""
    (images,) = data.folder.rglob("BR0101__*/Images")
    other = images.parents[1] / images.parent.name.replace("BR0101", "BR-0101") / "Images"
    other.mkdir(parents=True)
    for place in [*images.glob("r03*"), *images.glob("r04*")]:
        place.rename(other / place.name)


def labels_by_plate(data: Data) -> None:
    """Each plate has treatments of its own: no score can tell them from the plates."""
    place = data.folder / "labels.csv"
    with place.open(newline="") as file:
        header, *rows = csv.reader(file)
    with place.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *([*row[:2], f"{row[2]}-{row[0]}"] for row in rows)])


def many_cut_short(data: Data) -> None:
    for record in data.sides["train"][1:10]:
        cut(next(iter(record.files.values())))


def channel_twice(data: Data) -> None:
    first, second, *_ = data.sides["train"][0].files.values()
    second.write_bytes(first.read_bytes())


def scaled_up(image: Array) -> Array:
    """8 bits, spread over 16."""
    return np.rint(image / image.max() * 255).astype(np.uint16) * 257


def to_byte(image: Array) -> Array:
    return np.rint(image / image.max() * 255).astype(np.uint8)


def blurred(image: Array) -> Array:
    """Out of focus; the camera's noise stays."""
    noise = np.random.default_rng(0).normal(0, 4, image.shape)
    return (ndimage.gaussian_filter(image.astype(float), 6) + noise).clip(0).astype(np.uint16)


def noise(image: Array) -> Array:
    return np.random.default_rng(0).normal(image.mean(), 20, image.shape).clip(0).astype(np.uint16)


def too_bright(image: Array) -> Array:
    return np.minimum(image, int(np.quantile(image, 0.9)))


DINOCELL = [
    DataFault("a training field again in validation, not compressed", "copies", field_again, REFUSED),
    DataFault("a field of 8 bits among 16", "depth", fields(to_byte), REFUSED),
    DataFault("nine images are cut short", "decode", many_cut_short, REFUSED),
    DataFault("an image in colours", "decode", fields(lambda x: np.stack([x] * 3, -1), channels=slice(1))),
    DataFault(
        "a channel's image is missing", "decode", lambda data: list(data.sides["train"][0].files.values())[1].unlink()
    ),
    DataFault("one channel's image is another's", "channels", channel_twice),
    DataFault("8 bits scaled up to 16", "depth", fields(scaled_up)),
    DataFault("values × 1/100", "depth", fields(lambda image: image // 100)),
    DataFault("a field out of focus", "focus", fields(blurred)),
    DataFault("a field without cells", "empty", fields(noise)),
    DataFault("a saturated field", "saturated", fields(too_bright)),
    DataFault("a field of another size", "size", fields(lambda image: image[:112, :112])),
    DataFault("treatments of one plate each", "labels", labels_by_plate),
    DataFault(
        "a plate under two names", "groups", plate_renamed, settings={"data.split": "group:source_1/Batch01/BR0101"}
    ),
]  # fmt: skip
