"""Calibration: whether soft outputs mean what they say, counted over the voxels of all scored records.

A network is calibrated if the share p is of a class among the voxels to which it gives that class the probability p,
and if the mean true dose is d among the voxels for which it predicts the dose d. Voxels are sorted into bins by what
was predicted. In each bin the mean prediction has a distance from the mean truth; the error is the mean of these
distances, weighted by voxels. For probabilities it is the expected calibration error (ECE, Guo et al. 2017), for each
class as in Nixon et al. 2019. For values it is the conditional bias (Murphy 1973), in their unit.

The voxels are those of the network's crop whose truth is known. Most are background far from everything, where any
network is right: the ECE of a small object is near 0 whatever its border is like. A second ECE therefore counts only
voxels with a probability between 0.01 and 0.99. They are chosen by the prediction alone, because a calibrated network
is calibrated on any such choice, but not among voxels that are chosen by the truth.

Only sums are kept, a few for each bin. Volumes are read slab by slab and never copied.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from runner_core.base.text import counted, decimal
from runner_core.contract import Array, Cropped
from runner_core.contract.facets import Combining
from runner_core.contract.records import Record, Table

BINS = 15
"""Bins of probabilities, of equal width (Guo et al. 2017)."""
UNSURE = 0.01
"""Probabilities below this, or above 1 less this, are left out of the second ECE."""
ALL = "all"
"""Name of the curve of values over all voxels, beside those of regions."""
_VALUE_BINS = 20
"""Most bins of values in the result."""
_FINE = 64
"""Bins of values while counting, over the range of the first slab."""
_SLAB = 1 << 16
"""Voxels that are counted at once: their temporary arrays fit into the processor's cache."""

Sums = Mapping[int, Array]
"""Number of a bin → number of voxels, sum of predictions, sum of truths."""


class Curve(ABC):
    """The counts of one class or region. A subclass sorts predictions into bins."""

    def __init__(self) -> None:
        self.sums: dict[int, Array] = {}

    @abstractmethod
    def place(self, predicted: Array) -> Array:
        """Return the number of each prediction's bin (intp)."""

    @abstractmethod
    def bins(self) -> tuple[Sums, float]:
        """Return the bins of the result, and their width: bin n goes from n to n + 1 times the width."""

    def count(self, predicted: Array, truth: Array) -> None:
        """Count voxels, given as float32 arrays of one axis."""
        places = self.place(predicted)
        first = int(places.min())
        places -= first
        sums = [np.bincount(places), *(np.bincount(places, weights=values) for values in (predicted, truth))]
        for number, found in enumerate(np.stack(sums, axis=1)):
            if found[0]:
                self.sums[first + number] = self.sums.get(first + number, 0.0) + found

    def add(self, other: Curve) -> None:
        """Add the counts of another curve of this kind."""
        for number, found in other.sums.items():
            self.sums[number] = self.sums.get(number, 0.0) + found

    def state(self) -> dict[str, Any]:
        """Return the counts as JSON, of which `restored` makes the same curve, bit for bit."""
        return {"sums": {str(number): found.tolist() for number, found in self.sums.items()}}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        curve = cls()
        curve.sums = {int(number): np.array(found) for number, found in state["sums"].items()}
        return curve

    def facts(self) -> dict[str, Any]:
        """Return the numbers of the result, and each bin's ends, voxels, mean prediction and mean truth."""
        voxels, predicted, truth = _total(self.sums)
        bins, width = self.bins()
        rows = [[n * width, (n + 1) * width, int(v), p / v, t / v] for n, (v, p, t) in sorted(bins.items())]
        return {
            "voxels": int(voxels),
            "error": error(bins),
            "predicted": _ratio(predicted, voxels),
            "true": _ratio(truth, voxels),
            "bins": rows,
        }


class Probabilities(Curve):
    """Probabilities of one class: in bins 0 to 14, with what is below 0.01 in bin −1 and what is above 0.99 in 15."""

    def place(self, predicted: Array) -> Array:
        # every 17th of the 8-bit probabilities n/255 is the end of a bin, of which its float32 may fall short
        places = (predicted * np.float32(BINS) + np.float32(1e-5)).astype(np.intp)
        np.clip(places, 0, BINS - 1, out=places)
        places -= predicted < np.float32(UNSURE)
        places += predicted > np.float32(1 - UNSURE)
        return places

    def bins(self) -> tuple[Sums, float]:
        return _merged(self.sums, lambda number: min(max(number, 0), BINS - 1)), 1 / BINS

    def facts(self) -> dict[str, Any]:
        unsure = {number: found for number, found in self.sums.items() if 0 <= number < BINS}
        return {**super().facts(), "unsure_voxels": int(_total(unsure)[0]), "unsure_error": error(unsure)}


