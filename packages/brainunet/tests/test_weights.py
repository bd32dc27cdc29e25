"""The weights in the package: small, honest about their data, and able to strip heads that they were not trained on."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nibabel
import numpy as np
import pytest
import runner_core
from runner_brainunet.phantom import write_phantom

ROOT = Path(__file__).parents[3]
LARGEST = 8_000_000


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A generated head, and its brain mask."""
    folder = tmp_path_factory.mktemp("phantom")
    write_phantom(folder, np.random.default_rng(0))
    mask = sorted(folder.rglob("*_brainmask.nii.gz"))[0]
    return mask.with_name(mask.name.replace("_brainmask", "")), mask


def test_the_folder_holds_a_card_and_no_place_of_this_machine() -> None:
    folder = runner_core.open("builtin", "brainunet").path
    card, notice = (folder / name for name in ("MODEL_CARD.md", "NOTICE"))
    for words in ("Lesjak", "CC BY 4.0", "research"):
        assert words in card.read_text(encoding="utf-8") + notice.read_text(encoding="utf-8")
    texts = "".join(p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.suffix in (".yaml", ".json", ".md"))
    for word in ("/work", "/tmp", "/home", "/root"):
        assert word not in texts


def test_the_wheel_brings_them_and_predicts_with_them(scan: tuple[Path, Path], tmp_path: Path) -> None:
    words = ["uv", "build", "-q", "--offline", "--wheel", "--package", "runner-brainunet", "--out-dir", str(tmp_path)]
    built = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=False)
    if built.returncode and "offline" in built.stderr:
        pytest.skip("the build backend is not in uv's cache")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = [file for file in archive.infolist() if "/weights/" in file.filename]
        archive.extractall(tmp_path / "site")
    assert 0 < sum(file.file_size for file in weights) <= LARGEST
    assert {"MODEL_CARD.md", "NOTICE"} <= {Path(file.filename).name for file in weights}

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "site").rglob("*") if path.is_file()}
    runner = str(Path(sys.executable).with_name("runner"))
    words = [runner, "brainunet", "predict", "--weights", "builtin", str(scan[0]), "--out", "masks"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout, "they are those of the wheel"
    assert "For research only" in done.stdout
    found, truth = (np.asarray(nibabel.load(p).dataobj) > 0 for p in (next(tmp_path.glob("masks/*.nii.gz")), scan[1]))
    assert found.shape == truth.shape
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "site").rglob("*") if path.is_file()}
