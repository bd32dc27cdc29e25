"""Guess plate, well, site and channel of images whose names follow no known scheme (`runner dinocell init-data`)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from runner_core import GuessedTable, counted, first_few, split_of_folder, walk

from runner_dinocell import names
from runner_dinocell.names import Name, number, well

_PLAIN = re.compile(r"images?|tiffs?|raw|data|train\w*|val\w*|test\w*|wells?|sites?|fields?", re.IGNORECASE)
"""Names of folders that say nothing of a plate."""
_JOINED = re.compile(r"(?i)\b(site|field|fov|position|pos|channel|ch|well|plate)[-_ ]+(?=[a-z]?\d+(?![a-z\d]))")
"""A word and the number that belongs to it: field_2."""
_WELL = re.compile(r"(?:well)?([A-P]|A[A-F])(\d{1,2})", re.IGNORECASE)
_ROW_COLUMN = re.compile(r"r(\d{1,2})c(\d{1,2})", re.IGNORECASE)
_SITE = re.compile(r"(?:site|field|fov|position|pos|f|s)(\d+)", re.IGNORECASE)
_CHANNEL = re.compile(
    r"(?:channel|ch|c|w)(\d+)|(dapi|hoechst\w*|dna|er|rna|agp|mito\w*|actin|phalloidin|wga|syto\w*|con[ca]\w*|tubulin|"
    r"[gyrb]fp|mcherry|fitc|tritc|txred|texasred|cy[357]|alexa\w*|bf|brightfield|phase|dic)",
    re.IGNORECASE,
)

_DOUBTFUL = {"p": 1, "c": 1, "f": 2}
"""Letters that mean a plate, a channel or a field at least as often as a row of wells."""


def guess(root: Path) -> GuessedTable:
    """Guess the parts of the names of all TIFF files below `root`."""
    found: dict[Name, Path] = {}
    left_out: defaultdict[str, list[Path]] = defaultdict(list)
    for folder, _, files in walk(root):
        for path in (folder / name for name in files):
            if not path.name.lower().endswith(names.SUFFIXES):
                left_out["not of a format that this project reads"].append(path)
                continue
            below = path.relative_to(root)
            name = names.known(str(root.resolve()), below.as_posix()) or read(below, root.resolve().name)
            if name is None:
                left_out["no part of the name is a well, such as B03"].append(path)
            elif found.setdefault(name, path) != path:
                left_out["another image of one channel of a field (a plane, or a time?)"].append(path)
    return _table(root, found, left_out)


def read(path: Path, root: str) -> Name | None:
    """Return the parts of a path below a folder named `root`; None if no well is in it.

    >>> read(Path("BR7/b3/field_2-DAPI.tif"), "screen")
    Name(source='', batch='', plate='BR7', well='B03', site='2', channel='DAPI')
    >>> read(Path("exp4 C05 f01 c2.tif"), "screen")
    Name(source='', batch='', plate='exp4', well='C05', site='1', channel='2')
    """
    words = [[*filter(None, re.split(r"[-_.\s]+", _JOINED.sub(r"\1", part)))] for part in (*path.parts[:-1], path.stem)]
    *folders, own = words
    place = _take_well(own) or next((found for folder in reversed(folders) if (found := _take_well(folder))), None)
    if place is None:
        return None
    folders = [[word for word in folder if well(word) != place] for folder in folders]
    site = _take(own, _SITE) or next((found for folder in reversed(folders) if (found := _take(folder, _SITE))), "1")
    channel = _take(own, _CHANNEL) or next((f for folder in reversed(folders) if (f := _take(folder, _CHANNEL))), "")
    channel = channel or (own.pop() if len(own) > 1 or (own and folders) else "1")
    plates = ["_".join(folder) for folder in reversed(folders) if folder and not _PLAIN.fullmatch("_".join(folder))]
    return Name("", "", (plates or ["_".join(own) or root])[0], place, number(site), number(channel))


def _take_well(words: list[str]) -> str | None:
    """Remove a well from the words, and return it; P1, c1 and f01 are wells only if no other word is one."""
    for n, word in enumerate(words):
        if found := _ROW_COLUMN.fullmatch(word):
            del words[n]
            return f"{chr(64 + int(found[1]))}{int(found[2]):02d}"
    places = [n for n, word in enumerate(words) if _WELL.fullmatch(word)]
    if not places:
        return None
    chosen = min(places, key=lambda n: (_DOUBTFUL.get(words[n][0].lower(), 0), len(words[n]) < 3, n))
    return well(re.sub(r"(?i)^well", "", words.pop(chosen)))


def _take(words: list[str], kind: re.Pattern[str]) -> str:
    """Remove the last word of this kind, and return its number or, without one, the word."""
    for n in reversed(range(len(words))):
        if found := kind.fullmatch(words[n]):
            del words[n]
            return found[1] or found[0]
    return ""


def _table(root: Path, found: dict[Name, Path], left_out: dict[str, list[Path]]) -> GuessedTable:
    splits = {path: split_of_folder(path, root) for path in found.values()}
    some = any(splits.values())
    order = sorted(found, key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in name])
    rows: list[dict[str, str | Path]] = [
        {
            **name._asdict(),
            "split": (splits[found[name]] or "train") if some else "",
            "path": found[name],
        }
        for name in order
    ]
    shown = [
        f"{found[n].relative_to(root)}: plate {n.plate}, well {n.well}, site {n.site}, channel {n.channel}"
        for n in order
    ]
    plates = sorted({"/".join(filter(None, name[:3])) for name in found})
    notes = [
        f"groups, which no split cuts: {len(plates):,} ({first_few(plates)}), guessed: the plates",
        f"channels: {', '.join(names.in_order({name.channel for name in found}))}",
    ]
    fields = counted(len({name[:5] for name in found}), "field")
    return GuessedTable(rows, "image", shown, notes, left_out, f" of {fields}")
