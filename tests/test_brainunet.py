"""brainunet through the installed command line: phantom and real scans, from raw files to masks."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import runner_core
from workspace import Runner, documented_keys

TINY = ["--preset", "small", "--train.epochs", "1", "--train.steps-per-epoch", "6", "--train.batch-size", "8"]


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.weekly
@pytest.mark.timeout(1500)
def test_the_demo_learns_to_strip_skulls(runner: Runner, tmp_path: Path) -> None:
    """The README's first command: the phantom, preset demo."""
    run = tmp_path / "run"
    done = runner("brainunet", "train", "--run-dir", run, fresh=True, timeout=1400)
    assert done.returncode == 0, done.stderr
    assert "phantom" in done.stdout
    summary = summary_of(run)
    assert summary["project"] == "brainunet"
    assert summary["preset"] == "demo"
    assert summary["data"] == "phantom"
    assert summary["status"] == "done"
    assert summary["metrics"]["volume_dice"] >= 0.95
    assert summary["scores"]["dice"] >= 0.95
    assert summary["scores"]["dice"] > summary["baseline"]["dice"] + 0.05
    assert set(summary) == documented_keys()
    assert "<svg" in (run / "report.html").read_text() or "data:image/png" in (run / "report.html").read_text()
    assert list((run / "figures").glob("*.png"))
    assert (run / "config.yaml").is_file()
    assert (run / "log.jsonl").is_file()
    assert list((run / "checkpoints").glob("step-*/manifest.json"))


@pytest.mark.slow
def test_real_scans_from_training_to_masks(runner: Runner, real_brains: Path, tmp_path: Path) -> None:
    """Every step of the way runs on real scans; how good it gets is measured elsewhere (docs)."""
    run = tmp_path / "run"
    done = runner("brainunet", "train", "--data", real_brains, "--run-dir", run, *TINY, "--health.mode", "warn",
                  "--data.split", "group:sub-openms12")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert summary_of(run)["data"] == str(real_brains)

    done = runner("brainunet", "evaluate", run)
    assert done.returncode == 0, done.stderr
    assert "sub-openms12_ses-1" in done.stdout
    assert "sub-openms01" not in done.stdout

    scan, odd = tmp_path / "new" / "p4.nii.gz", tmp_path / "new" / "p4x.nii.gz"  # no name says which is the mask
    scan.parent.mkdir()
    for name, copy in (("T1w", scan), ("T1w_brainmask", odd)):
        shutil.copyfile(real_brains / "sub-openms04" / f"sub-openms04_ses-1_{name}.nii.gz", copy)
    done = runner("brainunet", "predict", run, scan.parent, "--out", tmp_path / "masks", "--brain")
    assert done.returncode == 0, done.stderr
    assert f"note: left out: {odd} holds only a few whole numbers, as a mask does" in done.stdout
    source = nibabel.load(scan)
    (written,) = (tmp_path / "masks").glob("*brainmask.nii.gz")
    mask = nibabel.load(written)
    assert mask.shape == source.shape
    assert np.array_equal(mask.affine, source.affine)
    for code in ("sform_code", "qform_code", "xyzt_units"):
        assert mask.header[code] == source.header[code]
    assert set(np.unique(mask.dataobj)) <= {0, 1}
    (brain,) = (tmp_path / "masks").glob("*brain.nii.gz")
    stripped = np.asarray(nibabel.load(brain).dataobj)
    inside = np.asarray(mask.dataobj) > 0
    assert np.array_equal(stripped[inside], np.asarray(source.dataobj)[inside])
    assert not stripped[~inside].any()

    done = runner("brainunet", "export", run, "--out", tmp_path / "network")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "network").glob("*.safetensors"))


