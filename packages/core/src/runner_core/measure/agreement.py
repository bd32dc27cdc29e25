"""Do two trials learn the same? By the losses of the same steps, or by what both have learned of as many samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STEPS = 50
"""First steps that are looked at: two trainings that round differently part more with every step."""
_ALIKE = 0.02
"""Of the mean loss: rounding, another order of sums."""
_AT_MOST = 0.1
"""Of the mean loss, however noisy the losses are (dropout that draws other numbers)."""
_AS_MUCH = 0.9
"""Of what the loss fell by."""
_VISIBLE = 0.01
"""Of the loss: a fall that can be told from none."""


@dataclass(frozen=True)
class Agreement:
    agrees: bool
    text: str
    """What was found, in one clause."""
    before: float
    """Mean loss of the one, over what was compared."""
    after: float
    """Of the other."""


def same_steps(before: Sequence[float], after: Sequence[float]) -> Agreement:
    """Losses of the same steps, from the first on, of the same samples. Both means agree within 2 %, or within three
    standard errors of their difference (in the noise), which never excuses more than 10 %."""
    pairs = list(zip(before, after, strict=False))[:_STEPS]
    one, other = (statistics.fmean(p) if p else math.nan for p in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    if not all(math.isfinite(value) for value in after):
        return Agreement(False, "its loss is not finite", one, other)
    differences = [b - a for a, b in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    size = abs(one)
    within = min(max(_ALIKE * size, 3 * error), _AT_MOST * size) if size else 3 * error
    text = f"mean loss of the first {len(pairs)} steps {other:.4g}, before {one:.4g}"
    return Agreement(abs(other - one) <= within + 1e-12, text, one, other)


def same_samples(
    start: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float], samples: int
) -> Agreement:
    """The loss of untaught networks (`start`), and after both have learned from about `samples` samples, in steps of
    their own size. The other must have learned 90 % of what the one has, and that must be visible."""
    first, one, other = start["loss"], before["loss"], after["loss"]
    text = f"after {samples:,} samples the loss is {other:.4g}, before {one:.4g} (at the start {first:.4g})"
    if not math.isfinite(other):
        return Agreement(False, "its loss is not finite", one, other)
    if first - one < _VISIBLE * abs(first):
        return Agreement(False, f"{text}: too little is learned in this time to tell", one, other)
    return Agreement(first - other >= _AS_MUCH * (first - one), text, one, other)
