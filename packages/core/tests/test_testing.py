"""The contract test itself: the toy passes, and each broken promise is caught by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core.testing import check_project

pytestmark = [pytest.mark.usefixtures("toy"), pytest.mark.torch]


def toy_class() -> Any:
    import toy_project  # type: ignore[import-not-found]

    return toy_project.Toy


def test_the_toy_keeps_the_contract(tmp_path: Path) -> None:
    check_project("toy", tmp_path)


def breaking(monkeypatch: pytest.MonkeyPatch, name: str, make: Any) -> None:
    monkeypatch.setattr(toy_class(), name, make(getattr(toy_class(), name)))


def impure_prepare(own: Any) -> Any:
    calls: list[int] = []

    def prepare(self: Any, decoded: Any) -> Any:
        calls.append(1)
        return {name: array + len(calls) for name, array in own(self, decoded).items()}

    return prepare


def unseeded_phantom(own: Any) -> Any:
    return lambda self, folder, rng: own(self, folder, np.random.default_rng())


def crashing_decode(own: Any) -> Any:
    def decode(self: Any, record: Any) -> Any:
        arrays = {role: np.load(file) for role, file in record.files.items()}  # ValueError where BadInput is due
        from runner_core import Decoded

        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    return decode


def one_group(own: Any) -> Any:
    def record(self: Any, path: Path) -> Any:
        from runner_core import Record

        found = own(self, path)
        return Record(found.key, "all", found.files)

    return record


def frozen_preset(own: Any) -> Any:
    config = own["demo"]()
    return {**own, "demo": lambda: config}


def writes_elsewhere(own: Any) -> Any:
    return lambda self, record, prediction, out: own(self, record, prediction, out.parent)


def moody_predict(own: Any) -> Any:
    calls: list[int] = []

    def predict(self: Any, record: Any, infer: Any) -> Any:
        calls.append(1)
        return {"mask": own(self, record, infer), "threshold": 0.1 * len(calls)}

    return predict


class Opaque:
    __slots__ = ()


class BatchMean:
    """The mean length of a batch: it depends on the batch size, and has no value before data."""

    def reset(self) -> None:
        self.means: list[Any] = []

    def update(self, prediction: Any, batch: Any) -> None:
        self.means.append(float(len(prediction)))

    def compute(self) -> dict[str, Any]:
        return {"batch_mean": sum(self.means) / len(self.means)}


@pytest.mark.parametrize(
    "name, make, message",
    [
        ("prepare", impure_prepare, "prepare, called twice"),
        ("phantom", unseeded_phantom, "phantom written twice"),
        ("decode", crashing_decode, "must be refused as BadInput, not ValueError"),
        ("_record", one_group, "two groups"),
        ("presets", frozen_preset, "must make a new one"),
        ("write", writes_elsewhere, "outside of"),
        ("predict", moody_predict, "predict, called twice: 'threshold' differs"),
        ("predict", lambda own: lambda self, record, infer: Opaque(), "Opaque holds nothing that can be compared"),
        ("metrics", lambda own: lambda self: [BatchMean()], "metric 'batch_mean' depends on the batch size"),
        ("monitor", lambda own: ("dice", "max"), "dice"),
    ],
)
def test_a_broken_promise_is_named(
    name: str, make: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, name, make)
    with pytest.raises(Exception, match=message):
        check_project("toy", tmp_path)