def test_check_lists_every_faulty_scan(runner: Runner, real_brains: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(real_brains, data, copy_function=shutil.copyfile)
    for folder in [data, *data.iterdir()]:
        folder.chmod(0o755)
    torn = data / "sub-openms01" / "sub-openms01_ses-1_T1w.nii.gz"
    torn.write_bytes(torn.read_bytes()[:200_000])
    (data / "sub-openms04" / "sub-openms04_ses-1_T1w_brainmask.nii.gz").unlink()
    no_nifti = data / "sub-openms12" / "sub-openms12_ses-2_T1w.nii.gz"
    no_nifti.write_text("not a NIfTI")
    done = runner("brainunet", "check", "--data", data)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    for name in (torn.name, "sub-openms04_ses-1_T1w", no_nifti.name):
        assert name in said
    assert "Traceback" not in said

    done = runner("brainunet", "train", "--data", data, "--run-dir", tmp_path / "run", *TINY)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists() or not any((tmp_path / "run" / "checkpoints").iterdir())


def test_a_person_on_both_sides_is_refused(runner: Runner, real_brains: Path, tmp_path: Path) -> None:
    leaking = tmp_path / "split.yaml"
    leaking.write_text("train: [sub-openms01_ses-1, sub-openms04]\nvalidation: [sub-openms01_ses-2, sub-openms12]\n")
    done = runner(
        "brainunet", "train", "--data", real_brains, "--run-dir", tmp_path / "run", "--data.split", leaking, *TINY
    )
    assert done.returncode == 2
    assert "sub-openms01" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_of_a_flat_folder_is_guessed_and_then_read(runner: Runner, tmp_path: Path) -> None:
    """A stranger's scans, under other names and in one folder: `init-data`, then `check` with the table, as printed."""
    assert runner("brainunet", "phantom", "phantom").returncode == 0
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, scan in enumerate(sorted((tmp_path / "phantom").rglob("*_T1w.nii.gz"))[:4]):
        name = f"p{number // 2}_v{number % 2}"
        scan.rename(flat / f"{name}_T1.nii.gz")
        scan.with_name(scan.name.replace("_T1w", "_T1w_brainmask")).rename(flat / f"{name}_brainmask.nii.gz")
    (flat / "notes.txt").write_text("hello", encoding="utf-8")
    done = runner("brainunet", "init-data", "flat")
    assert done.returncode == 0, done.stderr
    assert "left out: 1 file, not of a format that this project reads: notes.txt" in done.stdout
    with (flat / "manifest.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["group"], row["label"]) for row in rows] == [
        (f"p{p}_v{v}_T1", f"p{p}", f"p{p}_v{v}_brainmask.nii.gz") for p in (0, 1) for v in (0, 1)
    ]
    command = done.stdout.splitlines()[-1].partition("then: runner ")[2].split()
    checked = runner(*command, "--out", "checked")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "4 records in 2 groups" in checked.stdout
    again = runner("brainunet", "init-data", "flat")
    assert again.returncode == 2
    assert "is there already, and is never overwritten" in again.stderr
    assert "there is no such folder" in runner("brainunet", "init-data", "nothing").stderr


@pytest.mark.slow
def test_a_scan_that_is_turned_thinned_or_shaded_gets_the_same_brain(real_brains: Path) -> None:
    """The network was trained on this scan: this tests grids, orientations and shading, not generalisation."""
    path = real_brains / "sub-openms04/sub-openms04_ses-1_T1w.nii.gz"
    image = nibabel.load(path)
    scan = np.asarray(image.dataobj, np.float32)
    truth = np.asarray(nibabel.load(path.with_name(path.name.replace("T1w", "T1w_brainmask"))).dataobj) > 0
    run = runner_core.open("builtin", "brainunet")

    def dice(one: np.ndarray, other: np.ndarray) -> float:
        return float(2 * (one & other).sum() / (one.sum() + other.sum()))

    def found(values: np.ndarray, affine: np.ndarray) -> np.ndarray:
        return np.asarray(run.predict({"image": values, "affine": affine}).array) > 0

    plain = found(scan, image.affine)
    assert dice(plain, truth) > 0.95
    turned, back = scan.transpose(2, 0, 1)[:, ::-1], image.affine[:, [2, 0, 1, 3]].copy()
    back[:, 3] += back[:, 1] * (turned.shape[1] - 1)
    back[:, 1] *= -1
    assert dice(found(np.ascontiguousarray(turned), back)[:, ::-1].transpose(1, 2, 0), plain) > 0.999
    thin = image.affine @ np.diag([1, 3, 1, 1])
    thin[:, 3] = image.affine @ [0, 1, 0, 1]
    assert dice(found(scan[:, 1::3], thin), truth[:, 1::3]) > 0.94
    x, y, z = np.meshgrid(*[np.linspace(-1, 1, n, dtype=np.float32) for n in scan.shape], indexing="ij", sparse=True)
    assert dice(found(scan * np.exp(0.5 * x - 0.4 * y + 0.4 * z * y), image.affine), truth) > 0.94
