"""Two processes through the engine learn what one learns with the whole batch: DDP and FSDP, Sinkhorn and centres."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

WORDS = [
    *"--preset demo --data.window 32 --data.windows 4 --data.validation-windows 1 --model.prototypes 48".split(),
    *"--model.hidden 32 --model.bottleneck 16 --augment.global-size 16 --augment.local-size 8".split(),
    *"--augment.locals 2 --augment.noise 0 --validate.batch-size 4 --train.epochs 2 --train.learning-rate 1e-3".split(),
    *"--log.every 1 --predict.fields 2 --health.mode warn --train.device cpu --train.deterministic".split(),
]
LOSSES = {"loss", "dino", "ibot", "koleo", "gradient_norm", "learning_rate", "grey_levels"}


def trained(data: Path, run: Path, *words: str) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Lines of the training's log and its validations, and all tensors at its end by name."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(run.parent / "cache")}
    command = [Path(sys.executable).with_name("runner"), "dinocell", "train", "--data", data, "--run-dir", run]
    done = subprocess.run(
        [*map(str, command), *WORDS, *words], env=environment, text=True, capture_output=True, timeout=480, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(sorted(run.glob("checkpoints/step-*"))[-1].glob("*.safetensors")):
        for name, rows in load_file(file).items():  # with fsdp each process has written its rows
            tensors[name] = np.concatenate([tensors[name], rows]) if name in tensors else rows
    return [line for line in lines if line["event"] in ("train", "validation")], tensors


@pytest.mark.parametrize(("strategy", "centring"), [("ddp", "sinkhorn"), ("fsdp", "centre")])
def test_two_processes_are_one(strategy: str, centring: str, write_plates: Callable[..., Path], tmp_path: Path) -> None:
    data = write_plates({"P1": 4, "P2": 4})
    centred = ("--loss.centring", centring)
    one, whole = trained(data, tmp_path / "one", *centred, "--train.batch-size", "8")
    pair = ("--train.batch-size", "4", "--devices", "2", "--train.strategy", strategy)
    two, parts = trained(data, tmp_path / "two", *centred, *pair)
    steps = [(line["event"], line["step"]) for line in one]
    assert steps == [(line["event"], line["step"]) for line in two]
    assert [event for event, _ in steps].count("train") >= 4
    for line, other in zip(one, two, strict=True):
        assert {"dino", "ibot", "koleo"} <= line.keys()
        for name in LOSSES & line.keys():
            assert other[name] == pytest.approx(line[name], rel=1e-4), (line["event"], line["step"], name)
    centres = {f"{of}_centring.centre" for of in ("image", "patch")} if centring == "centre" else set()
    network = {name for name in whole if name.startswith(("student.", "teacher."))} | centres
    assert len(network) > 100
    for name in network:  # the student has moved by 2·10⁻³
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-3, atol=2e-5, err_msg=name)
