"""ssmunet through the installed command line: phantom and written cores, from npz files to class maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from workspace import Runner, documented_keys

CLASSES = ["--data.classes", "red", "green", "blue"]
TINY = [
    *CLASSES,
    *"--preset demo --data.patch 16 --data.bin 1 --model.filters 3 --model.embed 4 --model.base 4".split(),
    *"--train.epochs 2 --validate.every 1 --health.mode warn".split(),
]
SHAPE = (20, 26)
WAVENUMBERS = np.linspace(900.0, 1800.0, 101)
BANDS = (1030.0, 1240.0, 1740.0)
"""Wavenumbers at which the three classes absorb, besides amide I and II."""


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def core(seed: int) -> dict[str, Any]:
    """The arrays of a core: three vertical stripes of tissue within a margin, annotated on a fifth of their pixels."""
    rng = np.random.default_rng(seed)
    tissue = np.zeros(SHAPE, bool)
    tissue[2:-2, 2:-2] = True
    truth = 1 + np.arange(SHAPE[1]) * 3 // SHAPE[1] * np.ones((SHAPE[0], 1), int)
    known = tissue & (rng.random(SHAPE) < 0.2)

    def band(place: Any) -> Any:
        return np.exp(-(((WAVENUMBERS - place) / 25) ** 2))

    own = 0.4 * band(np.array(BANDS)[:, None])[truth - 1]
    spectra = (band(1655) + 0.6 * band(1545) + own) * tissue[..., None] + rng.normal(0, 0.01, (*SHAPE, 101))
    meta = {"core_id": str(seed), "patient_id": f"P{seed // 2}", "slide_id": "S1"}
    return {
        "X": spectra.astype(np.float32), "y": np.where(known, truth, 0), "wn": WAVENUMBERS, "tissue_mask": tissue,
        "delta_cm1": 9.0, "meta": json.dumps(meta),
    }  # fmt: skip


def write(folder: Path, seed: int, **changed: Any) -> Path:
    """A core with some of its arrays changed; None leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"core_{seed}.npz"
    np.savez(path, **{key: value for key, value in (core(seed) | changed).items() if value is not None})
    return path


@pytest.fixture
def cores(tmp_path: Path) -> Path:
    """Two cores of each of three patients."""
    folder = tmp_path / "cores"
    for seed in range(6):
        write(folder, seed)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_learns_tissues(runner: Runner, cache_home: Path, tmp_path: Path) -> None:
    """The README's first command: the phantom, preset demo. Then a map of a core that it has never seen."""
    run = tmp_path / "run"
    done = runner("ssmunet", "train", "--run-dir", run, fresh=True, timeout=1400)
    assert done.returncode == 0, done.stderr
    assert "differs from the preset default in" in done.stdout
    summary = summary_of(run)
    assert (summary["project"], summary["preset"], summary["data"]) == ("ssmunet", "demo", "phantom")
    assert summary["status"] == "done"
    assert set(summary) == documented_keys()
    assert summary["metrics"]["miou"] >= 0.75
    assert summary["scores"]["miou"] >= 0.75
    assert summary["scores"]["miou"] >= summary["baseline"]["miou"] + 0.1
    assert summary["scores"]["macro_f1"] > summary["baseline"]["macro_f1"]
    assert (run / "figures" / "filters.png").is_file()
    assert len(list((run / "figures").glob("*core_*.png"))) >= 2
    assert "data:image/png" in (run / "report.html").read_text()
    assert (run / "scores-confusion.csv").is_file()
    assert list((run / "checkpoints").glob("step-*/manifest.json"))

    patient = yaml.safe_load((run / "split.yaml").read_text())["validation"][0]
    paths = list((cache_home / "runner" / "phantoms" / "ssmunet").rglob(f"core_{patient}-*.npz"))
    done = runner("ssmunet", "predict", run, *paths, "--out", "maps")
    assert done.returncode == 0, done.stderr
    right = []
    for path in paths:
        with np.load(path) as truth, np.load(tmp_path / "maps" / f"{path.stem}_classes.npz") as found:
            known = (truth["y"] > 0) & truth["tissue_mask"]
            right += (found["classes"] == truth["y"])[known].tolist()
            assert np.array_equal(found["classes"] > 0, truth["tissue_mask"])
    assert np.mean(right) > 0.75