class Values(Curve):
    """Values of one region, in bins whose width is a power of two and grows with the range of the values."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 0.0
        self.absolute = 0.0
        """Sum of the distances between prediction and truth."""
        self.spread = np.zeros(3)
        """Of voxels that several networks predicted: their number, sum of variances, sum of squared errors."""

    def place(self, predicted: Array) -> Array:
        low, high = float(predicted.min()), float(predicted.max())
        size = max(high - low, max(abs(low), abs(high)) * 2**-20, 2.0**-40)
        self._widen(max(self.width, 2.0 ** math.ceil(math.log2(size / _FINE))))
        return np.floor(predicted / np.float32(self.width)).astype(np.intp)

    def _widen(self, width: float) -> None:
        self.sums, self.width = _merged(self.sums, self._wider(width)), width

    def _wider(self, width: float) -> Callable[[int], int]:
        """Return the function from the number of a bin to that of the wider bin which contains it."""
        times = round(width / self.width) if self.width else 1
        return lambda number: number // times

    def count(self, predicted: Array, truth: Array) -> None:
        super().count(predicted, truth)
        self.absolute += float(np.abs(predicted - truth).sum(dtype=np.float64))

    def count_spread(self, predicted: Array, truth: Array, deviation: Array, networks: int) -> None:
        """Count how much networks disagree (standard deviation, n − 1), beside the error of their mean.

        If the truth is like one network more, the expected squared error of the mean of n is (n + 1)/n times their
        variance (Fortin et al. 2014).
        """
        variance = np.square(deviation, dtype=np.float64).sum() * (networks + 1) / networks
        self.spread += [len(predicted), variance, np.square(predicted - truth, dtype=np.float64).sum()]

    def add(self, other: Curve) -> None:
        assert isinstance(other, Values)
        width = max(self.width, other.width)
        self._widen(width)
        other._widen(width)
        self.absolute += other.absolute
        self.spread += other.spread
        super().add(other)

    def state(self) -> dict[str, Any]:
        own = {"width": self.width, "absolute": self.absolute, "spread": self.spread.tolist()}
        return {**super().state(), **own}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        curve = super().restored(state)
        curve.width, curve.absolute, curve.spread = state["width"], state["absolute"], np.array(state["spread"])
        return curve

    def bins(self) -> tuple[Sums, float]:
        width, found = self.width, dict(self.sums)
        while found and max(found) - min(found) >= _VALUE_BINS:
            width *= 2
            found = _merged(self.sums, self._wider(width))
        return found, width

    def facts(self) -> dict[str, Any]:
        found = super().facts()
        found["absolute_error"] = _ratio(self.absolute, found["voxels"])
        voxels, variance, squares = self.spread
        if voxels:
            found |= {"spread": math.sqrt(variance / voxels), "spread_error": math.sqrt(squares / voxels)}
        return found


class Calibration:
    """The counts of an evaluation, by class or region, and the error of each record."""

    def __init__(self, combining: Combining) -> None:
        self.combining = combining
        self.curves: dict[str, Curve] = {}
        self.records: dict[str, float] = {}

    @classmethod
    def of(cls, combining: Combining | None) -> Calibration | None:
        """Return empty counts; None if the project does not say what is true, or if it embeds."""
        if combining is None or combining.labels is None or combining.kind == "embeddings":
            return None
        return cls(combining)

    def count(
        self, record: Record, cropped: Cropped, soft: Array, spread: Array | None = None, networks: int = 1
    ) -> dict[str, Curve]:
        """Return the counts of a record's voxels, for `add`; empty if it has no labels.

        `soft` is the first soft array. `spread` says how much several networks disagree about values.
        """
        assert self.combining.labels is not None
        truth = self.combining.labels(record, cropped)
        if truth is None:
            return {}
        own: dict[str, Curve] = {}
        if self.combining.kind == "probabilities":
            for number, name in enumerate(self.combining.classes):
                own[name] = _probabilities(soft[number], truth, number if len(soft) > 1 else 1)
        else:
            own[ALL] = _values(soft, truth, None, spread, networks)
            for name, mask in () if self.combining.regions is None else self.combining.regions(record, cropped):
                own[name] = _values(soft, truth, mask, spread, networks)
        return {name: curve for name, curve in own.items() if curve.sums}

    def restored(self, states: Mapping[str, Any]) -> dict[str, Curve]:
        """Return a record's counts, of the `state` of each of its curves."""
        kind = Probabilities if self.combining.kind == "probabilities" else Values
        return {name: kind.restored(state) for name, state in states.items()}

    def add(self, key: str, own: Mapping[str, Curve]) -> None:
        """Add the counts of the record `key`."""
        if own:
            self.records[key] = _over(own)
        for name, curve in own.items():
            self.curves.setdefault(name, type(curve)()).add(curve)

    def json(self) -> dict[str, Any]:
        """Return the result for scores.json; empty if no record had labels."""
        if not self.records:
            return {}
        return {
            "kind": self.combining.kind,
            "unit": self.combining.unit,
            "error": _over(self.curves),
            "mean_over_records": float(np.mean([*self.records.values()])),
            "curves": [{"name": name, **curve.facts()} for name, curve in self.curves.items()],
            "records": self.records,
        }


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of a result (`Calibration.json`)."""
    if not found:
        return
    unit = f", {found['unit']}" if found["unit"] else ""
    title = _title(found)
    names: Sequence[str]
    columns: Sequence[str]
    if found["kind"] == "probabilities":
        names = "voxels", "error", "unsure_voxels", "unsure_error", "predicted", "true"
        columns = "class", "voxels", "ECE", "unsure voxels", "their ECE", "mean probability", "true share"
    else:
        names = "voxels", "error", "absolute_error", "predicted", "true"
        columns = "region", "voxels", *(f"{t}{unit}" for t in ("bias in bins", "absolute error", "predicted", "true"))
    yield Table(
        "calibration", title, columns, [(c["name"], *(_cell(c[name]) for name in names)) for c in found["curves"]]
    )
    several = [c for c in found["curves"] if c.get("spread_error")]
    if several:
        yield Table(
            "disagreement",
            f"disagreement of the networks beside the error of their mean{unit} (root mean squares)",
            ("region", "disagreement", "error", "ratio"),
            [(c["name"], c["spread"], c["spread_error"], c["spread"] / c["spread_error"]) for c in several],
        )


def _cell(value: float) -> str | float:
    return str(value) if isinstance(value, int) else value  # numbers of voxels keep all their digits


def _title(found: Mapping[str, Any]) -> str:
    """Return the error of all in words."""
    what = "bias in bins"
    if found["kind"] == "probabilities":
        what = "ECE, mean over classes" if len(found["curves"]) > 1 else "ECE"
    unit = f" {found['unit']}" if found["unit"] else ""
    over, mean = (f"{decimal(found[name])}{unit}" for name in ("error", "mean_over_records"))
    records = counted(len(found["records"]), "record")
    return f"calibration of {records}: {what} {over} over all voxels together, {mean} as the mean of the records"


def error(sums: Sums) -> float:
    """Return the mean over voxels of the distance, in their bin, between mean prediction and mean truth."""
    return _ratio(sum(abs(predicted - truth) for _, predicted, truth in sums.values()), _total(sums)[0])


def _over(curves: Mapping[str, Curve]) -> float:
    """Return the error of all: the mean over classes, or for values that of the voxels of all regions."""
    errors = {name: error(curve.bins()[0]) for name, curve in curves.items()}
    return errors[ALL] if ALL in errors else float(np.mean([*errors.values()]))


def _probabilities(probabilities: Array, truth: Array, wanted: int) -> Curve:
    """Return the counts of one class, whose number in `truth` is `wanted`."""
    curve = Probabilities()
    for given, labels in _slabs(probabilities, truth):
        scaled = given / np.float32(255) if given.dtype == np.uint8 else given
        own, known = (labels == wanted).astype(np.float32), (labels >= 0) & np.isfinite(scaled)
        if known.any():
            curve.count(*((scaled, own) if known.all() else (scaled[known], own[known])))
    return curve


def _values(soft: Array, truth: Array, mask: Array | None, spread: Array | None, networks: int) -> Curve:
    """Return the counts of the voxels in a mask, or of all."""
    curve = Values()
    mask = np.broadcast_to(np.True_, truth.shape) if mask is None else mask
    known_spread = networks > 1 and spread is not None
    others = [mask, spread] if known_spread else [mask]
    for predicted, true, inside, *deviation in _slabs(soft, truth, *others):
        if inside.any() and (known := inside & np.isfinite(true) & np.isfinite(predicted)).any():
            curve.count(predicted[known], true[known])
            if deviation:
                curve.count_spread(predicted[known], true[known], deviation[0][known], networks)
    return curve


def _slabs(*arrays: Any) -> Iterator[Sequence[Array]]:
    """Yield flat parts of arrays of one shape; of numbers (one for a whole record) the numbers."""
    arrays = np.atleast_1d(*arrays)
    count = max(1, _SLAB // max(1, arrays[0][:1].size))
    for begin in range(0, len(arrays[0]), count):
        yield [array[begin : begin + count].ravel() for array in arrays]


def _merged(sums: Sums, bin_of: Callable[[int], int]) -> dict[int, Array]:
    """Return the counts of larger bins; `bin_of` returns the number of the bin that takes another in."""
    found: dict[int, Array] = {}
    for number, counts in sums.items():
        found[bin_of(number)] = found.get(bin_of(number), 0.0) + counts
    return found


def _total(sums: Sums) -> Array:
    return np.sum([np.zeros(3), *sums.values()], axis=0)


def _ratio(one: float, other: float) -> float:
    return float(one / other) if other else math.nan
