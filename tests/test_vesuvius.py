"""vesuvius through the installed command line: phantom and written volumes, from tif, zarr and npy files to masks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml
import zarr
from safetensors.numpy import load_file
from workspace import Runner, documented_keys

TINY = [
    *"--preset demo --data.patch 16 16 16 --data.patches 4 --model.base 2 --model.multipliers 1 2".split(),
    *"--loss.topology-crop 12 --train.epochs 2 --validate.every 1 --predict.min-size 0 --health.mode warn".split(),
]
EXACT = "--train.deterministic --checkpoint.every-steps 2 --checkpoint.keep 100".split()
SHAPE = (20, 24, 28)
SCROLLS = {"101": "A", "102": "A", "103": "B", "104": "B", "105": "C", "106": "C"}

Pair = tuple[np.ndarray, np.ndarray]


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def volume(seed: int, shape: tuple[int, int, int] = SHAPE) -> Pair:
    """Image and label (uint8): two bright wavy sheets, three voxels thick; a third of the volume is not annotated."""
    rng = np.random.default_rng(seed)
    z, y, x = np.indices(shape)
    label = np.zeros(shape, np.uint8)
    for at in (shape[0] // 4, 3 * shape[0] // 4):
        label[abs(z - at - 1.5 * np.sin((x + y + seed) / 6)) <= 1.5] = 1
    image = np.clip(60 + 120 * label + rng.normal(0, 8, shape), 0, 255).astype(np.uint8)
    label[:, : shape[1] // 3] = 2
    return image, label


def write(root: Path, key: str, image: np.ndarray, label: np.ndarray | None) -> None:
    for name, array in (("train_images", image), ("train_labels", label)):
        if array is not None:
            (root / name).mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(root / name / f"{key}.tif", array, compression="lzw", photometric="minisblack")


def manifest(root: Path, scrolls: dict[str, str]) -> None:
    (root / "train.csv").write_text("\n".join(["id,scroll_id", *(f"{k},{s}" for k, s in scrolls.items())]) + "\n")


@pytest.fixture
def scrolls(tmp_path: Path) -> Path:
    """Two volumes of each of three scrolls, as the challenge has them."""
    folder = tmp_path / "scrolls"
    for seed, key in enumerate(SCROLLS):
        write(folder, key, *volume(seed))
    manifest(folder, SCROLLS)
    return folder


def masks(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: tifffile.imread(path) for path in sorted(folder.glob("*.tif"))}


def refused(runner: Runner, data: Path, folder: Path, said: str, command: str, *more: str | Path) -> str:
    """Assert that `check` or `train` refuses with exit code 2, no traceback and nothing begun; return the whole
    output."""
    words = ["--run-dir", "run"] if command == "train" else []
    done = runner("vesuvius", command, "--data", data, *words, *TINY, *more)
    everything = done.stdout + done.stderr
    assert done.returncode == 2, everything
    assert said in everything
    assert "Traceback" not in everything
    assert not (folder / "run").exists()
    return everything


@pytest.mark.weekly
@pytest.mark.timeout(1500)
def test_the_demo_finds_sheets_of_an_unseen_scroll(runner: Runner, cache_home: Path, tmp_path: Path) -> None:
    """The README's command: the phantom, preset demo. Then a volume of the scroll that it has never seen."""
    run = tmp_path / "run"
    done = runner("vesuvius", "train", "--run-dir", run, fresh=True, timeout=1400)
    assert done.returncode == 0, done.stderr
    assert "differs from the preset default in" in done.stdout
    summary = summary_of(run)
    assert (summary["project"], summary["preset"], summary["data"]) == ("vesuvius", "demo", "phantom")
    assert summary["status"] == "done"
    assert set(summary) == documented_keys()
    assert summary["wall_seconds"] > 0
    assert summary["metrics"]["proxy"] > 0
    assert summary["scores"]["score"] >= summary["baseline"]["score"] + 0.05
    assert summary["scores"]["topo"] >= summary["baseline"]["topo"] + 0.1
    assert summary["scores"]["dice"] >= summary["baseline"]["dice"] + 0.05
    assert {"surface_dice", "voi_score"} <= set(summary["scores"]) & set(summary["baseline"])
    assert len(list((run / "figures").glob("*.png"))) >= 2
    assert "data:image/png" in (run / "report.html").read_text()

    split = yaml.safe_load((run / "split.yaml").read_text())
    phantom = next((cache_home / "runner" / "phantoms" / "vesuvius").rglob("train.csv")).parent
    scroll_of = dict(line.split(",") for line in (phantom / "train.csv").read_text().splitlines()[1:])
    seen = {scroll_of.get(str(name), name) for name in split["train"]}
    unseen = {scroll_of.get(str(name), name) for name in split["validation"]}
    assert unseen
    assert not seen & unseen
    key = next(key for key, scroll in scroll_of.items() if scroll in unseen)
    image = phantom / "train_images" / f"{key}.tif"
    done = runner("vesuvius", "predict", run, image, "--out", "masks", "--probability")
    assert done.returncode == 0, done.stderr
    found, label = masks(tmp_path / "masks"), tifffile.imread(phantom / "train_labels" / f"{key}.tif")
    assert set(np.unique(found[key])) == {0, 1}
    assert found[f"{key}_probability"].max() > 200
    known = label != 2
    both = np.count_nonzero((found[key] == 1) & (label == 1))
    assert 2 * both / (np.count_nonzero(found[key][known]) + np.count_nonzero(label == 1)) > 0.5


