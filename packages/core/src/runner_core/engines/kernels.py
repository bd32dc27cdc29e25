"""Compare what two ways to compute one training step returned, within what rounding allows.

The bound is measured, not chosen. The same step is computed several times by plain operations in which each result is
off by as much as its dtype allows, at random. How far this carries, in each tensor, is the noise that right kernels may
show. A tensor disagrees if its error is beyond what chance makes of that noise once in a million, times `MARGIN`.

Tensors are compared whole, and slice by slice along each axis: a fault at one border, or in one channel, is small
beside the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from runner_core.contract import Array, Arrays
from runner_core.contract.kernels import Disagreement, Observed, Updated

MARGIN = 4.0
"""Right kernels may be noisier than the measured noise by this factor: they add up in another order."""
_CHANCE = 4.9
"""Standard deviations that a normal number exceeds once in a million."""
EPS = {"float32": 2.0**-23, "tf32": 2.0**-11, "bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Largest relative error of rounding to a dtype; twice that for float32, whose kernels round between, too."""
_MEAN_ERROR = 2.0**-13
"""Error of a mean over a batch, which a layer keeps as its state: of a float32 sum of a million numbers."""
UPDATE_ERROR = 64 * EPS["float32"]
"""Error that a float32 update may have, as a share of the weights and of their change."""


def ratios(
    reference: Observed, rounded: Sequence[Observed], found: Observed, eps: float
) -> Iterator[tuple[Disagreement, float]]:
    """Yield each compared tensor, and its error as a multiple of its bound; above 1 it is wrong.

    Args:
        reference: The step as plain operations compute it in float32.
        rounded: The same with each operation off by its dtype's rounding, at random, several times.
        found: The step as it is trained.
        eps: Rounding error of the dtype that the network computes in (`EPS`).
    """
    for kind in ("values", "gradients", "outputs", "output_gradients"):
        known: Arrays = getattr(reference, kind)
        others: Arrays = getattr(found, kind)
        # a gradient near zero by construction is judged beside the others
        scale = max((_rms(a) for a in known.values()), default=0.0) if "gradients" in kind else 0.0
        for name in known:
            if name in others:
                noisy = [getattr(one, kind)[name] for one in rounded if name in getattr(one, kind)]
                least = _MEAN_ERROR if name.startswith("buffer ") else 0.5 * eps
                yield _compared(_KINDS[kind], name, known[name], noisy, others[name], least, scale)


_KINDS = {
    "values": "", "gradients": "gradient of", "outputs": "output of", "output_gradients": "gradient at the output of",
}  # fmt: skip


