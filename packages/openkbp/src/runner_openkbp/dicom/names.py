"""Names of contoured structures: which one is which region of the network, and what was prescribed to a target."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner_core import BadInput, did_you_mean, read_yaml, refuse_long_file

from runner_openkbp.rois import MASKS, OARS, POSSIBLE, ROIS, TARGETS
from runner_openkbp.roles import role_of

BODY = "body"
"""Name of the patient's outline in tables."""
OFF_LEVEL = 1.5
"""Largest difference (Gy) between a prescription and the level that the network knows (70, 63, 56)."""
EXAMPLE = "rois: {PTV70: [ptv_high.*], body: [external]}, prescriptions: {PTV_High: 70}, ignore: [couch.*]"
_MOST_BYTES = 100_000
_OUTLINES = {"body", "external", "skin", "outline", "patient", "patientoutline", "externe", "aussenkontur"}
_LEVEL = re.compile(
    r"ptv[ _-]?(?:(?:p|n|ln|tumou?r|nodes?|high|mid|low|l|r)[ _-]?)?(\d{2}(?:\.\d+)?|\d{4})(?:[ _-]?c?gy)?"
)
"""A target with its dose in Gy (two digits) or cGy (four): PTV70, PTV_7000, PTVn_56, PTV_High_6996."""


@dataclass(frozen=True)
class Structure:
    """A structure of an RT Structure Set: number, name, and its interpreted type ("EXTERNAL", "PTV", …)."""

    number: int
    name: str
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A clinic's names of its structures: patterns by region, prescriptions (Gy) by pattern, names to leave out."""

    patterns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prescriptions: Mapping[str, float] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    path: Path | None = None


@dataclass(frozen=True)
class Named:
    """Structures by region (targets may have several), that of the body, and sentences about the rest."""

    rois: dict[str, tuple[Structure, ...]]
    body: Structure | None
    unused: tuple[Structure, ...]
    missing: tuple[str, ...]


# ---------------------------------------------------------------- tables


def read_table(path: Path | None) -> Table:
    """Read a table of names: YAML, or CSV with the columns roi, pattern and optionally gy.

    Raises BadInput that names the file, the entry and the remedy.
    """
    if path is None:
        return Table()
    if not path.is_file():
        raise BadInput(f"{path}: no such file; data.names is a table of structures' names. Example: {EXAMPLE}")
    found = _from_csv(path) if path.suffix.lower() in (".csv", ".tsv") else read_yaml(path, "table of names")
    if not isinstance(found, Mapping) or (strange := sorted({*map(str, found)} - {"rois", "prescriptions", "ignore"})):
        what = f"its key {strange[0]!r} is unknown" if isinstance(found, Mapping) else "it is no mapping"
        raise BadInput(f"{path}: {what}. Example: {EXAMPLE}")
    patterns = {str(roi): _texts(path, roi, own) for roi, own in _mapping(path, found, "rois").items()}
    if unknown := sorted({*patterns} - {*MASKS, BODY}):
        known = (*MASKS, BODY)
        raise BadInput(
            f"{path}: {unknown[0]} is no region{did_you_mean(unknown[0], known)}. They are {', '.join(known)}"
        )
    doses = {str(name): _gy(path, name, gy) for name, gy in _mapping(path, found, "prescriptions").items()}
    ignore = _texts(path, "ignore", found.get("ignore") or [])
    for text in (*(p for own in patterns.values() for p in own), *doses, *ignore):
        _compiled(path, text)
    return Table(patterns, doses, ignore, path)


