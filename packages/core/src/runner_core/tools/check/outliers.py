"""Find records that differ from the others: fewer grey values, another scale, voxels of another size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from runner_core.base.text import counted, first_few
from runner_core.contract import Finding
from runner_core.contract.records import AnyRecord
from runner_core.tools.check.checked import Checked
from runner_core.tools.check.facts import RecordFacts

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
