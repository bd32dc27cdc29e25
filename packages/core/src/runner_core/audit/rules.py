"""What looks wrong with the records together, whatever they show: labels that a side lacks, labels that are somebody
else's, values that cannot be."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from runner_core._text import counted, some
from runner_core.audit.checked import Checked
from runner_core.audit.levels import GREY
from runner_core.audit.outliers import outliers
from runner_core.project import Project, overrides
from runner_core.protocols import Finding

_MOST = 0.5
"""Share of all voxels that one label holds where those that nobody looked at may be among them."""
_PART = 0.05
"""Share of the voxels that one side ignores, above which the other one should ignore some too."""
_BRIGHTEST = 0.02
"""Share of an image at its highest value, above which detail is lost."""


def set_rules(project: Project, checked: Checked) -> list[Finding]:
    """Warnings about usable records. What a project's own `check` and `check_set` are there for, is left to them."""
    unlike = list(outliers(checked))
    shallow = any(finding.rule == "depth" for finding in unlike)
    return [
        *_groups(checked),
        *_classes(checked, told=overrides(project, "check_set")),
        *_ignored(checked),
        *_labels_twice(checked),
        *unlike,
        *(() if overrides(project, "check") else _values(checked)),
        *(() if shallow or overrides(project, "check_set") else _bits(checked)),
    ]


def _groups(checked: Checked) -> Iterator[Finding]:
    """Groups on different sides whose names differ in how they are written alone: P01 and p-1."""
    sides: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for side, numbers in checked.parts.items():
        for number in numbers:
            group = checked.records[number].group
            sides[_name(group)][group] = side
    for groups in sides.values():
        if len(set(groups.values())) > 1:
            shown = " and ".join(f"{group!r} ({side})" for group, side in sorted(groups.items()))
            yield _warning("groups", f"{shown} look like one group, on both sides of the split. Write it in one way.")


def _name(group: str) -> str:
    """A name without what is between its letters and numbers, and without leading zeros.

    >>> _name("PHerc-A_007"), _name("pherca7"), _name("P1-2"), _name("P12")
    ('pherca7', 'pherca7', 'p1 2', 'p12')
    """
    apart = re.sub(r"(?<=\d)[\W_]+(?=\d)", " ", group.casefold())
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[^\w ]|_", "", apart))


def _classes(checked: Checked, told: bool) -> Iterator[Finding]:
    """Classes that one side lacks; `told`: the project itself says which there are nowhere."""
    train, validation = (checked.balance(checked.sides.get(side, ())) for side in ("train", "validation"))
    usable, unless = (" that can be used", ", unless one that cannot has it") if checked.faulty else ("", "")
    for name in checked.balance().counts:
        taught, asked = train.having.get(name, 0), validation.having.get(name, 0)
        if train.records and not taught and (asked or not told):
            where = f"{asked} of the validation's do" if asked else "and no other"
            yield _warning(
                "classes", f"{name}: no training record{usable} has it ({where}): it cannot be learned{unless}."
            )
        elif taught and validation.records and not asked:
            have = f"{counted(taught, 'training record')} {'has' if taught == 1 else 'have'} it"
            yield _warning(
                "classes", f"{name}: {have}, none of the validation's{usable}: no score will speak of it{unless}."
            )


def _ignored(checked: Checked) -> Iterator[Finding]:
    """Voxels that nobody looked at, learned as a class; and sides that were not labelled alike."""
    whole = checked.balance()
    if whole.ignored is None or not whole.annotated:
        return
    name = max(whole.counts, key=lambda name: whole.counts[name], default=None)
    if not whole.ignored and name is not None and whole.share(name) > _MOST:
        text = f"no voxel is ignored, and {name} holds {whole.share(name):.0%} of them: where nobody looked, {name}"
        yield _warning("ignore", f"{text} is learned and scored. Is every record annotated throughout?")
    shares = {side: checked.balance(numbers).ignored_share for side, numbers in checked.parts.items()}
    least, most = (end(shares, key=shares.__getitem__, default="") for end in (min, max))
    if shares and shares[least] == 0 and shares[most] > _PART:
        text = f"{most} ignores {shares[most]:.0%} of its voxels, {least} none"
        yield _warning("ignore", f"{text}: the two were not labelled alike, and scores do not say the same of both.")


def _labels_twice(checked: Checked) -> Iterator[Finding]:
    """The same mask with different images: one record's labels were copied to another's place. Where half of the
    records or more share one, it is made so (the field of view of a detector)."""
    same: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    images: dict[str, str | None] = {}
    for record, facts in checked.facts():
        if not facts.arrays:
            continue
        image, *others = facts.arrays
        images[record.key] = facts.arrays[image].digest
        for name in others:
            if (found := facts.arrays[name].digest) is not None:
                same[name, found].append(record.key)
    for (name, _), keys in same.items():
        if len({images[key] for key in keys}) > 1 and 2 * len(keys) < max(len(images), 5):
            text = f"{counted(len(keys), 'record')} have the same {name}, voxel for voxel, and different images"
            yield _warning("labels", f"{text}: {some(keys)}. All but one seem to be another record's.")


def _values(checked: Checked) -> Iterator[Finding]:
    """Arrays that hold one value, NaN, or too much of the brightest."""
    saturated = f"more than {_BRIGHTEST:.0%} of its values at the highest (saturated, or clipped)"
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for record, facts in checked.facts():
        for place, (name, array) in enumerate(facts.arrays.items()):
            levels = array.levels
            if levels is None:
                continue
            if levels.bad:
                found[name, "NaN or infinite values"].append(record.key)
            elif place == 0 and levels.constant:
                found[name, "one value everywhere"].append(record.key)
            elif place == 0 and levels.distinct >= GREY and levels.highest > _BRIGHTEST:
                found[name, saturated].append(record.key)
    for (name, what), keys in found.items():
        yield _warning("values", f"{name} of {counted(len(keys), 'record')} has {what}: {some(keys)}.")


def _bits(checked: Checked) -> Iterator[Finding]:
    """Images of integers with fewer bits than those of the others have."""
    bits: defaultdict[int, list[str]] = defaultdict(list)
    for record, facts in checked.facts():
        if (image := facts.image) is not None and (kind := np.dtype(image.dtype)).kind in "iu":
            bits[8 * kind.itemsize].append(record.key)
    most = max(bits, default=0)
    for fewer in sorted(bits.keys() - {most}):
        keys = bits[fewer]
        text = f"{counted(len(keys), 'record')} of {fewer} bits a value among those of {most}: {some(keys)}"
        yield _warning("depth", f"{text}. Were grey values lost on the way?")


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