def _compared(
    kind: str, name: str, known: Array, noisy: Sequence[Array], found: Array, smallest: float, scale: float
) -> tuple[Disagreement, float]:
    size = _rms(known)
    if found.shape != known.shape:
        return Disagreement(kind, name, math.inf, 0.0, f" (its shape is {found.shape}, not {known.shape})"), math.inf
    if not np.isfinite(found).all():
        right = not np.isfinite(known).all()
        return Disagreement(kind, name, math.inf, 0.0, " (it is not finite)"), 0.0 if right else math.inf
    # differences of float32 arrays are exact enough, and half as large as in float64
    error = np.square(found - known)
    noise = np.mean([np.square(one - known) for one in noisy], axis=0) if noisy else np.zeros_like(error)
    least = (smallest * size) ** 2 + (16 * EPS["float32"] * scale) ** 2 + 1e-60
    whole = max(float(noise.mean(dtype=np.float64)), least)
    errors, bound = [(float(error.mean(dtype=np.float64)), whole, error.size, "")], []
    for axis in range(error.ndim if error.ndim > 1 else 0):
        others = tuple(n for n in range(error.ndim) if n != axis)
        by_slice, noise_by_slice = error.mean(others, np.float64), noise.mean(others, np.float64)
        worst = int(np.argmax(by_slice / np.maximum(noise_by_slice, whole)))
        there = max(float(noise_by_slice[worst]), whole)
        errors.append((float(by_slice[worst]), there, error.size // error.shape[axis], f" at {worst} of axis {axis}"))
    bound = [allowed_ratio(count, len(noisy)) for _, _, count, _ in errors]
    judged = [math.sqrt(e / n) / b for (e, n, _, _), b in zip(errors, bound, strict=True)]
    which = int(np.argmax(judged))
    e, n, _, where = errors[which]
    size = max(size, 1e-30)
    return Disagreement(kind, name, math.sqrt(e) / size, bound[which] * math.sqrt(n) / size, where), judged[which]


def allowed_ratio(elements: int, rounded: int) -> float:
    """Return how many times the measured noise an error may be.

    Noise that is measured on few numbers may be too small by chance: Student's t at one in a million, relative to that
    of many numbers. Neighbours round alike, so a tensor counts as the root of its elements.
    """
    freedom = max(1, rounded) * math.sqrt(max(1, elements))
    if freedom < 2.5:
        return 1e3
    t = math.sqrt(freedom * math.expm1(_CHANCE**2 * (freedom - 1.5) / (freedom - 1) ** 2))
    return MARGIN * max(1.0, t / _CHANCE)


def wrong_updates(reference: Updated, found: Updated, decay: float) -> list[Disagreement]:
    """Return the weights that plain updates with the same gradients change otherwise, and the wrong moving averages.

    `decay` is that of the average, if there is one. What averages should be is
    computed here, from the weights after each update (`engines.weights.MovingAverage`).
    """
    wrong = []
    pairs = [("update of", n, w, found.steps[-1][n], reference.before[n]) for n, w in reference.steps[-1].items()]
    for name, average in found.average_before.items():
        if name in found.steps[0]:
            right = average.astype(np.float64)
            for step, weights in enumerate(found.steps):
                right += (1 - min(decay, (2 + step) / (11 + step))) * (weights[name] - right)
            pairs.append(("moving average of", name, right, found.average[name], average))
    for kind, name, right, own, before in pairs:
        size, change = max(_rms(right), 1e-30), _rms(right - before)
        error, allowed = _rms(own - right), UPDATE_ERROR * size + 1e-3 * change
        if error > allowed:
            wrong.append(Disagreement(kind, name, error / size, allowed / size))
    return wrong


def blamed_layer(reference: Observed, wrong: Sequence[Disagreement]) -> str:
    """Return which layer computes wrongly, in words: the first wrong one on the way of the computation.

    Forward, that is the layer called first whose output is wrong; backward, the layer called last.
    """
    by_kind: dict[str, list[Disagreement]] = {}
    for one in wrong:
        by_kind.setdefault(one.kind, []).append(one)
    if outputs := by_kind.get(_KINDS["outputs"]):
        first = min(outputs, key=lambda one: reference.order.get(one.name, 0)).name
        return f"the output of {first}, or what is computed just before it"
    if values := by_kind.get(_KINDS["values"]):
        return f"the forward pass ({', '.join(one.name for one in values[:3])})"

    def last(one: Disagreement) -> tuple[int, float]:
        layer = one.name if one.name in reference.order else layer_of(one.name, reference)
        return reference.order.get(layer, -1), one.error

    at_outputs, weights = by_kind.get(_KINDS["output_gradients"], []), by_kind.get(_KINDS["gradients"], [])
    if at_outputs and (not weights or last(max(at_outputs, key=last))[0] > last(max(weights, key=last))[0]):
        return f"the gradient between {max(at_outputs, key=last).name} and the layer after it"
    if weights:
        return f"the gradient of {max(weights, key=last).name}"
    return "; ".join(f"the {one.kind} {one.name}" for one in wrong[:2])


def layer_of(weight: str, observed: Observed) -> str:
    """Return the name of the layer that has a weight: the longest known one that its name begins with."""
    parts = weight.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((name for name in names if name in observed.order), "")


def jitter(name: str, weights: Array, number: int = 0) -> Array:
    """Return weights a few percent away, the same in every network: no gradient is hidden behind a weight of zero.

    Networks start with zeros in places (a last layer, a gate), and whatever lies before has no gradient until the first
    update. Each `number` moves them otherwise.
    """
    rng = np.random.default_rng([len(name), *name.encode(), *[number] * (number > 0)])
    size = _rms(weights) or 0.4
    moved = weights + np.float32(0.05 * size) * rng.standard_normal(weights.shape, np.float32)
    return np.asarray(moved, np.float32)


def _rms(array: Array) -> float:
    return math.sqrt(float(np.mean(np.square(array), dtype=np.float64))) if array.size else 0.0
