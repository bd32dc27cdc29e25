"""Built-in weights as users get them: in the wheel of their package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

LARGEST_WEIGHTS = 8_000_000
"""Bytes of all files of built-in weights together."""


def predict_from_wheel(package: Path, project: str, path: Path, folder: Path) -> tuple[Path, str]:
    """Predict `path` by the command line with the weights in the wheel of `package`, and return predictions and output.

    The wheel is built of the checkout, unpacked below `folder` and put before the installed package. Checked are: its
    weights have a card and a notice, are not too large, are those that predict, and are not changed by that. Skips the
    test where the build backend would have to be downloaded.
    """
    site = folder / "site"
    words = ["uv", "build", "-q", "--offline", "--wheel", str(package), "--out-dir", str(folder)]
    built = subprocess.run(words, text=True, capture_output=True, check=False)
    if built.returncode and "offline" in built.stderr:
        pytest.skip("the build backend is not in uv's cache")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = [file for file in archive.infolist() if "/weights/" in file.filename]
        archive.extractall(site)
    assert 0 < sum(file.file_size for file in weights) <= LARGEST_WEIGHTS
    assert {"MODEL_CARD.md", "NOTICE"} <= {Path(file.filename).name for file in weights}

    before = _times(site)
    runner, out = str(Path(sys.executable).with_name("runner")), folder / "predictions"
    words = [runner, project, "predict", "--weights", "builtin", str(path), "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout, "the weights are those of the wheel"
    assert before == _times(site)
    return out, done.stdout


def texts_of_weights(folder: Path) -> str:
    """Return card, notice, settings and facts of built-in weights; they must not name a place of this machine."""
    names = (".yaml", ".json", ".md")
    files = [path for path in folder.rglob("*") if path.suffix in names or path.name == "NOTICE"]
    found = "".join(path.read_text(encoding="utf-8") for path in sorted(files))
    for word in ("/work", "/tmp", "/home", "/root"):
        assert word not in found, f"{folder} names a place of the machine that trained: {word}"
    return found


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
