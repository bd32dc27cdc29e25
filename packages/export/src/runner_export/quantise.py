"""Networks of 8-bit integers: static quantisation, calibrated on records, with its score beside the float network's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Arrays, BadInput, ExportJob, Infer

from runner_export.session import load_networks
from runner_export.write import quiet

CALIBRATE = 2
"""Most records whose windows set the ranges of activations; at least one more must be there to score."""
SCORE = 8
"""Most records that are scored."""
_WINDOWS = 48
"""Most windows that are kept for the calibration."""


def quantise(
    job: ExportJob, infer: Infer, networks: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write model-int8.onnx for each network; return their descriptions and the scores, for export.json.

    Raises BadInput if there are not enough records.
    """
    keys = job.keys
    count = min(CALIBRATE, len(keys) - 1)
    if count < 1:
        raise BadInput(
            f"--to onnx-int8 calibrates on one record and scores another, and there is only {keys[0]}: "
            "name more with --data"
        )
    seen: list[Arrays] = []

    def recording(arrays: Arrays) -> Arrays:
        seen.append({name: array.copy() for name, array in arrays.items()})
        return infer(arrays)

    for _, cropped in islice(job.records(), count):
        job.project.predict(cropped, recording)
    small = [_quantised(job.folder, network, _some(seen, network)) for network in networks]
    scores = _scores(job, count, {"float32": infer, "int8": load_networks(job.folder, small)})
    about = {
        "how": "static, QDQ: weights int8 per channel, activations uint8, ranges are the extremes (MinMax)",
        "calibrated_on": count,
        "scored": len(keys[count : count + SCORE]),
        "of": job.source,
        "scores": scores,
    }
    return small, about


def _some(seen: Sequence[Arrays], network: dict[str, Any]) -> list[Arrays]:
    """Return windows of this network, at even distances."""
    names = {one["name"] for one in network["inputs"]}
    own = [arrays for arrays in seen if set(arrays) == names]
    return own[:: max(1, -(-len(own) // _WINDOWS))]


def _quantised(folder: Path, network: dict[str, Any], windows: Sequence[Arrays]) -> dict[str, Any]:
    """Write a network with 8 bits and return its description."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """The windows, one after another."""

        def __init__(self) -> None:
            self.left = iter(windows)

        def get_next(self) -> Arrays | None:
            return next(self.left, None)

    file = folder / network["file"]
    target = file.with_name(f"{file.stem}-int8.onnx")
    with quiet():
        quantization.quantize_static(
            str(file),
            str(target),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
    return {**network, "file": target.name}


def _scores(job: ExportJob, skipped: int, networks: dict[str, Infer]) -> dict[str, dict[str, float]]:
    """Return the mean of each score of the records after the calibration's, for each network."""
    found: dict[str, dict[str, list[float]]] = {}
    for record, cropped in islice(job.records(), skipped, skipped + SCORE):
        for name, infer in networks.items():
            for score, value in job.project.score(record, job.project.predict(cropped, infer)).items():
                found.setdefault(score, {}).setdefault(name, []).append(float(value))
    return {
        score: {
            name: float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
            for name, values in by.items()
        }
        for score, by in found.items()
    }
