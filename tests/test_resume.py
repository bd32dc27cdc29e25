"""Real projects, of both engines, killed at random moments and resumed equal those never killed, bit for bit.

At a chosen moment, and for every project, the contract test does that.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

SETTINGS = (
    "--train.epochs 2 --train.steps-per-epoch 30 --train.deterministic --log.every 5 "
    "--checkpoint.every-steps 7 --checkpoint.keep 100 --health.mode warn --train.ema 0.9"
).split()
CASES = {
    "ssmunet, dropout in chunks": [
        *["ssmunet", "--data.patch", "16", "--data.bin", "8", "--train.batch-size", "4", "--model.filters", "4"],
        *["--model.layers", "2", "--model.dropout", "0.1", "--model.chunk", "200"],
    ],
    "brainunet, 2 workers": ["brainunet", "--train.batch-size", "4", "--train.workers", "2"],
    "vesuvius, warps, topology, costs": [
        *["vesuvius", "--data.patch", "32", "32", "32", "--model.base", "4", "--predict.overlap", "0"],
        *["--augment.affine", "1", "--augment.elastic", "1", "--augment.blur", "1", "--loss.measure-every", "3"],
        *["--loss.topology.weight", "0.1", "--loss.topology-every", "4", "--loss.topology-crop", "12"],
    ],
    "dinocell, streamed, two workers": [
        *["dinocell", "--train.workers", "2", "--cache.max-gb", "0.004", "--train.batch-size", "8"],
        *["--data.window", "32", "--data.windows", "8", "--augment.global-size", "16", "--augment.local-size", "8"],
        *["--model.channels", "subset", "--model.drop-path", "0.1", "--loss.measure-every", "3"],
        *["--log.snapshots-every", "4", "--predict.fields", "8"],
    ],
    "openkbp, blocks": ["openkbp", "--train.steps-per-execution", "4", "--data.size", "32", "--augment.rotate", "20"],
}

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "2")
"""More than the one that tests in parallel have: sums over several threads must come out the same too."""


def start(project: str, run: Path, cache: Path, *more: str) -> subprocess.Popen[bytes]:
    runner = str(Path(sys.executable).with_name("runner"))
    command = [runner, project, "train", "--run-dir", str(run), *SETTINGS, *more]
    env = {**os.environ, **THREADS, "XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(project: str, run: Path, cache: Path, *more: str) -> None:
    process = start(project, run, cache, *more)
    said, _ = process.communicate(timeout=540)
    assert process.returncode == 0, said.decode()


def logged(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "timing"} for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_never_killed(tmp_path: Path, cache_home: Path, case: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    project, *more = CASES[case]
    finish(project, whole, cache_home, *more)
    kills, rng = 0, random.Random(case)
    while kills < 3:
        process = start(project, broken, cache_home, *more, *(["--resume"] if kills else []))
        before = len(list(broken.glob("checkpoints/step-*")))
        while process.poll() is None and len(list(broken.glob("checkpoints/step-*"))) <= before:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.5))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert kills, "the run was over before it could be killed"
    finish(project, broken, cache_home, *more, "--resume")

    assert logged(broken) == logged(whole)
    steps = sorted(p.name for p in (whole / "checkpoints").glob("step-*"))
    assert sorted(p.name for p in (broken / "checkpoints").glob("step-*")) == steps
    for name in (steps[0], steps[-1]):
        for file in (whole / "checkpoints" / name).glob("*.safetensors"):
            ours, theirs = load_file(broken / "checkpoints" / name / file.name), load_file(file)
            assert ours.keys() == theirs.keys()
            for tensor, value in theirs.items():
                assert ours[tensor].tobytes() == value.tobytes(), tensor