def test_written_cores_from_training_to_class_maps(runner: Runner, cores: Path, tmp_path: Path) -> None:
    """Every step of the way; how good it gets is measured on the phantom."""
    run = tmp_path / "run"
    done = runner("ssmunet", "train", "--data", cores, "--run-dir", run, *TINY, "--data.split", "group:P2")
    assert done.returncode == 0, done.stderr
    assert summary_of(run)["data"] == str(cores)

    done = runner("ssmunet", "evaluate", run)
    assert done.returncode == 0, done.stderr
    assert "core_4" in done.stdout
    assert "core_1" not in done.stdout

    arrays = core(4)
    falling = write(tmp_path / "other", 9, **arrays | {"X": arrays["X"][..., ::-1], "wn": WAVENUMBERS[::-1], "y": None})
    done = runner("ssmunet", "predict", run, cores / "core_4.npz", falling, "--out", "maps")
    assert done.returncode == 0, done.stderr
    maps = []
    for name in ("core_4", "core_9"):
        with np.load(tmp_path / "maps" / f"{name}_classes.npz", allow_pickle=False) as stored:
            maps.append(dict(stored))
        with Image.open(tmp_path / "maps" / f"{name}_classes.png") as picture:
            assert np.array_equal(picture, maps[-1]["classes"])
    found = maps[0]
    assert found["classes"].shape == SHAPE
    assert found["probabilities"].shape == (3, *SHAPE)
    assert found["class_names"].tolist() == ["red", "green", "blue"]
    assert np.array_equal(found["classes"] > 0, arrays["tissue_mask"])
    assert np.allclose(found["probabilities"].sum(0, dtype=float)[arrays["tissue_mask"]], 1, atol=0.01)
    assert all(np.array_equal(found[key], maps[1][key]) for key in found)

    done = runner("ssmunet", "export", run, "--out", "network")
    assert done.returncode == 0, done.stderr
    done = runner("ssmunet", "train", "--data", cores, "--run-dir", "tuned", *TINY, "--data.split", "group:P2",
                  "--model.features", "network")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "NOTE: baseline: there is none beside the scores" in done.stdout
    done = runner("ssmunet", "predict", "tuned", cores / "core_4.npz", "--out", "tuned-maps")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tuned-maps" / "core_4_classes.png").is_file()


