"""What the name of an image file says: plate, well, site and channel, and where its folders say them source and batch.

source_4/images/Batch1/images/BR0017__2021-05/Images/r01c13f02p01-ch1sk1fk1fl1.tiff   Opera Phenix, as in JUMP-CP
plate1_A14_site1_Ch1.tif                                                              well, site and channel in words
BR0017_A14_s1_w1051DAA7C-7042-435F-99F0-1E847D9B42CB.tif                              ImageXpress
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from runner_core._errors import BadInput, did_you_mean

SCHEMES = (
    "[source/images/batch/images/]PLATE/Images/r01c01f01p01-ch1sk1fk1fl1.tiff, PLATE_A01_site1_Ch1.tif or "
    "PLATE_A01_s1_w1.tif"
)
SUFFIXES = (".tif", ".tiff")
_REQUIRED = ("plate", "well", "site", "channel")
_OPTIONAL = ("source", "batch")
_PHENIX = re.compile(
    r"r(?P<row>\d+)c(?P<column>\d+)f(?P<site>\d+)p\d+-ch(?P<channel>\d+)sk\d+fk\d+fl\d+\.tiff?", re.IGNORECASE
)
_PHENIX_FOLDER = re.compile(
    r"(?:(?:^|/)(?P<source>[^/]+)/images/(?P<batch>[^/]+)/images/)?(?P<plate>[^/]+?)(?:__[^/]*)?(?:/Images)?$"
)
_WORDS = re.compile(
    r"(?P<plate>.+)_(?P<well>[a-z]{1,2}\d{1,2})_(?:site|s)(?P<site>\d+)_"
    r"(?:ch(?P<ch>\w+)|w(?P<w>\d)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?)\.tiff?",
    re.IGNORECASE,
)


FieldName = tuple[str, str, str, str, str]
"""source, batch, plate, well and site of a field."""


class Name(NamedTuple):
    """Of an image; source and batch are empty where nothing says them."""

    source: str
    batch: str
    plate: str
    well: str
    site: str
    channel: str


Reader = Callable[[str, str], Name | None]
"""(folder of the data, path of a file below it) → what the two say, None of a file that is no image."""


def known(root: str, path: str) -> Name | None:
    """Read by the known schemes. The folders above the data count too: they may be one plate's.

    >>> known("plates", "plate1_a3_site2_Ch1.tif")
    Name(source='', batch='', plate='plate1', well='A03', site='2', channel='1')
    """
    folder, _, file = path.rpartition("/")
    source, batch, plate = _plate(f"{root}/{folder}".rstrip("/"))
    if found := _PHENIX.fullmatch(file):
        place = f"{_letters(int(found['row']))}{int(found['column']):02d}"
        return Name(source, batch, plate, place, number(found["site"]), number(found["channel"]))
    if found := _WORDS.fullmatch(file):
        channel = found["ch"] or found["w"]
        return Name(source, batch, found["plate"], well(found["well"]), number(found["site"]), number(channel))
    return None


@functools.cache  # as many folders as plates, and a thousand times the images
def _plate(folder: str) -> tuple[str, str, str]:
    """source, batch and plate of the images in a folder."""
    found = _PHENIX_FOLDER.search(folder)
    return (found["source"] or "", found["batch"] or "", found["plate"]) if found else ("", "", "")


def own(pattern: str) -> Reader:
    """A reader of the user's own pattern (`data.pattern`), searched in paths below the data.

    Raises BadInput for what is no regular expression, and for one without the groups.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(f"data.pattern {pattern!r} is no regular expression: {error}") from error
    groups = list(compiled.groupindex)
    if missing := [name for name in _REQUIRED if name not in groups]:
        near = did_you_mean(missing[0], groups) or "."
        raise BadInput(
            f"data.pattern {pattern!r} has no group (?P<{missing[0]}>…){near} It needs "
            f"{', '.join(_REQUIRED)}, and may have {' and '.join(_OPTIONAL)}."
        )
    if odd := [name for name in groups if name not in (*_REQUIRED, *_OPTIONAL)]:
        near = did_you_mean(odd[0], (*_REQUIRED, *_OPTIONAL)) or "."
        raise BadInput(f"data.pattern {pattern!r}: unknown group (?P<{odd[0]}>…){near}")

    def read(root: str, path: str) -> Name | None:
        found = compiled.search(path)
        said = found.groupdict() if found else {}
        if not all(said.get(name) for name in _REQUIRED):
            return None
        source, batch = (said.get(name) or "" for name in _OPTIONAL)
        place, site, channel = well(said["well"]), number(said["site"]), number(said["channel"])
        return Name(source, batch, said["plate"], place, site, channel)

    return read


def well(text: str) -> str:
    """A well's name as all have it; what is none of letters and a number stays as it is.

    >>> well("a3"), well("B012"), well("centre")
    ('A03', 'B12', 'centre')
    """
    found = re.fullmatch(r"([A-Za-z]{1,2})(\d+)", text.strip())
    return f"{found[1].upper()}{int(found[2]):02d}" if found else text.strip()


def number(text: str) -> str:
    """A number without leading zeros, and without the .0 that tables give it; other text stays as it is.

    >>> number("01"), number("3.0"), number("DNA")
    ('1', '3', 'DNA')
    """
    found = re.fullmatch(r"0*(\d+)(?:\.0)?", text.strip())
    return found[1] if found else text.strip()


def in_order(channels: set[str]) -> tuple[str, ...]:
    """Channels in the order of their names, numbers in them as numbers.

    >>> in_order({"10", "9", "DNA"})
    ('9', '10', 'DNA')
    """

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", name.casefold())
        return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts if part]

    return tuple(sorted(channels, key=lambda name: (key(name), name)))


def _letters(row: int) -> str:
    """Row of a plate by letters: 1 is A, 27 is AA."""
    return chr(64 + row) if row <= 26 else "A" + chr(64 + row - 26)
