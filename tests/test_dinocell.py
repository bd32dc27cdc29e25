"""dinocell through the installed command line: phantom, written plates and real images, from folders and from S3, to
embeddings and a network for timm."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tifffile
import torch
from s3server import S3
from torch.nn import functional
from workspace import Runner, documented_keys

TINY = [
    *"--preset demo --data.windows 1 --data.validation-windows 1 --data.window 32 --model.prototypes 64".split(),
    *"--model.hidden 32 --model.bottleneck 16 --augment.global-size 16 --augment.local-size 8".split(),
    *"--augment.locals 2 --train.batch-size 4 --train.epochs 1 --log.every 1 --log.snapshots-every 2".split(),
    *"--health.mode warn --train.deterministic".split(),
]
BUCKET = "cellpainting-gallery"
PREFIX = "cpg0016-jump/source_4/images/Batch1/images/plate1/Images"
URL = f"s3://{BUCKET}/{PREFIX}"
REMOTE = ["--remote.credentials", "anonymous", "--remote.retries", "1"]


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def weights(run: Path) -> list[bytes]:
    """Return the contents of each checkpoint's files: student and teacher, optimizer, generators."""
    return [file.read_bytes() for file in sorted(run.glob("checkpoints/step-*/*.safetensors"))]


def image(seed: int, shape: tuple[int, int] = (48, 40)) -> np.ndarray:
    """uint16: blobs on a background, with noise."""
    rng = np.random.default_rng(seed)
    y, x = np.indices(shape)
    blobs = sum(np.exp(-((y - rng.uniform(0, 48)) ** 2 + (x - rng.uniform(0, 40)) ** 2) / 20) for _ in range(6))
    return np.clip(200 + 2000 * blobs + rng.normal(0, 20, shape), 0, 65535).astype(np.uint16)


def path_of(root: Path, plate: str, well: int, channel: int) -> Path:
    return root / plate / f"{plate}_A{well:02d}_site1_Ch{channel}.tif"


@pytest.fixture
def plates(tmp_path: Path) -> Path:
    """Plates A and B of six wells, three channels."""
    root = tmp_path / "plates"
    for p, plate in enumerate("AB"):
        (root / plate).mkdir(parents=True)
        for well in range(1, 7):
            for channel in (1, 2, 3):
                tifffile.imwrite(path_of(root, plate, well, channel), image(100 * p + 10 * well + channel))
    return root


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


@pytest.fixture(autouse=True)
def nobody_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def refused(runner: Runner, folder: Path, *words: str | Path) -> str:
    """Return the output of a command that ends with exit code 2, without a traceback, and has begun nothing."""
    done = runner("dinocell", *words, *TINY)
    everything = done.stdout + done.stderr
    assert done.returncode == 2, everything
    assert "Traceback" not in everything
    assert not (folder / "run").exists()
    return everything


# ---------------------------------------------------------------- from images to embeddings


@pytest.mark.weekly
@pytest.mark.timeout(1500)
def test_the_demo_learns_what_pixels_do_not_say(runner: Runner, tmp_path: Path) -> None:
    """The README's command: the treatment is found on plates that pretraining never saw, and neither by the network
    before its first step nor by statistics of pixels."""
    run = tmp_path / "run"
    done = runner("dinocell", "train", "--run-dir", run, fresh=True, timeout=1400)
    assert done.returncode == 0, done.stderr
    summary = summary_of(run)
    assert (summary["project"], summary["preset"], summary["data"]) == ("dinocell", "demo", "phantom")
    assert set(summary) == documented_keys() | {"streaming", "further"}
    untrained = summary["further"]["untrained network"]
    for other in (summary["baseline"], untrained):
        assert summary["scores"]["probe"] >= other["probe"] + 0.05
    assert not [finding for finding in summary["health"] if finding["level"] == "error"]


