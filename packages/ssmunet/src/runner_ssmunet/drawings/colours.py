"""Colour pictures (PNG, TIFF): a table says which colour is which class."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core import BadInput, counted, first_few, read_table, refuse_long_file, refuse_special_file

from runner_ssmunet.drawings.landmarks import Remark

Array = np.ndarray[Any, np.dtype[Any]]
Colour = tuple[int, int, int]

PICTURES = (".png", ".tif", ".tiff")
TABLES = ("colours.csv", "colours.json", "classes.csv")
"""Tables of colours, beside a picture or in a folder above it; the last one is that of the classes."""
_LEVELS = 6
"""Folders that are searched for a table: the picture's own and those above it."""
_TOLERANCE = 10
"""Largest difference, in each of red, green and blue, from a colour of the table that is still that colour."""
_BORDER = 2
"""Width (pixels) of the mixed colours where two areas meet."""
_MOST = 50_000
"""Most colours of a picture of areas, smoothed borders included. A photograph has more."""
_EXAMPLE = "It needs the columns colour (#rrggbb) and name, and a row for each colour."
_BAD_PICTURE = (
    OSError, SyntaxError, ValueError, OverflowError, MemoryError, Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Class names by colour, "" for a colour that stands for unannotated pixels."""

    colours: Mapping[Colour, str]
    path: Path


def colour_of(text: str) -> Colour | None:
    """Return the colour #rrggbb, None for anything else."""
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", text):
        return None
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def is_coloured(path: Path) -> bool:
    """Return whether a picture has colours, and not numbers (one channel, or a palette's indices)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(refuse_special_file(path)) as image:
                return image.mode in ("RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
    except _BAD_PICTURE:
        return False  # whoever reads it says what is wrong


def picture(path: Path) -> tuple[str, Array]:
    """Return mode and pixels of a picture. Raises BadInput naming it."""
    kind = "PNG" if path.suffix.lower() == ".png" else "TIFF"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(refuse_special_file(path))
        with image:
            return image.mode, np.asarray(image.convert("RGBA") if is_coloured(path) else image)
    except _BAD_PICTURE as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BadInput(f"{path}: not a readable {kind} file ({first}). Save it again.") from error


def table_of(path: Path) -> Table:
    """Return the table of colours that is nearest to a picture. Raises BadInput if there is none, or two in a folder.

    That of the classes counts if it has colours and no other table lies in its folder.
    """
    for folder in (path.absolute().parent, *path.absolute().parents[1:_LEVELS]):
        there = [folder / name for name in TABLES if (folder / name).is_file()]
        own = [file for file in there if file.name != TABLES[-1]]
        if len(own) > 1:
            raise BadInput(f"{folder}: two tables of colours: {own[0].name} and {own[1].name}. Remove one.")
        for file in own or there:
            colours = _json(file) if file.suffix == ".json" else _csv(file)
            if any(colours.values()):
                return Table(colours, file)
            if own:
                raise BadInput(f"{file}: it gives no colour to any class. {_EXAMPLE}")
    raise BadInput(
        f"{path}: a colour picture (RGB); class numbers 0, 1, … in one channel of 8 bits are needed, or a table of its "
        "colours in this folder or one above it: colours.csv with the columns colour,name (#ff0000,tumour; an empty "
        'name for unannotated pixels), colours.json ({"#ff0000": "tumour"}), or the column colour of classes.csv. To '
        "save numbers: rgb = np.asarray(Image.open(path).convert('RGB')); y = np.zeros(rgb.shape[:2], "
        "np.uint8); y[(rgb == (255, 0, 0)).all(-1)] = 1 and so on; Image.fromarray(y).save(path)."
    )


def read(path: Path) -> tuple[Array, tuple[str, ...], tuple[Remark, ...]]:
    """Return labels (h, w), 1 + the place in the names, the names, and what was not taken as it is.

    A colour of the table, or one that differs a little from it, is its class. A mixture of two of them, at most two
    pixels from either, is the smoothed border of an area: unannotated, as are transparent pixels. Raises BadInput with
    all other colours and their numbers of pixels.
    """
    table = table_of(path)
    names = tuple(dict.fromkeys(name for name in table.colours.values() if name))
    rgba = picture(path)[1]
    found, which, counts = np.unique(_packed(rgba), return_inverse=True, return_counts=True)
    if len(found) > _MOST:
        raise BadInput(
            f"{path}: {len(found)} colours: this is a photograph. A picture of labels has a colour for each class of "
            f"{table.path}. If it is one, save it again as PNG, not by way of a JPEG."
        )
    which, seen = which.reshape(rgba.shape[:2]), _unpacked(found)
    known = np.array([*table.colours], np.int64)
    meaning = np.array([names.index(name) + 1 if name else 0 for name in table.colours.values()])
    distance = np.abs(seen[:, None] - known).max(-1)
    transparent = found < 0
    near = transparent | (distance.min(1) <= _TOLERANCE)
    label = np.where(transparent | ~near, 0, meaning[distance.argmin(1)])
    border = ~near & _mixed(seen, known)
    unsure = border[which]
    if unsure.any():
        unsure &= _dilated(near[which])
    unknown = ~near[which] & ~unsure
    if unknown.any():
        raise BadInput(_unknown(path, table, seen, np.bincount(which[unknown], minlength=len(seen))))
    remarks: list[Remark] = [("note", f"{path.name}: colours by {table.path}")]
    if unsure.any():
        text = f"{counted(int(unsure.sum()), 'pixel')} of mixed colours on the borders of areas: unannotated"
        remarks.append(("note", f"{path.name}: {text}"))
    off = int(counts[near & ~transparent & (distance.min(1) > 0)].sum())
    if off:
        text = f"{counted(off, 'pixel')} of a colour that differs by up to {_TOLERANCE}: taken for the nearest one"
        remarks.append(("note", f"{path.name}: {text}"))
    return label[which].astype(np.int64), names, tuple(remarks)


def _packed(rgba: Array) -> Array:
    """Return one number for each pixel, −1 for a transparent one."""
    wide = rgba.astype(np.int64)
    colour = (wide[..., 0] << 16) + (wide[..., 1] << 8) + wide[..., 2]
    return np.where(rgba[..., 3] < 128, -1, colour)


def _unpacked(numbers: Array) -> Array:
    return np.stack([numbers >> shift & 255 for shift in (16, 8, 0)], -1)


def _mixed(seen: Array, known: Array) -> Array:
    """Return which colours lie on the straight line between two of: a colour of the table, white, black.

    Areas on an empty ground are smoothed into it too.
    """
    ends = np.unique(np.concatenate([known, [[255, 255, 255], [0, 0, 0]]]), axis=0)
    mixed = np.zeros(len(seen), bool)
    for one, two in combinations(ends, 2):
        way = (two - one).astype(float)
        share = np.clip((seen - one) @ way / (way @ way), 0, 1)
        mixed |= np.abs(seen - one - share[:, None] * way).max(-1) <= _TOLERANCE
    return mixed


def _dilated(mask: Array) -> Array:
    from scipy import ndimage

    return np.asarray(ndimage.binary_dilation(mask, np.ones((3, 3), bool), iterations=_BORDER))


def _unknown(path: Path, table: Table, seen: Array, counts: Array) -> str:
    most = sorted(np.flatnonzero(counts), key=lambda place: -counts[place])
    shown = [f"#{seen[n][0]:02x}{seen[n][1]:02x}{seen[n][2]:02x} ({counted(int(counts[n]), 'pixel')})" for n in most]
    return (
        f"{path}: {counted(len(most), 'colour')} that {table.path} does not name: {first_few(shown)}. Add "
        f"{'it' if len(most) == 1 else 'them'} (with an empty name for unannotated pixels), or repaint "
        f"{'it' if len(most) == 1 else 'them'}."
    )


def _csv(path: Path) -> dict[Colour, str]:
    """Return the colours of a CSV file. In the table of the classes, label 0 and rows without a colour count too."""
    table = read_table(path, _EXAMPLE)
    texts = table.column("colour", "color")
    names = table.column("name", "class")
    if texts is None or names is None:
        if path.name == TABLES[-1]:
            return {}
        raise BadInput(f"{path}: it has no column {'colour' if texts is None else 'name'}. {_EXAMPLE}")
    labels: Sequence[str] = (table.column("label") if path.name == TABLES[-1] else None) or [""] * len(names)
    rows = [
        (text, "" if label == "0" else name, f"line {line}")
        for text, name, label, line in zip(texts, names, labels, table.lines, strict=True)
        if text or path.name != TABLES[-1]
    ]
    return _colours(rows, path)


def _json(path: Path) -> dict[Colour, str]:
    try:
        found = json.loads(refuse_long_file(path, 1_000_000, "a table of colours").read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not a readable JSON file ({error}). Write it again.") from error
    if not isinstance(found, dict) or not all(name is None or isinstance(name, str) for name in found.values()):
        raise BadInput(f'{path}: an object of names by colour is needed: {{"#ff0000": "tumour", "#ffffff": null}}.')
    return _colours([(colour, name or "", repr(colour)) for colour, name in found.items()], path)


def _colours(rows: Sequence[tuple[str, str, str]], path: Path) -> dict[Colour, str]:
    colours: dict[Colour, str] = {}
    for text, name, where in rows:
        colour = colour_of(text)
        if colour is None:
            raise BadInput(f"{path}: {where}: '{text}' is no colour; write #rrggbb (red is #ff0000).")
        if colour in colours:
            raise BadInput(f"{path}: {where}: the colour {text} comes twice. Remove one.")
        colours[colour] = name.strip()
    return colours
