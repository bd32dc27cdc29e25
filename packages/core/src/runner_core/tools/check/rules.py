"""Find faults in the records as a set, whatever they show: labels missing in a split, wrong labels, wrong values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from runner_core.base.text import counted, first_few
from runner_core.contract import Finding
from runner_core.contract.project import Project, overrides
from runner_core.tools.check.checked import Checked
from runner_core.tools.check.levels import GREY
from runner_core.tools.check.outliers import outliers

_MOST = 0.5
"""Share of all voxels in one label above which voxels that nobody looked at may be among them."""
_PART = 0.05
"""Share of ignored voxels in one split above which the other should ignore some too."""
_BRIGHTEST = 0.02
"""Share of an image at its highest value above which detail is lost."""


def set_rules(project: Project, checked: Checked) -> list[Finding]:
    """Return warnings about usable records; tests that a project's own `check` and `check_set` replace are left out."""
    unlike = list(outliers(checked))
    shallow = any(finding.rule == "depth" for finding in unlike)
    return [
        *_groups(checked),
        *_classes(checked, reported=overrides(project, "check_set")),
        *_ignored(checked),
        *_labels_twice(checked),
        *unlike,
        *(() if overrides(project, "check") else _values(checked)),
        *(() if shallow or overrides(project, "check_set") else _bits(checked)),
    ]


def _groups(checked: Checked) -> Iterator[Finding]:
    """Find groups in different splits whose names differ only in spelling: P01 and p-1."""
    splits: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for side, numbers in checked.parts.items():
        for number in numbers:
            group = checked.records[number].group
            splits[_name(group)][group] = side
    for groups in splits.values():
        if len(set(groups.values())) > 1:
            shown = " and ".join(f"{group!r} ({side})" for group, side in sorted(groups.items()))
            yield _warning("groups", f"{shown} look like one group, on both sides of the split. Write it in one way.")


def _name(group: str) -> str:
    """Return a name without the characters between its letters and numbers, and without leading zeros.

    >>> _name("PHerc-A_007"), _name("pherca7"), _name("P1-2"), _name("P12")
    ('pherca7', 'pherca7', 'p1 2', 'p12')
    """
    apart = re.sub(r"(?<=\d)[\W_]+(?=\d)", " ", group.casefold())
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[^\w ]|_", "", apart))


def _classes(checked: Checked, reported: bool) -> Iterator[Finding]:
    """Find classes that a split lacks; with `reported`, the project itself reports classes that no record has."""
    train, validation = (checked.balance(checked.splits.get(side, ())) for side in ("train", "validation"))
    usable, unless = (" that can be used", ", unless one that cannot has it") if checked.faulty else ("", "")
    for name in checked.balance().counts:
        taught, asked = train.having.get(name, 0), validation.having.get(name, 0)
        if train.records and not taught and (asked or not reported):
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
    """Find unannotated voxels that are learned as a class, and splits that were labelled differently."""
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
    """Find the same mask with different images, which means that labels were copied to another record.

    A mask that half of the records or more share is intended (the field of view of a detector).
    """
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
            yield _warning("labels", f"{text}: {first_few(keys)}. All but one seem to be another record's.")


def _values(checked: Checked) -> Iterator[Finding]:
    """Find arrays with only one value, with NaN, or with too many of the brightest values."""
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
        yield _warning("values", f"{name} of {counted(len(keys), 'record')} has {what}: {first_few(keys)}.")


def _bits(checked: Checked) -> Iterator[Finding]:
    """Find images of integers with fewer bits than the others."""
    bits: defaultdict[int, list[str]] = defaultdict(list)
    for record, facts in checked.facts():
        if (image := facts.image) is not None and (kind := np.dtype(image.dtype)).kind in "iu":
            bits[8 * kind.itemsize].append(record.key)
    most = max(bits, default=0)
    for fewer in sorted(bits.keys() - {most}):
        keys = bits[fewer]
        text = f"{counted(len(keys), 'record')} of {fewer} bits a value among those of {most}: {first_few(keys)}"
        yield _warning("depth", f"{text}. Were grey values lost on the way?")


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