def test_a_short_run_on_the_phantom(runner: Runner, tmp_path: Path) -> None:
    """Two of its files are damaged: others take their places. Attention from the beginning; scores beside others'."""
    run = tmp_path / "run"
    done = runner("dinocell", "train", "--run-dir", run, *TINY, "--train.batch-size", "48", "--predict.fields", "40")
    assert done.returncode == 0, done.stderr
    summary = summary_of(run)
    assert (summary["status"], summary["data"]) == ("done", "phantom")
    assert set(summary) == documented_keys() | {"streaming", "further"}
    for method in (summary["scores"], summary["baseline"], summary["further"]["untrained network"]):
        assert 0 <= method["probe"] <= 1
        assert 0 <= method["retrieval"] <= 1
    steps = sorted(path.stem for path in (run / "figures").glob("attention-*.png"))
    assert steps[:2] == ["attention-00000000", "attention-00000002"]
    assert "data:image/png" in (run / "report.html").read_text()
    bad = [json.loads(line) for line in (run / "bad_samples.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in bad} == {"corrupt"}
    assert all(line["replaced_by"] != line["record"] for line in bad)


@pytest.mark.slow
def test_real_images_from_a_folder_and_from_s3(runner: Runner, s3: S3, real_plate: Path, tmp_path: Path) -> None:
    """Training, retrieval, embeddings and the exported network are the same, wherever the images lie."""
    for file in sorted(real_plate.iterdir()):
        s3.put(BUCKET, f"{PREFIX}/{file.name}", file.read_bytes())
    words = [*TINY, "--data.split", "none", "--data.window", "256", "--remote.endpoint", s3.endpoint, *REMOTE]
    for data, run in ((real_plate, "local"), (URL, "run")):
        done = runner("dinocell", "train", "--data", data, "--run-dir", run, *words)
        assert done.returncode == 0, done.stderr
    run, local = tmp_path / "run", tmp_path / "local"
    summary = summary_of(run)
    assert summary["data"] == URL
    assert weights(run) == weights(local)
    assert summary["scores"] == summary_of(local)["scores"]
    assert 0 <= summary["scores"]["retrieval"] <= 1
    assert summary["baseline"]["retrieval"] > 0.5

    done = runner("dinocell", "evaluate", "run")
    assert done.returncode == 0, done.stderr
    assert "nearest field is of the same well" in done.stdout

    done = runner("dinocell", "predict", "run", URL, "--out", "embeddings", "--predict.unit", "window")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "embeddings" / "embeddings.parquet")
    assert {(row["plate"], row["well"], row["site"]) for row in table.select(range(5)).to_pylist()} == {
        ("plate1", well, site) for well in ("A14", "B13", "C12") for site in "12"
    }

    done = runner("dinocell", "export", "run", "--out", "network")
    assert done.returncode == 0, done.stderr
    made = json.loads(table.schema.metadata[b"runner_dinocell"])
    row = table.slice(7, 1).to_pylist()[0]
    found = embedded_by_hand(tmp_path / "network", real_plate, row, made["window"])
    np.testing.assert_allclose(found, row["embedding"], rtol=1e-3, atol=1e-4)


def embedded_by_hand(network: Path, plate: Path, row: dict[str, Any], side: int) -> np.ndarray:
    """Return what the exported network alone makes of a window, with grey values scaled as model.json describes."""
    spec = importlib.util.spec_from_file_location("exported_network", network / "network.py")
    assert spec is not None
    assert spec.loader is not None
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    names = [f"{row['plate']}_{row['well']}_site{row['site']}_Ch{channel}.tif" for channel in range(1, 6)]
    field = np.stack([tifffile.imread(plate / name) for name in names])
    assert field.dtype == np.uint16
    levels = json.loads((network / "model.json").read_text())["input"]["low and high"]  # of the set: data.scale auto
    low, high = np.array(levels).T[..., None, None]
    y, x = row["window_y"], row["window_x"]
    scaled = ((field[:, y : y + side, x : x + side] - low) / (high - low)).clip(0, 1.5)
    small = functional.interpolate(torch.tensor(scaled[None]), (16, 16), mode="bilinear", antialias=True)
    return exported.embed(exported.load(network), ((small - 0.15) / 0.15).float())[0].numpy()


def test_a_network_trained_by_a_manifest_is_used_with_other_images(
    runner: Runner, plates: Path, tmp_path: Path
) -> None:
    """Its manifest, named from where training began, is of the data that were trained on."""
    rows = [f"A,A{well:02d},1,{c},A/A_A{well:02d}_site1_Ch{c}.tif" for well in range(1, 5) for c in (1, 2, 3)]
    (tmp_path / "images.csv").write_text("\n".join(["plate,well,site,channel,path", *rows]) + "\n")
    words = ["--data", plates, "--data.manifest", "images.csv", "--data.split", "none", *TINY]
    done = runner("dinocell", "train", "--run-dir", "run", *words)
    assert done.returncode == 0, done.stderr
    assert f"manifest: {tmp_path / 'images.csv'}" in (tmp_path / "run" / "config.yaml").read_text()

    done = runner("dinocell", "predict", "run", plates / "B", "--out", "embeddings")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "embeddings" / "embeddings.parquet")
    assert set(table.column("plate").to_pylist()) == {"B"}

    for words in (["--data", plates / "B"], ["--data", plates, "--data.manifest", "images.csv"]):
        done = runner("dinocell", "evaluate", "run", *words, "--split", "all")
        assert done.returncode == 0, done.stderr
        assert f"{6 if len(words) == 2 else 4} records (all)" in done.stdout


# ---------------------------------------------------------------- bad input


