"""openkbp through the installed command line: phantom and real patients, from the challenge's CSVs to doses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from workspace import Runner, documented_keys

TINY = (
    "--preset demo --data.size 32 --train.epochs 1 --train.steps-per-epoch 3 --train.batch-size 1 "
    "--predict.views none --health.mode warn"
).split()


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.weekly
@pytest.mark.timeout(1500)
def test_the_demo_learns_doses(runner: Runner, tmp_path: Path) -> None:
    run = tmp_path / "run"
    try:
        done = runner("openkbp", "train", "--run-dir", run, fresh=True)
    except subprocess.TimeoutExpired as error:  # TensorFlow's 3-D convolutions are 10 times slower on some CPUs
        steps = re.findall(r"step (\d+)/600", f"{error.stdout}{error.stderr}")
        if len(set(steps)) < 10:  # it does not train slowly: it hangs
            raise
        pytest.skip(f"this machine is too slow for 600 steps of 3-D convolutions: {error}")
    assert done.returncode == 0, done.stderr
    summary = summary_of(run)
    assert (summary["project"], summary["preset"], summary["data"]) == ("openkbp", "demo", "phantom")
    assert summary["status"] == "done"
    assert set(summary) == documented_keys()
    assert summary["metrics"]["dose_error_gy"] > 0
    assert summary["scores"]["dose_score"] * 3 <= summary["baseline"]["dose_score"]
    assert summary["scores"]["dvh_score"] < summary["baseline"]["dvh_score"]
    assert "keras" in summary["versions"]
    assert "tensorflow" in summary["versions"]
    assert list((run / "figures").glob("*.png"))
    assert list((run / "checkpoints").glob("step-*/manifest.json"))


@pytest.mark.slow
def test_patients_of_a_planning_system_from_training_to_rtdose(runner: Runner, tmp_path: Path) -> None:
    import pydicom
    from runner_openkbp.phantom import write_patient

    data, run = tmp_path / "plans", tmp_path / "run"
    for seed, name in enumerate(("train-pats/pt_1", "validation-pats/pt_201")):
        write_patient(data / name, np.random.default_rng(seed), "dicom")
    done = runner("openkbp", "train", "--data", data, "--run-dir", run, *TINY)
    assert done.returncode == 0, done.stderr
    patient = data / "validation-pats" / "pt_201"
    done = runner("openkbp", "predict", run, patient, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "PTV70 is PTV70" in done.stdout
    assert "research only" in done.stdout
    dose, ct = pydicom.dcmread(tmp_path / "out" / "pt_201_dose.dcm"), pydicom.dcmread(patient / "ct_001.dcm")
    assert dose.FrameOfReferenceUID == ct.FrameOfReferenceUID
    assert dose.pixel_array.any()


@pytest.mark.slow
def test_real_patients_from_training_to_dose_files(runner: Runner, real_patients: Path, tmp_path: Path) -> None:
    """Every step of the way runs on real patients; how good it gets is measured elsewhere (docs)."""
    from runner_openkbp.csvfiles import read_indices, read_values

    data = tmp_path / "data"
    for name in ("train-pats/pt_1", "train-pats/pt_2", "validation-pats/pt_201"):
        shutil.copytree(real_patients / name, data / name)
    checked = runner("openkbp", "check", "--data", data)
    assert checked.returncode == 0, checked.stdout
    assert "train: 2 records of 2 groups: pt_1, pt_2" in checked.stdout
    assert "validation: 1 record of 1 group: pt_201" in checked.stdout

    run = tmp_path / "run"
    done = runner("openkbp", "train", "--data", data, "--run-dir", run, *TINY)
    assert done.returncode == 0, done.stderr
    assert summary_of(run)["scores"]["dose_score"] > 0

    done = runner("openkbp", "evaluate", run)
    assert done.returncode == 0, done.stderr
    assert "pt_201" in done.stdout
    assert "dvh_score" in done.stdout

    patient = data / "validation-pats" / "pt_201"
    done = runner("openkbp", "predict", run, patient, "--out", tmp_path / "doses", "--nifti", "--dicom")
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "doses").rglob("*.csv")
    index, values = read_values(written)
    allowed = read_indices(patient / "possible_dose_mask.csv")
    assert np.isin(index, allowed).all()
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    assert len(list((tmp_path / "doses").rglob("*.nii.gz"))) == 1
    assert len(list((tmp_path / "doses").rglob("*.dcm"))) == 1


@pytest.mark.slow
def test_check_lists_every_faulty_patient(runner: Runner, tmp_path: Path) -> None:
    assert runner("openkbp", "phantom", "data").returncode == 0
    patients = sorted(p.parent for p in (tmp_path / "data").rglob("ct.csv"))
    assert len(patients) >= 4
    (patients[0] / "dose.csv").unlink()
    text = (patients[1] / "ct.csv").read_text()
    (patients[1] / "ct.csv").write_text(text[: len(text) // 2])
    (patients[2] / "possible_dose_mask.csv").write_text(",data\n3000000,\n")
    (patients[3] / "voxel_dimensions.csv").unlink()
    checked = runner("openkbp", "check", "--data", "data")
    assert checked.returncode == 2
    for patient, file in zip(patients, ("dose", "ct", "possible_dose_mask", "voxel_dimensions"), strict=False):
        (line,) = (x for x in checked.stdout.splitlines() if x.startswith(f"error    {patient.name}:"))
        assert f"{patient.name}/{file}.csv" in line
    assert "4 faulty records" in checked.stdout
    refused = runner("openkbp", "train", "--data", "data", "--run-dir", "run", *TINY)
    assert refused.returncode == 2
    assert "4 records cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_without_patients_is_refused(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("check", "train"):
        done = runner("openkbp", command, "--data", "empty")
        assert done.returncode == 2
        assert "empty" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_table_of_renamed_patients_is_guessed_and_then_read(
    runner: Runner, real_patients: Path, tmp_path: Path
) -> None:
    """Real patients under names of another planning system: `init-data`, then `check` with the table, as printed."""
    for number in (1, 2):
        for path in (real_patients / "train-pats" / f"pt_{number}").glob("*.csv"):
            name = {"ct": "CT", "dose": "RTDOSE", "RightParotid": "Parotid_R", "PTV70": "PTV_7000"}.get(path.stem)
            shutil.copy(path, tmp_path / f"case{number}_{name or path.stem}.csv")
    (tmp_path / "case1_Lung_L.csv").touch()
    done = runner("openkbp", "init-data", ".")
    assert done.returncode == 0, done.stderr
    assert "manifest.csv: 2 patients" in done.stdout
    assert re.search(r"left out: 1 file, named neither as ct, .*: case1_Lung_L\.csv", done.stdout)
    command = done.stdout.splitlines()[-1].partition("then: runner ")[2].split()
    checked = runner(*command, "--out", "checked")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 records in 2 groups" in checked.stdout
    (tmp_path / "manifest.csv").write_text("id,folder\n1,gone\n", encoding="utf-8")
    refused = runner("openkbp", "train", "--data", "manifest.csv")
    assert refused.returncode == 2
    assert "manifest.csv: line 2: " in refused.stderr
    assert "no such file" in refused.stderr
