"""The core's toy project, with inputs and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Decoded, Label, Layer, Pictures, Project, Record, hookimpl
from runner_core.testing.toy import Toy

SQUARE = (Label(1, "square", (255, 70, 50)),)


class Viewed(Toy):
    predicted: list[str] = []  # noqa: RUF012

    def inputs(self, path: Path) -> Sequence[Record]:
        return [Record(path.stem, path.stem, {"image": path})]

    def decode(self, record: Record) -> Decoded:
        return Decoded({"image": np.load(record.files["image"])} | super().decode(record).arrays, (1.0, 1.0), "image")

    def predict(self, cropped: Any, infer: Any) -> Any:
        self.predicted.append(cropped.record.key)
        return super().predict(cropped, infer)

    def pictures(self) -> Pictures:
        return replace(super().pictures(), labels=SQUARE, layers=self._layers)

    def _layers(self, record: Record, prediction: Any) -> Sequence[Layer]:
        shown = [Layer("scan", np.load(record.files["image"]), (2.0, 3.0))]
        if "mask" in record.files:
            shown.append(Layer("annotated", np.load(record.files["mask"]), (2.0, 3.0), labels=SQUARE))
        return shown if prediction is None else [*shown, Layer("prediction", prediction, (2.0, 3.0), labels=SQUARE)]


@hookimpl
def runner_project() -> type[Project]:
    return Viewed
