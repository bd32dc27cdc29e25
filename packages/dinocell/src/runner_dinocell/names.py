"""Names of image files: plate, well, site and channel; source and batch if the folders name them.

source_4/images/Batch1/images/BR0017__2021-05/Images/r01c13f02p01-ch1sk1fk1fl1.tiff   Opera Phenix, as in JUMP-CP
Dest210531_A14_T0001F001L01A01Z01C01.tif                                              Yokogawa CV7000, CV8000
plate1_A14_site1_Ch1.tif                                                              well, site and channel in words
BR0017_A14_s1_w1051DAA7C-7042-435F-99F0-1E847D9B42CB.tif                              ImageXpress
"""

from __future__ import annotations

import functools
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from runner_core import BadInput, Pattern, did_you_mean

SCHEMES = (
    "[source/images/batch/images/]PLATE/Images/r01c01f01p01-ch1sk1fk1fl1.tiff, PLATE_A01_T0001F001L01A01Z01C01.tif, "
    "PLATE_A01_site1_Ch1.tif or PLATE_A01_s1_w1.tif"
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
_YOKOGAWA = re.compile(
    r"(?P<plate>.+)_(?P<well>[a-z]{1,2}\d{2})_T\d+F(?P<site>\d+)L\d+A\d+Z\d+C(?P<channel>\d+)\.tiff?", re.IGNORECASE
)
_PLATE_TYPE = re.compile(r"(?:^|/)AssayPlate_[^/]*$", re.IGNORECASE)
"""Yokogawa's name for a kind of plate, such as AssayPlate_Greiner_#655090, which all plates of a study may share."""
_JUMP_STAINS, _JUMP_LIGHT = {"1", "2", "3", "4", "5"}, {"6", "7", "8"}
_LIGHT = re.compile(r"bright|transmi|phase|(?:^|[^a-z])(?:bf|dic|tl|ph)(?:$|[^a-z])", re.IGNORECASE)
_WORDS = re.compile(
    r"(?P<plate>.+)_(?P<well>[a-z]{1,2}\d{1,2})_(?:site|s)(?P<site>\d+)_"
    r"(?:ch(?P<ch>\w+)|w(?P<w>\d)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?)\.tiff?",
    re.IGNORECASE,
)


FieldName = tuple[str, str, str, str, str]
"""source, batch, plate, well and site of a field."""


class Name(NamedTuple):
    """Parts of an image's name; source and batch are empty if they are not known."""

    source: str
    batch: str
    plate: str
    well: str
    site: str
    channel: str


_SEARCH, _SEARCHES, _QUICK = 2.0, 30.0, 0.001
"""Seconds that one search of the user's pattern may take, and all together; shorter ones do not count."""

_PART = re.compile(r"\{[A-Za-z_]\w*\}")
"""{plate} and the like, which matches itself in a regular expression."""

Reader = Callable[[str, str], Name | None]
"""(folder of the data, path of a file below it) → the name they give, None for a file that is no image."""


def known(root: str, path: str) -> Name | None:
    """Read a name by the known schemes.

    The folders above the data count too: they may be one plate's.

    >>> known("plates", "plate1_a3_site2_Ch1.tif")
    Name(source='', batch='', plate='plate1', well='A03', site='2', channel='1')
    """
    folder, _, file = path.rpartition("/")
    source, batch, plate = _plate(f"{root}/{folder}".rstrip("/"))
    if found := _PHENIX.fullmatch(file):
        place = f"{_letters(int(found['row']))}{int(found['column']):02d}"
        return Name(source, batch, plate, place, number(found["site"]), number(found["channel"]))
    if found := _YOKOGAWA.fullmatch(file):
        if _PLATE_TYPE.match(found["plate"]):
            source, batch, plate = _plate(_PLATE_TYPE.sub("", f"{root}/{folder}".rstrip("/")))
        else:
            plate = found["plate"]
        return Name(source, batch, plate, well(found["well"]), number(found["site"]), number(found["channel"]))
    if found := _WORDS.fullmatch(file):
        channel = found["ch"] or found["w"]
        return Name(source, batch, found["plate"], well(found["well"]), number(found["site"]), number(channel))
    return None


@functools.cache  # as many folders as plates, and a thousand times the images
def _plate(folder: str) -> tuple[str, str, str]:
    """Return source, batch and plate of the images in a folder."""
    found = _PHENIX_FOLDER.search(folder)
    return (found["source"] or "", found["batch"] or "", found["plate"]) if found else ("", "", "")


def own(pattern: str) -> Reader:
    """Return a reader of the user's own pattern (`data.pattern`), searched in paths below the data.

    A regular expression has groups, (?P<plate>…). A pattern without any has the form that all projects use, such as
    {plate}/{well}_s{site}_{channel}.tif (`runner_core.data.pairs.Pattern`). Raises BadInput for a mixture of the two,
    and for a pattern that lacks a part.
    """
    groups_named = "(?P<" in pattern
    if groups_named and (part := _PART.search(pattern)):
        raise BadInput(
            f"data.pattern {pattern[:200]!r} has both {part[0]} and groups (?P<…>…): write all parts in one of the two "
            "ways"
        )
    if not groups_named:
        names = Pattern(pattern, (*_REQUIRED, *_OPTIONAL), _REQUIRED, "data.pattern")
        return lambda root, path: _name(names.match(path) or {})
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        raise BadInput(f"data.pattern {pattern[:200]!r} is no regular expression: {error}") from error
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

    left = _SEARCHES

    def read(root: str, path: str) -> Name | None:
        nonlocal left
        begun = time.monotonic()
        with _no_longer_than(min(_SEARCH, left), f"data.pattern {pattern!r} takes for ever to search {path}"):
            found = compiled.search(path)
        left -= max(0.0, time.monotonic() - begun - _QUICK)
        return _name(found.groupdict() if found else {})

    return read


def _name(parts: Mapping[str, str | None]) -> Name | None:
    """Return the `Name` made of these parts; None if a required one is missing."""
    values = {name: parts.get(name) or "" for name in (*_REQUIRED, *_OPTIONAL)}
    if not all(values[name] for name in _REQUIRED):
        return None
    place, site, channel = well(values["well"]), number(values["site"]), number(values["channel"])
    return Name(values["source"], values["batch"], values["plate"], place, site, channel)


@contextmanager
def _no_longer_than(seconds: float, fault: str) -> Iterator[None]:
    """Raise BadInput if the with-block takes longer.

    A search looks at signals, which reach the main thread only: in other threads nothing ends it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise BadInput(
            f"{fault}: more than {seconds:.1g} s. Parts that repeat within parts that repeat, such as (a+)+, do so: "
            "give each a definite end, such as [^/_]+_, or list the images in a table (data.manifest)."
        )

    handler, timer = signal.signal(signal.SIGALRM, end), signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def well(text: str) -> str:
    """Return a well's name in the common form; text that is not letters and a number stays as it is.

    >>> well("a3"), well("B012"), well("centre")
    ('A03', 'B12', 'centre')
    """
    found = re.fullmatch(r"([A-Za-z]{1,2})(\d+)", text.strip())
    return f"{found[1].upper()}{int(found[2]):02d}" if found else text.strip()


def number(text: str) -> str:
    """Return a number without leading zeros and without the .0 of tables; other text stays as it is.

    >>> number("01"), number("3.0"), number("DNA")
    ('1', '3', 'DNA')
    """
    found = re.fullmatch(r"0*(\d+)(?:\.0)?", text.strip())
    return found[1] if found else text.strip()


def transmitted(channels: set[str], files: Iterable[str]) -> set[str]:
    """Return the channels of transmitted light (brightfield, phase contrast, DIC), beside fluorescence.

    If the data set has no other channels, none is returned. Names show it; Opera Phenix has numbers, and JUMP Cell
    Painting's plates have brightfield in 6 to 8 after five stains. `files` are names of image files, at least one of
    each microscope.

    >>> transmitted({"DNA", "Brightfield_H"}, []), transmitted({"1", "2", "6"}, ["r01c01f01p01-ch1sk1fk1fl1.tiff"])
    ({'Brightfield_H'}, set())
    """
    light = {name for name in channels if _LIGHT.search(name)}
    extra = channels - _JUMP_STAINS
    if channels > _JUMP_STAINS and extra <= _JUMP_LIGHT and all(_PHENIX.fullmatch(file) for file in files):
        light |= extra
    return set() if light == channels else light


def in_order(channels: set[str]) -> tuple[str, ...]:
    """Return channels in the order of their names, numbers in them as numbers.

    >>> in_order({"10", "9", "DNA"})
    ('9', '10', 'DNA')
    """

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", name.casefold())
        return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts if part]

    return tuple(sorted(channels, key=lambda name: (key(name), name)))


def _letters(row: int) -> str:
    """Return the row of a plate in letters: 1 is A, 27 is AA."""
    return chr(64 + row) if row <= 26 else "A" + chr(64 + row - 26)