def test_every_faulty_field_is_named(runner: Runner, plates: Path, tmp_path: Path) -> None:
    """`check` lists all of them; `train`, of so many, refuses to go on, and says which."""
    cut = path_of(plates, "A", 3, 2)
    cut.write_bytes(cut.read_bytes()[:-1000])
    narrow = path_of(plates, "A", 4, 1)
    tifffile.imwrite(narrow, (tifffile.imread(narrow) >> 8).astype(np.uint8))
    path_of(plates, "A", 5, 2).unlink()
    small = path_of(plates, "A", 6, 1)
    tifffile.imwrite(small, image(0)[:-8])
    said = refused(runner, tmp_path, "check", "--data", plates, "--data.split", "group:B")
    for well, fault in (
        (3, f"{cut}: truncated or damaged, or no TIFF file"),
        (4, f"{narrow}: 8 bits a pixel, where other channels of A/A04/1 have 16"),
        (5, "no image of channel 2 (there are 1, 3)"),
        (6, f"{small}: 40 × 40 pixels, where other channels of A/A06/1 have 48 × 40"),
    ):
        assert any(f"A/A{well:02d}/1: " in line and fault in line for line in said.splitlines()), fault
    assert "4 faulty records" in said

    done = runner("dinocell", "train", "--data", plates, "--run-dir", "run", *TINY, "--data.split", "group:B")
    assert done.returncode == 2, done.stdout
    assert "more than 1%" in done.stderr
    assert "Traceback" not in done.stderr
    assert any(str(file) in done.stderr for file in (cut, narrow, small))


def test_fields_of_8_bits_among_those_of_16(runner: Runner, plates: Path, tmp_path: Path) -> None:
    for channel in (1, 2, 3):
        file = path_of(plates, "A", 2, channel)
        tifffile.imwrite(file, (tifffile.imread(file) >> 8).astype(np.uint8))
    said = refused(runner, tmp_path, "check", "--data", plates)
    assert f"1 field of 8 bits a pixel among those of 16: {path_of(plates, 'A', 2, 1)}" in said


def test_a_column_of_the_manifest_that_is_none(runner: Runner, plates: Path, tmp_path: Path) -> None:
    table = tmp_path / "images.csv"
    table.write_text("plate,wel,site,channel,path\nA,A01,1,1,A/A_A01_site1_Ch1.tif\n")
    said = refused(runner, tmp_path, "train", "--data", plates, "--data.manifest", table, "--run-dir", "run")
    assert f"{table}: no column 'well'; did you mean 'wel'? It has the columns plate, wel, site" in said


def test_a_bucket_that_is_not_there(runner: Runner, s3: S3, tmp_path: Path) -> None:
    remote = ["--remote.endpoint", s3.endpoint, *REMOTE]
    said = refused(runner, tmp_path, "train", "--data", "s3://cellpaintings/plates", "--run-dir", "run", *remote)
    assert "s3://cellpaintings/plates: there is no such bucket" in said


def test_access_that_is_denied(runner: Runner, s3: S3, plates: Path, tmp_path: Path) -> None:
    """Named by their URL, at once: before a run folder is there, and after few requests."""
    for file in sorted(plates.rglob("*.tif")):
        s3.put("private", f"{file.parent.name}/{file.name}", file.read_bytes())
    s3.fail("denied", ".tif")
    remote = ["--remote.endpoint", s3.endpoint, *REMOTE]
    try:
        said = refused(runner, tmp_path, "train", "--data", "s3://private", "--run-dir", "run", *remote)
    finally:
        s3.heal()
    assert "s3://private/A/A_A01_site1_Ch" in said
    assert "the server denies access" in said
    assert s3.count("/private/") < 8


def test_a_table_of_renamed_images_is_guessed_and_then_read(runner: Runner, real_plate: Path, tmp_path: Path) -> None:
    """Real images under names of no known scheme: what is refused names `init-data`, and its table is then read."""
    screen = tmp_path / "screen"
    for path in real_plate.rglob("*_Ch[12].tif"):
        _, well, site, channel = path.stem.split("_")
        (screen / "BR 7" / well).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, screen / "BR 7" / well / f"field {site[4:]} - {'DAPI' if channel == 'Ch1' else 'Mito'}.tif")
    refused = runner("dinocell", "check", "--data", "screen")
    assert refused.returncode == 2
    assert re.search(r"which `runner dinocell init-data \S+/screen` writes", refused.stderr)
    done = runner("dinocell", "init-data", "screen")
    assert done.returncode == 0, done.stderr
    assert "manifest.csv: 12 images of 6 fields" in done.stdout
    assert "channels: DAPI, Mito" in done.stdout
    command = done.stdout.splitlines()[-1].partition("then: runner ")[2].split()
    checked = runner(*command, "--data.split", "none", "--out", "checked")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "6 records in 1 group" in checked.stdout