def test_check_tells_what_is_annotated_and_that_wavenumbers_fall(runner: Runner, cores: Path) -> None:
    write(cores, 0, X=core(0)["X"][..., ::-1], wn=WAVENUMBERS[::-1])
    done = runner("ssmunet", "check", "--data", cores, *CLASSES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "core_0.npz: wavenumbers fall from 1800 to 900" in done.stdout
    assert "of the pixels are annotated" in done.stdout
    assert "class 3 blue:" in done.stdout


def test_unannotated_pixels_as_a_class_stop_the_run(runner: Runner, cores: Path, tmp_path: Path) -> None:
    words = [*TINY, "--health.mode", "stop", "--data.ignore", "None"]
    done = runner("ssmunet", "train", "--data", cores, "--run-dir", "run", *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "label 0 (unannotated) is trained as a class" in done.stderr
    assert "Set data.ignore to 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert summary_of(tmp_path / "run")["status"] == "unhealthy"


def test_check_lists_every_faulty_core(runner: Runner, cores: Path, tmp_path: Path) -> None:
    arrays = core(0)
    unmeasured = arrays["X"].copy()
    unmeasured[7, 9, 50] = np.nan
    off = arrays["y"].copy()
    off[8, 8] = 9
    faults: dict[str, tuple[dict[str, Any], str]] = {
        "core_10": ({"wn": None}, "no 'wn' in it"),
        "core_12": ({"X": None}, "no 'X' in it"),
        "core_16": ({"wn": WAVENUMBERS[:-1]}, "101 channels of spectra but 100 wavenumbers"),
        "core_18": ({"X": unmeasured}, "1 pixel of the tissue with NaN or infinite values"),
        "core_20": ({"tissue_mask": arrays["tissue_mask"].T}, "26 × 20"),
        "core_22": ({"y": off}, "label 9 in 1 pixel is no class"),
        "core_24": ({"y": np.zeros(SHAPE, int)}, "not one pixel is annotated"),
        "core_26": ({"wn": np.roll(WAVENUMBERS, 3)}, "is followed by"),
    }
    for name, (changed, _) in faults.items():
        write(cores, int(name.removeprefix("core_")), **changed)
    write(cores, 14, y=None)
    done = runner("ssmunet", "check", "--data", cores, *CLASSES)
    assert done.returncode == 2
    assert any("core_14" in line and "label" in line for line in done.stdout.splitlines() if line.startswith("warning"))
    said = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("error ")}
    for name, (_, message) in faults.items():
        assert message in said[f"{name}:"]
        assert f"{name}.npz" in said[f"{name}:"]
    assert len(said) == len(faults)
    assert "Traceback" not in done.stdout + done.stderr

    done = runner("ssmunet", "train", "--data", cores, "--run-dir", "run", *TINY)
    assert done.returncode == 2
    assert all(f"{name}.npz" in done.stderr for name in faults)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_meta_saved_as_an_object_and_torn_files_are_refused(runner: Runner, cores: Path) -> None:
    objects, torn = write(cores, 3, meta=np.array({"patient_id": "P1"}, dtype=object)), cores / "core_5.npz"
    torn.write_bytes(torn.read_bytes()[:50_000])
    for command in ("check", "train"):
        done = runner("ssmunet", command, "--data", cores, *CLASSES)
        assert done.returncode == 2
        assert f"{objects}: 'meta' was saved as an array of Python objects" in done.stderr
        assert "python -c" in done.stderr
        assert f"{torn}: not a readable npz file" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_patient_in_two_splits_is_refused(runner: Runner, cores: Path, tmp_path: Path) -> None:
    leaking = tmp_path / "split.yaml"
    leaking.write_text("train: [core_0, core_2, core_3]\nvalidation: [core_1, core_4, core_5]\n")
    for side, seed in (("train", 0), ("train", 2), ("val", 1), ("val", 4)):
        write(tmp_path / "folders" / side, seed)
    for words in (["train", "--data", cores, "--data.split", leaking], ["check", "--data", "folders"]):
        done = runner("ssmunet", *words, *CLASSES)
        assert done.returncode == 2
        assert "P0" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_cores_that_do_not_say_whose_they_are_are_never_split_at_random(runner: Runner, cores: Path) -> None:
    write(cores, 3, meta=json.dumps({"core_id": "3", "slide_id": "S1"}))
    done = runner("ssmunet", "train", "--data", cores, "--run-dir", "run", *TINY)
    assert done.returncode == 2
    assert "core_3.npz: its meta does not say which patient the core is of" in done.stderr
    assert "data.group_by" in done.stderr


def test_a_mosaic_is_cut_into_cores_that_check_accepts(runner: Runner, tmp_path: Path) -> None:
    rows, columns = np.mgrid[:80, :120]
    tissue = (rows % 40 - 20) ** 2 + (columns % 40 - 20) ** 2 < 13**2
    heights = tissue * np.random.default_rng(0).uniform(0.4, 1.0, tissue.shape)
    spectra = heights[..., None] * np.exp(-(((WAVENUMBERS - 1655) / 25) ** 2))
    labels = tissue * (1 + (columns // 4 + rows // 4) % 3)
    np.savez(tmp_path / "core_tma.npz", X=spectra.astype(np.float32), wn=WAVENUMBERS, y=labels)
    done = runner("ssmunet", "dearray", "core_tma.npz", "--out", "look", "--preview")
    assert done.returncode == 0, done.stderr
    assert "6 cores in 2 rows and 3 columns" in done.stdout
    table = tmp_path / "look/cores.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(line.replace(",,yes", f",P{n},yes") for n, line in enumerate(lines)))
    done = runner("ssmunet", "dearray", "core_tma.npz", "--out", "cut", "--table", table)
    assert done.returncode == 0, done.stderr
    done = runner("ssmunet", "check", "--data", "cut", *CLASSES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 records in 6 groups" in done.stdout
    done = runner("ssmunet", "dearray", "core_tma.npz", "--out", "cut")
    assert done.returncode == 2
    assert "cut exists and is not an empty folder" in done.stderr
