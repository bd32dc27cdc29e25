"""Names and colours of the classes: from the settings, from the data, or numbers."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Label, Record, first_few, read_table, refuse_special_file

from runner_ssmunet import readers
from runner_ssmunet.drawings.colours import Colour, colour_of
from runner_ssmunet.labels import LABELS, wrong_names

Array = np.ndarray[Any, np.dtype[Any]]

FILE = "classes.csv"
"""The table in a data folder: label, name and optionally colour (#rrggbb) of each class."""
_FEW = 8
"""Cores whose labels are read to decide whether to read those of all."""
_EXAMPLE = "It needs the columns label and name, colour (#rrggbb) if wanted, and a row for each class."


NO_TISSUE: Colour = (0, 0, 0)
_DISTINCT: tuple[Colour, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
    (148, 103, 189),
)  # fmt: skip
"""Colours that the colour-blind can tell apart (Okabe and Ito, 2008), and one more."""


@dataclass(frozen=True)
class Classes:
    """The classes: `names` of the labels 1, 2, …, and `colours` of some labels.

    `source` says where they come from, for messages.
    """

    names: tuple[str, ...] = ()
    colours: Mapping[int, Colour] | None = None
    source: str = ""
    partial: bool = False
    """Whether they were found in annotations, which name classes and do not number them."""

    @property
    def numbered(self) -> bool:
        """Return whether the names are numbers only."""
        return self.names == numbers(len(self.names))


def numbers(count: int) -> tuple[str, ...]:
    """Return names for classes without names.

    >>> numbers(2)
    ('class 1', 'class 2')
    """
    return tuple(f"class {label}" for label in range(1, count + 1))


def palette(labels: int, own: Mapping[int, Colour] | None = None) -> Array:
    """Return colours (labels + 1, 3) uint8 of labels 0 (no tissue) to `labels`.

    `own` holds colours that the data give.
    """
    more = [colorsys.hsv_to_rgb(0.61803 * i % 1, 0.65, 0.95) for i in range(max(0, labels - len(_DISTINCT)))]
    colours = [*_DISTINCT[:labels], *(tuple(round(255 * part) for part in colour) for colour in more)]
    out = np.array([NO_TISSUE, *colours], np.uint8)
    for label, colour in (own or {}).items():
        if label <= labels:
            out[label] = colour
    return out


def labels_of(names: Sequence[str], own: Mapping[int, Colour] | None = None) -> tuple[Label, ...]:
    """Return the labels 1, 2, … with their names and colours; `own` holds colours that the data give."""
    colours = palette(len(names), own).tolist()
    return tuple(Label(value, name, tuple(colours[value])) for value, name in enumerate(names, 1))


def find(root: Path, records: Sequence[Record], ignore: int | None) -> Classes:
    """Return the classes of a data folder: from its table, from label headers, or one per label.

    Raises BadInput if a table is wrong, if headers contradict each other, or if labels without names have gaps between
    them: 255 is not the number of classes.
    """
    return named(root, records, ignore) or _numbered(root, records, ignore)


def named(root: Path, records: Sequence[Record], ignore: int | None) -> Classes | None:
    """Return the classes that a data folder names, or None if it names none."""
    if refuse_special_file(root / FILE).is_file():
        return _table(root / FILE, ignore)
    found: Classes | None = None
    numbered: Path | None = None
    drawn: dict[str, Colour | None] = {}
    for record in records:
        if "labels" in record.files and (regions := readers.annotated_classes(record.files["labels"])) is not None:
            drawn |= {name: colour or drawn.get(name) for name, colour in regions.items()}
            continue
        numbered = numbered or record.files.get("labels")
        own = readers.class_names(record.files["labels"]) if "labels" in record.files else None
        if own is None:
            continue
        names, colours = own
        given = _checked(dict(enumerate(names)), dict(enumerate(colours)), record.files["labels"], ignore)
        if found is not None and given.names != found.names:
            raise BadInput(
                f"{given.source} and {found.source} name other classes: {first_few(given.names)}; "
                f"{first_few(found.names)}. "
                f"Correct one, or write {FILE} into {root}."
            )
        found = found or given
    if found is None and drawn:
        if numbered is not None:
            raise BadInput(
                f"{root}: some annotations name their classes ({first_few([*drawn])}), and {numbered.name} numbers "
                f"them: nothing says which number is which class. Write {FILE} (label,name and a line for each class)."
            )
        names = sorted(drawn, key=lambda name: (name.casefold(), name))
        shown = {label: colour for label, name in enumerate(names, 1) if (colour := drawn[name]) is not None}
        found = _checked(dict(enumerate(names, 1)), shown, root, ignore)
        found = replace(found, source=f"the annotations below {root}", partial=True)
    return found


def refuse_others(trained: Classes, found: Classes) -> None:
    """Raise BadInput if the data (`found`) name a label differently from the training data (`trained`)."""
    if trained.numbered or found.numbered or found.partial:  # names of annotations are compared core by core
        return
    for label, (ours, theirs) in enumerate(zip(trained.names, found.names, strict=False), start=1):
        if ours != theirs:
            raise BadInput(
                f"{found.source}: label {label} is '{theirs}', but the network was trained with label {label} as "
                f"'{ours}'. Give the labels the numbers of the training data; if only the name differs, correct it."
            )


def refuse_short(classes: Classes, records: Sequence[Record], ignore: int | None) -> None:
    """Raise BadInput if most cores have labels that `classes` lacks.

    The list of classes is wrong then, not each core.
    """
    most = len(classes.names)

    def others(chosen: Sequence[Record]) -> list[set[int]]:
        """Return the labels above `most` of each core that has any, if most of these cores have some."""
        found = [own for record in chosen if (own := {n for n in _labels_of(record, ignore) if n > most})]
        return found if 2 * len(found) > len(chosen) > 1 else []

    if not (others(records[:_FEW]) and (found := others(records))):
        return
    labels = sorted(set[int]().union(*found))
    which = f"{labels[0]} to {labels[-1]}" if len(labels) > 1 else str(labels[0])
    raise BadInput(
        f"{classes.source} names labels 1 to {most}, but {len(found)} of {len(records)} cores have others ({which}). "
        f"Complete {FILE} (or data.classes), or set data.ignore where one stands for pixels that nobody annotated."
    )


def _labels_of(record: Record, ignore: int | None) -> set[int]:
    """Return the labels above 0 in a core, except `ignore`.

    The set is empty for a core that cannot be read: reading it later reports the fault.
    """
    try:
        labels = readers.labels(record.files["core"], record.files.get("labels"))
    except BadInput:
        return set()
    return set() if labels is None else {label for label in np.unique(labels).tolist() if label > 0} - {ignore}


def _numbered(root: Path, records: Sequence[Record], ignore: int | None) -> Classes:
    there = set[int]().union(*(_labels_of(record, ignore) for record in records))
    if there != set(range(1, len(there) + 1)):
        raise BadInput(
            f"{root}: nothing names its classes, and its labels are not 1, 2, … without a gap: "
            f"{first_few([str(label) for label in sorted(there)])}. Write {FILE} into it (label,name and a line for "
            f"each "
            "class), set data.classes, or data.ignore where one stands for pixels that nobody annotated."
        )
    return Classes(numbers(len(there)), source="their labels")


def _table(path: Path, ignore: int | None) -> Classes:
    table = read_table(path, _EXAMPLE)
    labels = table.required("label", example=_EXAMPLE)
    names: dict[int, str] = {}
    colours: dict[int, Colour] = {}
    called = table.required("name", example=_EXAMPLE)
    for number, text, name, colour in zip(
        table.lines, labels, called, table.column("colour", "color") or [""] * len(labels), strict=True
    ):
        if not re.fullmatch(r"\d{1,3}", text) or int(text) in names:
            raise BadInput(
                f"{path}: line {number}: '{text}' is no label of its own; it must have one, from 0 to {LABELS - 1}."
            )
        names[int(text)] = name
        if colour:
            colours[int(text)] = _colour(colour, path, number)
    return _checked(names, colours, path, ignore)


def _colour(text: str, path: Path, number: int) -> Colour:
    found = colour_of(text)
    if found is None:
        raise BadInput(f"{path}: line {number}: '{text}' is no colour; write #rrggbb (red is #ff0000).")
    return found


def _checked(names: Mapping[int, str], colours: Mapping[int, Colour], path: Path, ignore: int | None) -> Classes:
    """Return the classes of a table or header. A label without a name gets its number.

    The label of unannotated pixels is left out.
    """
    unannotated = 0 if ignore is None else ignore
    kept = {label: name.strip() for label, name in names.items() if label not in (0, unannotated)}
    if not kept or max(kept) >= LABELS or not all(kept.values()):
        raise BadInput(f"{path}: names no class, or one without a name; labels 1 to {LABELS - 1} can have names.")
    if unannotated and unannotated < max(kept):
        raise BadInput(
            f"{path}: it has labels up to {max(kept)}, and data.ignore is {unannotated}: pixels that nobody annotated "
            "have the label 0 or one above those of all classes. Number the classes from 1."
        )
    called = numbers(max(kept))
    whole = tuple(kept.get(label, called[label - 1]) for label in range(1, max(kept) + 1))
    if fault := wrong_names(whole, ignore):
        raise BadInput(f"{path}: {fault}")
    return Classes(whole, {label: colours[label] for label in kept if label in colours}, str(path))