@pytest.mark.slow
def test_the_challenges_download_from_check_to_masks(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    """train.csv also lists volumes that the hosts took back, whose files lie in deprecated folders: one note names
    them. test_images is predicted, and what test.csv lists besides is named."""
    old = {"201": "A", "202": "C"}
    for seed, key in enumerate(old, 100):
        write(scrolls / "old", key, *volume(seed))
    for kind in ("images", "labels"):
        (scrolls / "old" / f"train_{kind}").rename(scrolls / f"deprecated_train_{kind}")
    manifest(scrolls, SCROLLS | old)
    write(scrolls / "test", "301", volume(200)[0], None)
    (scrolls / "test" / "train_images").rename(scrolls / "test_images")
    (scrolls / "test.csv").write_text("id,scroll_id\n301,A\n")

    note = "2 deprecated volumes left out (201, 202)"
    done = runner("vesuvius", "check", "--data", scrolls, *TINY)
    assert done.returncode == 0, done.stderr
    assert "6 records in 3 groups" in done.stdout
    assert done.stdout.count(note) == 1
    run = tmp_path / "run"
    done = runner("vesuvius", "train", "--data", scrolls, "--run-dir", run, *TINY, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(note) == 1
    done = runner("vesuvius", "predict", run, scrolls / "test_images", "--out", "masks", "--zip")
    assert done.returncode == 0, done.stderr
    assert masks(tmp_path / "masks").keys() == {"301"}
    done = runner("vesuvius", "validate-submission", "masks/submission.zip", "--data", scrolls)
    assert done.returncode == 0, done.stderr
    assert "1 volume, no fault was found" in done.stdout
    (scrolls / "test.csv").write_text("id,scroll_id\n301,A\n302,A\n")
    done = runner("vesuvius", "validate-submission", "masks/submission.zip", "--data", scrolls)
    assert done.returncode == 2
    assert "1 volume missing: 302.tif" in done.stderr
    done = runner("vesuvius", "predict", run, scrolls / "test_images", "--out", "more")
    assert done.returncode == 2
    assert "302.tif: no such file" in done.stderr
    assert masks(tmp_path / "more").keys() == {"301"}


def test_written_volumes_from_training_to_masks(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    """Every step of the way, from every format; how good it gets is measured on the phantom."""
    run = tmp_path / "run"
    done = runner("vesuvius", "train", "--data", scrolls, "--run-dir", run, *TINY, "--data.split", "group:C")
    assert done.returncode == 0, done.stderr
    summary = summary_of(run)
    assert summary["data"] == str(scrolls)
    assert {"score", "topo", "surface_dice", "voi_score", "dice"} <= set(summary["scores"]) & set(summary["baseline"])

    for folder in (run / "checkpoints").glob("step-*"):
        weights, average = (load_file(folder / f"{name}.safetensors") for name in ("model", "ema"))
        assert weights.keys() == average.keys()
        assert any(not np.array_equal(weights[name], average[name]) for name in weights)

    done = runner("vesuvius", "evaluate", run)
    assert done.returncode == 0, done.stderr
    scored = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"105", "106"} <= scored
    assert not {"101", "102", "103", "104"} & scored

    image, _ = volume(9)
    others = tmp_path / "others"
    others.mkdir()
    tifffile.imwrite(others / "as_tif.tif", image)
    np.save(others / "as_npy.npy", image)
    zarr.create_array(others / "as_zarr2.zarr", data=image, chunks=(8, 8, 8), zarr_format=2)
    zarr.create_array(others / "as_zarr3.zarr", data=image, chunks=(8, 16, 8), zarr_format=3)
    words = [others, scrolls / "train_images" / "105.tif", "--out", "masks", "--probability"]
    done = runner("vesuvius", "predict", run, *words)
    assert done.returncode == 0, done.stderr
    found = masks(tmp_path / "masks")
    names = ("as_tif", "as_npy", "as_zarr2", "as_zarr3", "105")
    assert set(found) == {*names, *(f"{name}_probability" for name in names)}
    for name in names:
        assert found[name].shape == found[f"{name}_probability"].shape == SHAPE
        assert found[name].dtype == found[f"{name}_probability"].dtype == np.uint8
        assert set(np.unique(found[name])) <= {0, 1}
        if name != "105":
            assert np.array_equal(found[name], found["as_tif"])
            assert np.array_equal(found[f"{name}_probability"], found["as_tif_probability"])

    done = runner("vesuvius", "export", run, "--out", "network")
    assert done.returncode == 0, done.stderr
    names = {p.name for p in (tmp_path / "network").iterdir()} - {"figures"}
    assert names == {
        "model.safetensors", "model.json", "network.py", "card.json", "MODEL_CARD.md", "ro-crate-metadata.json",
    }  # fmt: skip

    truncated(scrolls, "105")
    done = runner("vesuvius", "predict", run, scrolls / "train_images" / "105.tif", "--out", "none")
    assert done.returncode == 2
    assert "train_images/105.tif: truncated or damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "none").glob("*"))


def truncated(root: Path, key: str) -> None:
    path = root / "train_images" / f"{key}.tif"
    path.write_bytes(path.read_bytes()[:-3000])


def changed_label(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path, str], None]:
    def spoil(root: Path, key: str) -> None:
        path = root / "train_labels" / f"{key}.tif"
        tifffile.imwrite(path, change(tifffile.imread(path)))

    return spoil


def other_value(label: np.ndarray) -> np.ndarray:
    label[3, 3, 3] = 7
    return label


def as_floats(root: Path, key: str) -> None:
    path = root / "train_images" / f"{key}.tif"
    tifffile.imwrite(path, tifffile.imread(path).astype(np.float32) / 255)


def small(root: Path, key: str) -> None:
    write(root, key, *volume(0, (12, 24, 28)))


def unlabelled(root: Path, key: str) -> None:
    (root / "train_labels" / f"{key}.tif").unlink()


FAULTS: dict[str, tuple[Callable[[Path, str], None], str, str]] = {
    "truncated tif": (truncated, "train_images/KEY.tif", "truncated or damaged"),
    "label with other values": (changed_label(other_value), "train_labels/KEY.tif", "holds 7 in 1 voxel"),
    "label of another shape": (changed_label(lambda x: x[:-1]), "train_labels/KEY.tif", "19 × 24 × 28 voxels, but"),
    "label of floats": (changed_label(lambda x: x.astype(np.float32)), "train_labels/KEY.tif", "type float32"),
    "wrong dtype": (as_floats, "train_images/KEY.tif", "voxels of type float32"),
    "no label": (
        lambda root, key: (root / "train_labels" / f"{key}.tif").unlink(),
        "train_labels/KEY.tif",
        "o such file",
    ),
    "all ignored": (changed_label(lambda x: np.full_like(x, 2)), "KEY.tif", "every voxel is 2 (ignore)"),
    "smaller than the patch": (small, "KEY.tif", "12 × 24 × 28 voxels, smaller than the patch of 16 × 16 × 16"),
}
"""Each damage to a volume, the file named for it (KEY: the volume's id), and the message."""


def test_every_faulty_volume_is_named_at_once(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    """`check` lists all of them; `train` refuses what cannot be read or learned from before there is a run folder."""
    faulty: dict[str, str] = {}
    for number, (fault, (spoil, _, _)) in enumerate(FAULTS.items()):
        key = faulty[fault] = str(200 + number)
        write(scrolls, key, *volume(10 + number))
        spoil(scrolls, key)
    manifest(scrolls, SCROLLS | dict.fromkeys(faulty.values(), "D"))

    everything = refused(runner, scrolls, tmp_path, f"{len(FAULTS) - 1} faulty records", "check")
    # one line names all that are too small, by their files
    errors = {
        line.split()[1].replace(".tif:", ":"): line for line in everything.splitlines() if line.startswith("error ")
    }
    for fault, (_, file, said) in FAULTS.items():
        line = errors.pop(f"{faulty[fault]}:")
        assert file.replace("KEY", faulty[fault]) in line
        assert said in line
    assert not errors

    unread = [fault for fault, (_, file, _) in FAULTS.items() if "/" in file]
    everything = refused(runner, scrolls, tmp_path, "records cannot be used", "train")
    for fault in unread:
        assert FAULTS[fault][1].replace("KEY", faulty[fault]) in everything
        assert FAULTS[fault][2] in everything


@pytest.mark.parametrize("fault", ["smaller than the patch", "all ignored"])
def test_a_volume_of_which_nothing_can_be_learned(runner: Runner, scrolls: Path, tmp_path: Path, fault: str) -> None:
    FAULTS[fault][0](scrolls, "101")
    said = refused(runner, scrolls, tmp_path, FAULTS[fault][2], "train")
    assert any("101" in line for line in said.splitlines() if FAULTS[fault][2] in line)


def test_scrolls_without_any_surface(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    for key in SCROLLS:
        changed_label(lambda x: np.where(x == 1, 0, x))(scrolls, key)
    refused(runner, scrolls, tmp_path, "surface voxel", "train")


def test_a_volume_that_the_manifest_lacks(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    manifest(scrolls, {key: scroll for key, scroll in SCROLLS.items() if key != "104"})
    refused(runner, scrolls, tmp_path, "train.csv: no row for 104", "train")


def test_a_scroll_on_both_sides_is_refused(runner: Runner, scrolls: Path, tmp_path: Path) -> None:
    leaking = tmp_path / "split.yaml"
    leaking.write_text("train: ['101', '103', '104']\nvalidation: ['102', '105', '106']\n")
    for command in ("check", "train"):
        refused(runner, scrolls, tmp_path, "1 group would be in two splits (A)", command, "--data.split", leaking)


@pytest.mark.weekly
def test_killed_while_targets_are_made(scrolls: Path, tmp_path: Path) -> None:
    """Half a cache counts as none: the next start makes it whole, and learns the same from it."""
    for seed in range(20, 32):
        write(scrolls, str(seed), *volume(seed, (96, 96, 96)))
    manifest(scrolls, SCROLLS | {str(seed): "ABC"[seed % 3] for seed in range(20, 32)})
    words = ["vesuvius", "train", "--data", str(scrolls), *TINY, *EXACT, "--train.steps-per-epoch", "4"]

    def start(run: str, cache: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("runner")), *words, "--run-dir", run]
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / cache), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def growing() -> list[Path]:
        return [p for p in (tmp_path / "killed").rglob("array-*.bin") if p.stat().st_size]

    killed = start("run", "killed")
    while killed.poll() is None and not growing():
        time.sleep(0.01)
    assert killed.poll() is None, killed.communicate()[0].decode()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left = {p.parent for p in growing()}
    assert left
    assert not any((folder / "meta.json").exists() for folder in left)

    for run, cache in (("run", "killed"), ("whole", "whole")):
        shutil.rmtree(tmp_path / run, ignore_errors=True)
        process = start(run, cache)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
    assert not any(folder.exists() for folder in left)
    ours, theirs = (sorted((tmp_path / run / "checkpoints").rglob("*.safetensors"))[-1] for run in ("run", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
