"""`serve` with the real projects: the answer to an upload is what `predict` writes, byte for byte."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("runner_serve")

RUNNER = str(Path(sys.executable).with_name("runner"))
TINY = ("--epochs", "1", "--train.steps-per-epoch", "1", "--device", "cpu", "--workers", "0")


def run(folder: Path, *words: str) -> None:
    done = subprocess.run([RUNNER, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def served(folder: Path, *words: str) -> Iterator[str]:
    """Start a server, and yield its address."""
    command = [RUNNER, *words, "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+/", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def post(address: str, body: bytes) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, body), timeout=600) as answer:
        return answer.read()


def zipped(*files: Path, below: Path) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        for file in files:
            archive.write(file, file.relative_to(below))
    return kept.getvalue()


def first_record(project: str, data: Path) -> list[Path]:
    """The files of one record of a phantom."""
    if project == "openkbp":
        return sorted((data / "train-pats" / "pt_1").iterdir())
    if project == "dinocell":
        images = sorted(data.rglob("*.tif*"))
        field = images[0].name.partition("-")[0]  # r01c01f01p01-ch1sk1fk1fl1.tiff
        return [image for image in images if image.parent == images[0].parent and image.name.startswith(field)]
    pattern = {"brainunet": "*_T1w.nii.gz", "ssmunet": "core_*.npz", "vesuvius": "*.tif"}[project]
    return [sorted(data.rglob(pattern))[0]]


BUILT_IN = ("brainunet", "openkbp")
"""Projects whose packages bring weights; a run of the others is trained first, in two minutes."""


@pytest.mark.parametrize(
    "project",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in BUILT_IN),
        *(pytest.param(name, marks=pytest.mark.weekly) for name in ("ssmunet", "vesuvius", "dinocell")),
    ],
)
def test_the_answer_is_what_predict_writes(project: str, tmp_path: Path) -> None:
    data, weights = tmp_path / "data", ("--weights", "builtin")
    run(tmp_path, project, "phantom", "data")
    if project not in BUILT_IN:
        run(tmp_path, project, "train", "--data", "data", "--preset", "demo", "--run-dir", "run", *TINY)
        weights = ("run",)
    files = first_record(project, data)
    single = project in ("brainunet", "vesuvius")
    (tmp_path / "input").mkdir()
    if single:
        given = tmp_path / f"input{''.join(files[0].suffixes)}"
        shutil.copy(files[0], given)
    else:
        given = tmp_path / "input"
        for file in files:
            (given / file.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, given / file.relative_to(data))
    run(tmp_path, project, "predict", *weights, str(given), "--out", "out", "--device", "cpu")
    written = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    with served(tmp_path, project, "serve", *weights) as address:
        body = given.read_bytes() if single else zipped(*files, below=data)
        answer = post(f"{address}predict/{'scan' + ''.join(files[0].suffixes) if single else 'record.zip'}", body)
    if answer.startswith(b"PK\3\4"):
        with zipfile.ZipFile(io.BytesIO(answer)) as archive:
            got = {name: archive.read(name) for name in archive.namelist()}
    else:
        got = {name: answer for name in written if written[name] == answer}
    assert got
    assert {name: written.get(name) for name in got} == got
    of_all = {"volumes.csv"}  # of everything in a folder, which `predict` writes at its end
    assert written.keys() - got.keys() <= of_all