def _mapping(path: Path, found: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    value = found.get(key) or {}
    if not isinstance(value, Mapping):
        raise BadInput(f"{path}: {key} is no mapping of names. Example: {EXAMPLE}")
    return value


def _texts(path: Path, name: Any, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise BadInput(f"{path}: {name} needs a pattern or a list of them. Example: {EXAMPLE}")
    return tuple(values)


def _gy(path: Path, name: Any, value: Any) -> float:
    try:
        gy = float(value)
    except (TypeError, ValueError):
        gy = -1.0
    if not 0 < gy <= 100:
        raise BadInput(f"{path}: the prescription of {name} is {value!r}, not a dose in Gy between 0 and 100 (cGy?)")
    return gy


def _from_csv(path: Path) -> dict[str, Any]:
    """Return the content of a CSV table in the form of the YAML table."""
    try:
        text = refuse_long_file(path, _MOST_BYTES, "a table of names").read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text in UTF-8 ({error})") from error
    lines = list(csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    rois: dict[str, list[str]] = {}
    doses: dict[str, str] = {}
    ignore: list[str] = []
    for number, line in enumerate(lines, 2):
        roi, pattern = (line.get("roi") or "").strip(), (line.get("pattern") or "").strip()
        if not pattern:
            raise BadInput(f"{path}: line {number} has no pattern; the columns are roi, pattern and, for targets, gy")
        if gy := (line.get("gy") or "").strip():
            doses[pattern] = gy
        if roi == "ignore":
            ignore.append(pattern)
        elif roi:
            rois.setdefault(roi, []).append(pattern)
    return {"rois": rois, "prescriptions": doses, "ignore": ignore}


def _compiled(path: Path | None, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise BadInput(f"{path}: {text!r} is no regular expression: {error}") from error


# ---------------------------------------------------------------- names to regions


def assign(structures: Sequence[Structure], table: Table, planned: Mapping[int, float], where: str) -> Named:
    """Return which structure is which region.

    A table's pattern (whole name, letters of any size) comes before a known name. A target's prescription is the
    table's, the plan's (`planned`, Gy by number of the structure) or the number in its name. Raises BadInput, which
    begins with `where`, if two structures are one organ, if no target is found, or if a prescription is not known or
    none of the network's levels.
    """
    found: dict[str, list[Structure]] = {}
    unused: list[Structure] = []
    for structure in structures:
        roi = None if _matches(table, table.ignore, structure.name) else _region(structure, table, planned, where)
        if roi is None:
            unused.append(structure)
        else:
            found.setdefault(roi, []).append(structure)
    for roi in (*OARS, POSSIBLE, BODY):
        if len(own := found.get(roi, [])) > 1:
            both = " and ".join(repr(s.name) for s in own)
            raise BadInput(f"{where}: {both} are both its {roi}; say which in data.names (rois: {{{roi}: NAME}})")
    names = [s.name for s in unused]
    if not any(roi in found for roi in TARGETS):
        hint = did_you_mean("PTV70", names) or f"; its structures are {', '.join(s.name for s in structures) or 'none'}"
        raise BadInput(f"{where}: no structure is a target{hint}. Name them in data.names, as {EXAMPLE}")
    missing = tuple(f"{roi}{did_you_mean(roi, names)}" for roi in ROIS if roi not in found)
    body = found.pop(BODY, [None])[0]
    return Named({roi: tuple(found[roi]) for roi in MASKS if roi in found}, body, tuple(unused), missing)


def _matches(table: Table, patterns: Sequence[str], name: str) -> bool:
    return any(_compiled(table.path, text).fullmatch(name.strip()) for text in patterns)


def _region(structure: Structure, table: Table, planned: Mapping[int, float], where: str) -> str | None:
    name = structure.name.strip()
    for roi, patterns in table.patterns.items():
        if _matches(table, patterns, name):
            return roi
    for text, gy in table.prescriptions.items():
        if _matches(table, [text], name):
            return _target(gy, name, where)
    if structure.number in planned and (structure.kind == "PTV" or name.lower().startswith("ptv")):
        return _target(planned[structure.number], name, where)
    if known := role_of(name):
        if known in TARGETS and not any(letter.isdigit() for letter in name):
            raise BadInput(
                f"{where}: the prescription of {name} is not known. Export the RT Plan too, or name it in data.names "
                f"(prescriptions: {{{name}: GY}}; ignore: [{name}] leaves it out)"
            )
        return known if known in MASKS else None
    if level := _LEVEL.fullmatch(name.lower()):
        dose = float(level[1])
        return _target(dose / 100 if dose > 100 else dose, name, where)
    outline = re.sub(r"[^a-z]", "", name.lower()) in _OUTLINES
    return BODY if outline or structure.kind == "EXTERNAL" else None


def _target(gy: float, name: str, where: str) -> str:
    """Return the network's target whose level is nearest to a prescription."""
    roi = min(TARGETS, key=lambda target: abs(gy - float(target[3:])))
    if abs(gy - float(roi[3:])) > OFF_LEVEL:
        raise BadInput(
            f"{where}: {name} is prescribed {gy:g} Gy; the network knows targets of 70, 63 and 56 Gy "
            f"(± {OFF_LEVEL:g}). Name another level in data.names (prescriptions: {{{name}: GY}}), or leave it out "
            f"(ignore: [{name}])"
        )
    return roi


def notes(named: Named) -> Iterator[str]:
    """Yield sentences that say which structures are used, which are not, and which regions are missing."""
    used = [f"{roi} is {' + '.join(s.name for s in own)}" for roi, own in named.rois.items()]
    yield f"structures by name: {', '.join(used)}"
    if named.unused:
        yield f"structures that are not used: {', '.join(s.name for s in named.unused)} (data.names can name them)"
    if named.missing:
        yield f"no structure is {', '.join(named.missing)}"
