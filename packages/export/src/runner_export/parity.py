"""Compare an exported network with its checkpoint, on windows of real records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from runner_core import Array, Arrays, BadInput, ExportJob, Infer, Json, Unhealthy

RECORDS = 3
"""Most records that are compared."""
DIGITS = float(np.finfo(np.float32).eps) ** 0.5
"""Largest allowed difference of an output, as a share of its largest value.

It is half of float32's digits (3.5e-4). Other orders of sums cost a few of the last digits in each layer; a wrong
operation costs the first ones."""


@dataclass
class Parity:
    """The largest difference between two networks' outputs, over all windows of some records."""

    records: int = 0
    windows: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    """The largest difference of each output."""
    scales: dict[str, float] = field(default_factory=dict)
    """Largest finite value of each output of the checkpoint, without its sign.

    It is at least `DIGITS`: below, float32's last digit of the 1 that networks compute with is all that is asked for.
    """

    @property
    def output(self) -> str:
        """The output that is furthest off for its size; the figures are its own: a large output excuses no other."""
        return max(self.differences, key=lambda name: self.differences[name] / self.scales[name], default="")

    @property
    def largest(self) -> float:
        """The largest difference of `output`."""
        return self.differences.get(self.output, 0.0)

    @property
    def scale(self) -> float:
        """The largest value of `output`."""
        return self.scales.get(self.output, DIGITS)

    @property
    def tolerance(self) -> float:
        """The largest difference that is accepted."""
        return DIGITS * self.scale

    def add(self, expected: Arrays, found: Arrays) -> None:
        """Take the outputs of one window into account."""
        self.windows += 1
        for name, array in expected.items():
            largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
            self.differences[name] = max(self.differences.get(name, 0.0), _difference(array, found[name]))
            self.scales[name] = max(self.scales.get(name, DIGITS), largest)

    def as_json(self, source: str, runtime: str = "eager PyTorch") -> dict[str, Json]:
        """Return the figures for export.json."""
        return {
            "output": self.output,
            "largest_difference": self.largest,
            "tolerance": self.tolerance,
            "largest_output": self.scale,
            "windows": self.windows,
            "records": self.records,
            "of": source,
            "compared": f"outputs of every window in float32 on the CPU, with {runtime} and the same checkpoint",
        }

    def __str__(self) -> str:
        return (
            f"largest difference {self.largest:.2g} (allowed {self.tolerance:.2g}) in {self.windows} windows of "
            f"{self.records} records"
        )


def compare(job: ExportJob, expected: Infer, found: Infer, name: str, further: Sequence[Arrays] = ()) -> Parity:
    """Predict some of the job's records with both networks, and return how far their outputs are apart.

    `further` are windows that are compared too. Raises Unhealthy if they are further apart than the tolerance, and
    BadInput if what was written cannot run a window that the checkpoint can: an exporter may fix the batch's length.
    """
    parity = Parity()

    def infer(arrays: Arrays) -> Arrays:
        outputs = expected(arrays)
        try:
            written = found(arrays)
        except Exception as error:  # onnxruntime raises exceptions of its own
            shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
            reason = str(error).strip().partition("\n")[0]
            raise BadInput(f"--to {name}: what was written does not run for {shapes}: {reason}") from error
        parity.add(outputs, written)
        return outputs

    for arrays in further:
        infer(arrays)

    for _, cropped in islice(job.records(), RECORDS):
        job.project.predict(cropped, infer)
        parity.records += 1
    if not parity.largest <= parity.tolerance:
        raise Unhealthy(
            f"--to {name}: not exported: what was written computes something else than {job.checkpoint}: {parity}"
        )
    return parity


def _difference(expected: Array, found: Array) -> float:
    """Return the largest absolute difference; infinity for another shape, or where only one is finite."""
    if expected.shape != found.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        apart = np.abs(expected.astype(np.float64) - found)
    apart[(expected == found) | (np.isnan(expected) & np.isnan(found))] = 0
    return float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0))
