"""The paths that only a GPU has, on one: `python -m pytest tests/test_on_gpu.py`. Skipped without a CUDA device.

docs/how-it-works/gpu-paths.md says what was seen, on which card, and with which versions.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from workspace import ROOT

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
    pytest.mark.timeout(900),
]
PROJECTS = ["brainunet", "dinocell", "ssmunet", "vesuvius"]


def done(*command: object, folder: Path, **environment: str) -> str:
    """Return what the command printed; fail unless it ends with 0."""
    words = [sys.executable, *map(str, command)]
    ended = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


def runner(*words: object, folder: Path, **environment: str) -> str:
    program = "import sys; from runner_core.cli import main; sys.exit(main())"
    return done("-c", program, *words, folder=folder, XDG_CACHE_HOME=str(folder / "cached"), **environment)


def test_the_engine(tmp_path: Path) -> None:
    """The checks of packages/core/tests/pretend/engine.py, whose numbers are the CPU's within rounding."""
    script = ROOT / "packages" / "core" / "tests" / "pretend" / "engine.py"
    wrong = json.loads(done(script, "cuda", folder=tmp_path).splitlines()[-1])
    assert wrong
    assert not any(wrong.values()), "\n".join(f"{name}: {text}" for name, text in wrong.items() if text)


@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_trains_validates_predicts_and_is_exported(project: str, tmp_path: Path) -> None:
    found = json.loads(
        done(ROOT / "tests" / "rehearse.py", project, tmp_path, "cuda", folder=tmp_path).splitlines()[-1]
    )
    assert found["precision"] == "bfloat16"
    assert set(found["seen"]) == {"torch.bfloat16"}
    assert math.isfinite(found["loss"])
    assert not found["validated"]
    assert found["devices"] == ["cuda:0"]
    assert found["written"]
    assert found["memory"]


WAYS = {
    "as it comes": (),
    "float32": ("--precision.mode", "float32"),
    "tf32": ("--precision.mode", "tf32"),
    "float16": ("--precision.mode", "float16"),
    "channels last": ("--train.channels-last", "on"),
    "compiled": ("--train.compile", "on"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("project", PROJECTS)
def test_kernels_agree_with_plain_float32(project: str, way: str, tmp_path: Path) -> None:
    words = ("--preset", "demo", "--train.device", "cuda", *WAYS[way])
    print(runner(project, "verify-kernels", *words, folder=tmp_path))


@pytest.mark.parametrize("project", PROJECTS)
def test_a_killed_run_resumes_bit_for_bit(project: str, tmp_path: Path) -> None:
    words = ("--preset", "demo", "--train.device", "cuda", "--train.deterministic", "--train.epochs", 3)
    more = ("--train.steps-per-epoch", 6, "--times", 1, "--kills", 1, "--train.kernels", "off")
    assert "equal: " in runner("verify-resume", project, *words, *more, folder=tmp_path)


@pytest.mark.parametrize(
    "words",
    [(), ("--train.compile", "on"), ("--cache.mode", "device")],
    ids=["as it comes", "compiled", "cache on the device"],
)
def test_a_run_trains(words: tuple[str, ...], tmp_path: Path) -> None:
    short = ("--preset", "demo", "--train.device", "cuda", "--train.epochs", 2, "--train.steps-per-epoch", 20)
    runner("brainunet", "train", *short, "--health.mode", "warn", *words, "--run-dir", "run", folder=tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert summary["status"] == "done"
    assert summary["scores"]["dice"] > 0


def on_gpu(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().cuda().requires_grad_() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


@pytest.mark.parametrize("how", ["triton", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_scan_is_the_definition(how: str, dtype: str) -> None:
    scan = SimpleNamespace(**runpy.run_path(str(ROOT / "packages" / "ssmunet" / "tests" / "test_scan.py")))
    for shape in (*scan.SHAPES, (64, 425, 48, 16), (7, 300, 33, 17)):
        scan.check(on_gpu(scan.inputs(*shape, getattr(torch, dtype), **scan.EVERY_OPTION)), how)
    scan.check(on_gpu(scan.extreme(length=20, channels=3)), how)
