"""An experiment with Keras, from folds to choices: the same commands and files as with PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import runner_core as runner
from runner_core import BadInput
from runner_openkbp.phantom import write_patient

TINY = {
    "preset": "demo",
    "train.epochs": 1,
    "train.steps_per_epoch": 1,
    "train.batch_size": 1,
    "validate.every": 1,
    "health.mode": "warn",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four generated patients."""
    for number in range(1, 5):
        write_patient(tmp_path / "data" / f"pt_{number}", np.random.default_rng(number))
    return tmp_path / "data"


@pytest.mark.slow
def test_folds_an_ensemble_and_choices(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.cli import main

    monkeypatch.chdir(tmp_path)
    words = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["openkbp", "crossval", "--folds", "2", "--data", str(data), "--out", "cv", *words]) == 0
    scores = json.loads((tmp_path / "cv" / "scores.json").read_text(encoding="utf-8"))
    keys = {place.name for place in data.iterdir()}
    assert {row["record"] for row in scores["records"]} == keys
    key = min(keys)

    experiment = runner.open(tmp_path / "cv")
    together = experiment.evaluate(data=data)
    pooled = scores["means"]["dose_score"]
    assert together["dose_score"] == pytest.approx(pooled, rel=1e-5)  # each record by the network that never saw it

    chosen = experiment.select()
    capsys.readouterr()
    assert "views" in (chosen.folder / "settings.yaml").read_text(encoding="utf-8")
    assert main(["openkbp", "predict", "cv", str(data / key), "--out", "doses"]) == 0
    assert (tmp_path / "doses" / f"{key}.csv").is_file()
    with pytest.raises(BadInput, match="fold-9: there is no such run folder"):
        experiment.predict(data / key, with_=["cv/fold-9"])
