"""A test of whether two trials learn the same: losses of equal steps, or of equal numbers of samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner_core.tools.measure.paired import Contender

_STEPS = 50
"""Number of first steps to compare; trainings with different rounding diverge with every step."""
_ALIKE = 0.02
"""Allowed share of the mean loss for rounding and another order of sums."""
_EXACT = 0.01
"""Allowed share of the loss for an optimisation that should change only rounding."""
_AT_MOST = 0.1
"""Largest allowed share of the mean loss, however noisy the losses are (dropout with other numbers)."""
_AS_MUCH = 0.9
"""Share of the fall in loss that the other must reach."""
_VISIBLE = 0.01
"""Share of the loss that a fall must have to be visible."""


@dataclass(frozen=True)
class Agreement:
    """The answer to whether two trials learn the same, with the losses that show it."""

    agrees: bool
    text: str
    """The finding, in one clause."""
    before: float
    """Mean loss of the base, over what was compared."""
    after: float
    """Mean loss of the rival."""
    steps: int = 0
    """Number of first steps that were compared, if losses of the same steps were."""
    evaluated: tuple[float, float] | None = None
    """Loss of the same batch after the first step in both, if it was evaluated."""

    @property
    def difference(self) -> float:
        """The largest difference, as a share; infinite if a loss is not finite."""
        return max(_difference(*pair) for pair in ((self.before, self.after), self.evaluated) if pair)


def same_steps(
    before: Sequence[float], after: Sequence[float], alike: float = _ALIKE, errors: float = 3, most: float = _AT_MOST
) -> Agreement:
    """Compare losses of the same steps, from the first on, with the same samples.

    Both means agree within the share `alike`, or within so many standard `errors` of their difference (in the noise),
    but never beyond the share `most`.
    """
    pairs = list(zip(before, after, strict=False))[:_STEPS]
    one, other = (statistics.fmean(p) if p else math.nan for p in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    for losses, text in ((after, "its loss is not finite"), (before, "the loss it is compared with is not finite")):
        if not all(map(math.isfinite, losses)):
            return Agreement(False, text, one, other, len(pairs))
    differences = [b - a for a, b in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    size = abs(one)
    within = min(max(alike * size, errors * error), most * size) if size else errors * error
    text = f"mean loss of the first {len(pairs)} steps {other:.4g}, before {one:.4g}"
    return Agreement(abs(other - one) <= within + 1e-12, text, one, other, len(pairs))


def parity(base: Contender, rival: Contender) -> Agreement:
    """Compare the losses of two trials after `begin`; they should differ by rounding only.

    Evaluated losses may differ by 1 %, and training losses by that or by chance: dropout may draw other numbers.
    """
    found = same_steps(base.first_losses, rival.first_losses, _EXACT, 2, math.inf)
    evaluated = base.evaluated, rival.evaluated
    return replace(found, agrees=found.agrees and _difference(*evaluated) <= _EXACT, evaluated=evaluated)


def _difference(one: float, other: float) -> float:
    """Return the relative difference; infinite if either is not finite."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def same_samples(
    start: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float], samples: int
) -> Agreement:
    """Compare the losses of untrained networks (`start`) with those after about `samples` samples each.

    Steps may have different sizes. The second must have learned 90 % of what the first has, and that must be visible.
    """
    first, one, other = start["loss"], before["loss"], after["loss"]
    text = f"after {samples:,} samples the loss is {other:.4g}, before {one:.4g} (at the start {first:.4g})"
    if not math.isfinite(other):
        return Agreement(False, "its loss is not finite", one, other)
    if first - one < _VISIBLE * abs(first):
        return Agreement(False, f"{text}: too little is learned in this time to tell", one, other)
    return Agreement(first - other >= _AS_MUCH * (first - one), text, one, other)


Loss = Mapping[str, float]


def compare_together(begun: Loss, best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """Compare two live trials after the one behind has caught up in samples.

    `begun` is the first evaluation of the best. `evaluated` is the number of samples in an evaluation.
    """
    for behind, ahead in ((best, rival), (rival, best)):
        if steps := max(0, ahead.samples - behind.samples) // behind.ready.batch:
            behind.take(steps)
    before, after = (contender.trial.evaluate(evaluated) for contender in (best, rival))
    return same_samples(begun, before, after, rival.samples)


def compare_apart(best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """Compare two trials that do not fit at once, each from its start, one after the other; end both."""
    samples = max(best.samples, rival.samples)
    found = []
    for contender in (best, rival):
        for other in (best, rival):
            other.trial.close()
        ready = contender.start()
        begun = contender.trial.evaluate(evaluated)
        contender.take(max(1, (samples - contender.samples) // ready.batch))
        found.append((begun, contender.trial.evaluate(evaluated)))
        contender.trial.close()
    (begun, before), (_, after) = found
    return same_samples(begun, before, after, samples)
