"""The calibration of an evaluation in a report: a reliability curve for each class or region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import Block, Markup, Note

_CURVES = 24


def calibration(found: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the charts of a result, as scores.json has it; nothing without one."""
    if not found:
        return
    probabilities = found["kind"] == "probabilities"
    charts = [_chart(curve, probabilities, found["unit"]) for curve in found["curves"][:_CURVES]]
    yield Markup(f'<div class="charts">{"".join(charts)}</div>')
    if probabilities:
        yield Note(
            "A calibrated network lies on the dashed line: of the voxels to which it gives the probability 0.7, 70 % "
            "are of the class. Below the line it finds too much of the class. Unsure voxels have a probability between "
            "0.01 and 0.99; most others are background, where any network is right."
        )
    else:
        yield Note("A network without bias lies on the dashed line: the mean true value is the predicted one.")


def _chart(curve: Mapping[str, Any], probabilities: bool, unit: str) -> str:
    points = [(predicted, true) for _, _, _, predicted, true in curve["bins"]]
    ends = (0.0, 1.0) if probabilities else (points[0][0], points[-1][0])
    across, what = ("probability", "share of voxels") if probabilities else ("predicted", "mean true")
    series = [
        Series("calibrated", "mark", [(end, end) for end in sorted(set(ends))]),
        Series(f"{what}{f', {unit}' if unit else ''}", "a", points),
    ]
    return line_chart(curve["name"], series, log=False, across=f"{across}, {unit}" if unit else across)
