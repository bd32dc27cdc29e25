"""The weights in the package: small, honest about their data, and good on patients that they were not trained on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runner_core
from runner_core.testing import predict_from_wheel, texts_of_weights
from runner_openkbp.phantom import write_patient

ROOT = Path(__file__).parents[3]
REAL = Path(os.environ.get("RUNNER_TEST_DATA", ROOT.parent / "shared" / "data")) / "openkbp"
HELD_OUT = "pt_201"
"""A patient of the challenge's validation set."""
WORST = {"dose_score": 4.5, "dvh_score": 3.5}
"""Gy."""


def test_the_folder_holds_a_card_and_no_place_of_this_machine() -> None:
    folder = runner_core.open("builtin", "openkbp").path
    texts = texts_of_weights(folder)
    for words in ("Babier", "MIT", "research only", "held-out"):
        assert words in texts
    assert HELD_OUT not in (folder / "split.yaml").read_text(encoding="utf-8")


def test_the_wheel_brings_them_and_predicts_with_them(tmp_path: Path) -> None:
    patient = tmp_path / "pt_1"
    write_patient(patient, np.random.default_rng(3))
    doses, said = predict_from_wheel(Path(__file__).parents[1], "openkbp", patient, tmp_path)
    assert "research only" in said
    assert (doses / "pt_1.csv").is_file()


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real patients in {REAL}")
def test_a_held_out_patient(tmp_path: Path) -> None:
    """The mean of the training doses, the trivial baseline, has 10 and 14 Gy."""
    data = tmp_path / "data"
    data.mkdir()
    (data / HELD_OUT).symlink_to(REAL / "validation-pats" / HELD_OUT, target_is_directory=True)
    scores = runner_core.open("builtin", "openkbp").evaluate(data=data, split="all", out=tmp_path / "scores")
    for name, most in WORST.items():
        assert 0.5 < scores[name] < most


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_the_script_that_trains_them_runs_from_its_beginning_to_the_card(tmp_path: Path) -> None:
    data = runner_core.phantom("openkbp", tmp_path / "data")
    script = ROOT / "examples/openkbp-weights/train.py"
    words = [sys.executable, str(script), str(data / "train-pats"), str(tmp_path / "out"), "--rehearse"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    written, packaged = tmp_path / "out" / "weights", runner_core.open("builtin", "openkbp").path
    assert {file.name for file in written.iterdir()} == {file.name for file in packaged.iterdir()}
    assert (written / "MODEL_CARD.md").read_bytes() == (packaged / "MODEL_CARD.md").read_bytes()
    dose = runner_core.open(written).predict(data / "validation-pats" / "pt_201").array
    assert dose.shape == (128, 128, 128)
    assert np.isfinite(dose).all()


@pytest.mark.slow
def test_weights_in_16_bits_are_the_runs(tmp_path: Path) -> None:
    """A folder made of a run predicts what the run does, nearly, and trainings begin with it."""
    data = runner_core.phantom("openkbp", tmp_path / "data")
    tiny = {"data.size": 32, "data.patch": (16, 32, 16), "model.widths": (4, 8), "train.ema": 0.5, "log.every": 1}
    settings = {**tiny, "train.epochs": 2, "train.steps_per_epoch": 3, "validate.records": 1, "health.mode": "warn"}
    run = runner_core.train("openkbp", data=data, preset="small", run_dir=tmp_path / "run", **settings)
    (tmp_path / "MODEL_CARD.md").write_text("# Boxes\n", encoding="utf-8")

    def write(name: str, half: bool) -> runner_core.Run:
        card = [tmp_path / "MODEL_CARD.md"]
        return runner_core.write_builtin(
            run.path, tmp_path / name / "weights", statement="Boxes.", files=card, settings={}, half=half
        )

    whole, half = write("whole", half=False), write("half", half=True)
    sizes = [next(one.path.rglob("model.safetensors")).stat().st_size for one in (whole, half)]
    assert sizes[1] < 0.7 * sizes[0]
    patient = next(path for path in sorted(data.rglob("pt_*")) if path.is_dir())
    doses = [one.predict(patient).array for one in (run, whole, half)]
    assert doses[0].max() > 5
    np.testing.assert_allclose(doses[1], doses[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(doses[2], doses[0], rtol=1e-2, atol=0.05)
    assert (doses[2] != doses[0]).any()
    further = runner_core.train(
        "openkbp", data=data, from_=half.path, run_dir=tmp_path / "further", **{**settings, "train.epochs": 1}
    )
    assert further.summary["start"]["fitted"] > 10
