"""The scores of one record in an evaluation, also as a line of JSON, so that processes can divide the records.

A line gives back what it was made from, bit for bit: whoever has the lines of all records has the evaluation.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Cropped, Finding, Infer
from runner_core.contract.facets import Judging
from runner_core.contract.project import Project, overrides, views_of
from runner_core.contract.records import AnyRecord, Predicted, Record
from runner_core.contract.views import averaged
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.training.calibration import Calibration, Curve
from runner_core.training.ensembles import Ensemble, baseline_with, predict_with


@dataclass
class Row:
    """Scores of one record, and the trivial method's scores if there is one."""

    record: AnyRecord
    scores: Mapping[str, float]
    baseline: Mapping[str, float]
    prediction: Any = None
    """The prediction, kept for its picture if there are few records or if all are kept; more might not fit in memory.
    """
    trained_on: bool = False
    """True if training used this record or another record of its group."""
    remarks: Sequence[Finding] = ()


@dataclass
class Scored:
    """The scores of one record in an evaluation."""

    row: Row
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """Its counts for the calibration."""
    predicted: Predicted | None = None
    """Its predictions, if `Judging.judge` wants those of all records."""
    error: str = ""
    """Why it could not be scored; then there is nothing else."""

    def line(self, project: Project) -> str:
        """Return it as one line of JSON. Raises BadInput for predictions that are to be judged and are no arrays."""
        row = self.row
        if self.error:
            return json.dumps({"record": row.record.key, "error": self.error})
        found = {
            "record": row.record.key,
            "scores": row.scores,
            "baseline": row.baseline,
            "trained_on": row.trained_on,
            "remarks": [[f.rule, f.level, f.message] for f in row.remarks],
            "curves": {name: curve.state() for name, curve in self.curves.items()},
        }
        if (kept := self.predicted) is not None:
            values = (kept.prediction, kept.baseline, kept.untrained)
            found["predicted"] = [_packed(project, value) for value in values]
        return json.dumps(found)

    @classmethod
    def of_line(cls, project: Project, record: AnyRecord, found: Mapping[str, Any]) -> Scored:
        """Return what `line` was made from. Raises KeyError, TypeError or ValueError for other content."""
        if "error" in found:
            return cls(Row(record, {}, {}), error=str(found["error"]))
        remarks = [Finding(*remark) for remark in found["remarks"]]
        row = Row(record, found["scores"], found["baseline"], None, bool(found["trained_on"]), remarks)
        calibration = empty_calibration(project)
        scored = cls(row, {} if calibration is None else calibration.restored(found["curves"]))
        if "predicted" in found:
            own, trivial, untrained = (_unpacked(project.judging(), value) for value in found["predicted"])
            row.prediction = own
            scored.predicted = Predicted(record, own, trivial, untrained, not row.trained_on)
        return scored


class Scorer:
    """Predicts and scores one record after another.

    `untrained` is the network before its first step, for `Judging.judge`. `trained_on` tells if training used a record
    or another of its group.
    """

    def __init__(
        self,
        pipeline: RecordPipeline,
        infer: Infer | Ensemble,
        untrained: Infer | None,
        trained_on: Callable[[AnyRecord], bool],
    ) -> None:
        self.project = pipeline.project
        self._pipeline, self._infer, self._untrained, self._trained_on = pipeline, infer, untrained, trained_on
        self._calibration = empty_calibration(self.project)
        self._judged, self._checks = self.project.judging().judge is not None, self.project.checks()

    def __call__(self, record: AnyRecord) -> Scored:
        """Score a record. The reason why that cannot be done is its `error`."""
        project = self.project
        try:
            with local(project, record) as here:
                cropped = CroppedRecord(self._pipeline, here)
                prediction, curves = self._predict(cropped, here)
                baseline = baseline_with(project, cropped, self._infer)
                untrained = None if self._untrained is None else project.predict(cropped, self._untrained)
                del cropped  # `score` reads the record anew: both would need memory for two
                row = self._row(record, here, prediction, baseline)
        except BadInput as error:
            return Scored(Row(record, {}, {}), error=str(error))
        found = Predicted(record, prediction, baseline, untrained, not row.trained_on) if self._judged else None
        return Scored(row, curves, found)

    def _predict(self, cropped: Cropped, here: Record) -> tuple[Any, Mapping[str, Curve]]:
        """Return the prediction of `predict_with`, and the counts of its soft output."""
        network, calibration = self._infer, self._calibration
        if calibration is None:
            return predict_with(self.project, cropped, network), {}
        combining, spread, count = calibration.combining, None, 1
        if not isinstance(network, Ensemble):
            soft = averaged(combining.soft, cropped, network, views_of(self.project))
        elif combining.kind == "values" and (count := len(network.members_for(cropped.record))) > 1:
            soft, spread = network.soft_and_spread(cropped)
        else:
            soft = network.soft(cropped)
        curves = calibration.count(here, cropped, next(iter(soft.values())), spread, count)
        del spread
        return combining.decide(cropped, soft), curves

    def _row(self, record: AnyRecord, here: Record, prediction: Any, baseline: Any) -> Row:
        scores = score_record(self.project, here, prediction)
        trivial = {} if baseline is None else score_record(self.project, here, baseline)
        check = self._checks.prediction
        remarks = () if check is None else tuple(check(here, prediction))
        return Row(record, scores, trivial, prediction, self._trained_on(record), remarks)


def empty_calibration(project: Project) -> Calibration | None:
    """Return empty counts; None if predictions are not made of the project's `combining`, or cannot be calibrated."""
    return None if overrides(project, "predict") else Calibration.of(project.combining())


def score_record(project: Project, record: Record, prediction: Any) -> dict[str, float]:
    """Return the scores from `Project.score`; raise BadInput if they are not numbers by name."""
    where = f"project {project.name}: `score` must return numbers by name, as in {{'dice': 0.9}}"
    return numbers(project.score(record, prediction), where)


def numbers(found: Any, where: str) -> dict[str, float]:
    """Return numbers by name as Python's own. Raises BadInput, which begins with `where`, for anything else."""
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, value in found.items():
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise BadInput(f"{where}; {name!r} is {value!r}")
    return {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}


def goodness(project: Project, scores: Mapping[str, float]) -> float:
    """Return the headline score so that larger is better; a score that is not finite is the worst."""
    value = float(next(iter(scores.values()), 0.0))
    if not math.isfinite(value):
        return -math.inf
    return value if project.monitor[1] == "max" else -value


def _packed(project: Project, value: Any) -> Any:
    """Return a prediction as JSON: an array, or several of `Judging.as_arrays`."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return _array_text(value)
    as_arrays = project.judging().as_arrays
    if as_arrays is None:
        raise BadInput(
            f"project {project.name}: several processes can divide records that `judge` needs all at once only if "
            "`Judging` has `as_arrays` and `from_arrays`"
        )
    return {name: _array_text(array) for name, array in as_arrays(value).items()}


def _unpacked(judging: Judging, value: Any) -> Any:
    if isinstance(value, dict) and judging.from_arrays is not None:
        return judging.from_arrays({name: _array(found) for name, found in value.items()})
    return None if value is None else _array(value)


def _array_text(array: Array) -> list[Any]:
    return [array.dtype.str, array.shape, b64encode(np.ascontiguousarray(array).tobytes()).decode()]


def _array(found: Any) -> Array:
    dtype, shape, text = found
    return np.frombuffer(b64decode(text), np.dtype(dtype)).reshape(shape).copy()
