"""Find faults in the records as a set.

They are labels missing in a split, wrong labels, wrong values, and records that differ from the others: fewer grey
values, another scale, voxels of another size.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from runner_core.base.text import counted, first_few
from runner_core.contract import Finding
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.tools.check.facts import GREY, Checked, RecordFacts

_MOST = 0.5
"""Share of all voxels in one label above which voxels that nobody looked at may be among them."""
_PART = 0.05
"""Share of ignored voxels in one split above which the other should ignore some too."""
_BRIGHTEST = 0.02
"""Share of an image at its highest value above which detail is lost."""


def set_rules(project: Project, checked: Checked) -> list[Finding]:
    """Return warnings about usable records; tests that a project's own `checks` replace are left out."""
    unlike = list(outliers(checked))
    shallow = any(finding.rule == "depth" for finding in unlike)
    own = project.checks()
    return [
        *_groups(checked),
        *_classes(checked, reported=own.records is not None),
        *_ignored(checked),
        *_labels_twice(checked),
        *unlike,
        *(() if own.record is not None else _values(checked)),
        *(() if shallow or own.records is not None else _bits(checked)),
    ]


def _groups(checked: Checked) -> Iterator[Finding]:
    """Find groups in different splits whose names differ only in spelling: P01 and p-1."""
    splits: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for split, numbers in checked.parts.items():
        for number in numbers:
            group = checked.records[number].group
            splits[_name(group)][group] = split
    for groups in splits.values():
        if len(set(groups.values())) > 1:
            shown = " and ".join(f"{group!r} ({split})" for group, split in sorted(groups.items()))
            yield _warning("groups", f"{shown} look like one group, in different splits. Write it in one way.")


def _name(group: str) -> str:
    """Return a name without the characters between its letters and numbers, and without leading zeros.

    >>> _name("PHerc-A_007"), _name("pherca7"), _name("P1-2"), _name("P12")
    ('pherca7', 'pherca7', 'p1 2', 'p12')
    """
    apart = re.sub(r"(?<=\d)[\W_]+(?=\d)", " ", group.casefold())
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[^\w ]|_", "", apart))


def _classes(checked: Checked, reported: bool) -> Iterator[Finding]:
    """Find classes that a split lacks; with `reported`, the project itself reports classes that no record has."""
    train, validation = (checked.balance(checked.splits.get(split, ())) for split in ("train", "validation"))
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
            yield _warning("classes", f"{name}: {have}, none of the validation's{usable}: no score covers it{unless}.")


def _ignored(checked: Checked) -> Iterator[Finding]:
    """Find unannotated voxels that are learned as a class, and splits that were labelled differently."""
    whole = checked.balance()
    if whole.ignored is None or not whole.annotated:
        return
    name = max(whole.counts, key=lambda name: whole.counts[name], default=None)
    if not whole.ignored and name is not None and whole.share(name) > _MOST:
        text = f"no voxel is ignored, and {name} holds {whole.share(name):.0%} of them: where nobody looked, {name}"
        yield _warning("ignore", f"{text} is learned and scored. Is every record annotated throughout?")
    shares = {split: checked.balance(numbers).ignored_share for split, numbers in checked.parts.items()}
    least, most = (end(shares, key=shares.__getitem__, default="") for end in (min, max))
    if shares and shares[least] == 0 and shares[most] > _PART:
        text = f"{most} ignores {shares[most]:.0%} of its voxels, {least} none"
        yield _warning("ignore", f"{text}: they were labelled differently, and their scores mean different things.")


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


_FEWEST = 5
"""Number of records below which none counts as different."""
_BYTE = 256
_DEEP = 4 * _BYTE
"""Grey values of most records above which a record with at most a byte's has lost some."""
_SCALE = 20.0
"""Ratio of value ranges above which a record has another unit.

The range must also lie outside `_DEVIATIONS` deviations of the others.
"""
_DEVIATIONS = 6.0
_SPACING = 4.0
"""Ratio of a voxel's side to most others' above which its header is doubted."""


_Known = Sequence[tuple[AnyRecord, RecordFacts]]


def outliers(checked: Checked) -> Iterator[Finding]:
    """Yield warnings, one for each way of being different."""
    records = list(checked.facts())
    if len(records) < _FEWEST:
        return
    yield from _axes(records)
    yield from _depth(records)
    yield from _scale(records)
    yield from _spacing(records)


def _axes(records: _Known) -> Iterator[Finding]:
    """Find grids with another number of axes than most."""
    lengths = [len(facts.shape) for _, facts in records]
    usual = max(set(lengths), key=lengths.count)
    others = [record.key for record, facts in records if len(facts.shape) != usual]
    if others:
        yield _warning(
            "shape", f"{_have(others)} not {counted(usual, 'axis', 'axes')} as the others: {first_few(others)}."
        )


def _depth(records: _Known) -> Iterator[Finding]:
    """Find images with no more grey values than 8 bits have, among images with thousands."""
    seen = {record.key: image.levels.distinct for record, facts in records if (image := facts.image) and image.levels}
    if not seen or (usual := median(seen.values())) < _DEEP:
        return
    poor = [key for key, distinct in seen.items() if 1 < distinct <= _BYTE]
    if poor:
        text = f"{_have(poor)} no more than {_BYTE} grey values, the others about {usual:,.0f}: {first_few(poor)}"
        yield _warning("depth", f"{text}. Were they saved with 8 bits on the way? Export them again.")


def _scale(records: _Known) -> Iterator[Finding]:
    """Find values of another order of magnitude."""
    spread = {
        record.key: math.log10(image.levels.spread)
        for record, facts in records
        if (image := facts.image) and image.levels and not image.levels.constant
    }
    if len(spread) < _FEWEST:
        return
    usual = median(spread.values())
    width = median(abs(value - usual) for value in spread.values())
    far = max(math.log10(_SCALE), _DEVIATIONS * 1.4826 * width)
    for word, sign in (("smaller", -1), ("larger", 1)):
        others = [key for key, value in spread.items() if sign * (value - usual) > far]
        if others:
            by = max(abs(spread[key] - usual) for key in others)
            text = f"{_have(others)} values of a range that is up to {10**by:,.0f} times {word} than most others'"
            yield _warning("scale", f"{text}: {first_few(others)}. Is it another unit, or another bit depth?")


def _spacing(records: _Known) -> Iterator[Finding]:
    """Find voxels of another size.

    Sides are compared in order of length, because axes may be stored in another order.
    """
    sides = {record.key: sorted(facts.spacing) for record, facts in records}
    lengths = [len(own) for own in sides.values()]
    axes = max(set(lengths), key=lengths.count)
    alike = {key: own for key, own in sides.items() if len(own) == axes and all(mm > 0 for mm in own)}
    usual = [median(own[axis] for own in alike.values()) for axis in range(axes)] if alike else []
    others = [
        key
        for key, own in alike.items()
        if any(not 1 / _SPACING < mm / most < _SPACING for mm, most in zip(own, usual, strict=True))
    ]
    if others:
        shown = " × ".join(f"{mm:.3g}" for mm in alike[others[0]])
        most = " × ".join(f"{mm:.3g}" for mm in usual)
        text = f"{_have(others)} voxels of another size ({shown} mm, most others {most} mm): {first_few(others)}"
        yield _warning("spacing", f"{text}. Are the headers right?")


def _have(keys: Sequence[str]) -> str:
    return f"{counted(len(keys), 'record')} {'has' if len(keys) == 1 else 'have'}"


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
