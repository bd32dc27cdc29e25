"""A Keras training in two processes, as launchers start them, against one in a single process on two devices.

Both are compared with one device in `test_keras_devices`; the sums of two gradients are the same in any order.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ALL = ["--train.device", "cpu", "--train.batch-size", "4", "--train.deterministic", "--train.epochs", "1"]
ALL += ["--checkpoint.every-steps", "5", "--train.patience-seconds", "60"]
PATIENCE = 60.0
HERE = Path(__file__).parent
BOTH = os.pathsep.join(map(str, (HERE / "kills", HERE / "toy" / "project")))
"""Folders of the project kerastoy and of the one that it extends."""

Processes = list["subprocess.Popen[str]"]
Start = Callable[..., Processes]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def plain() -> list[dict[str, str]]:
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2"}
    return [meeting | {"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(2)]


def tensorflow() -> list[dict[str, str]]:
    cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
    tasks = [{"type": kind, "index": 0} for kind in ("chief", "worker")]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


@pytest.fixture
def start(tmp_path: Path, cache_home: Path) -> Start:
    """Start the two processes of a training; the output of process N goes into `NAME.N`."""

    def begin(name: str, variables: list[dict[str, str]], *words: str) -> Processes:
        found = []
        for number, more in enumerate(variables):
            with (tmp_path / f"{name}.{number}").open("w", encoding="utf-8") as out:
                env = {**os.environ, "PYTHONPATH": BOTH, "XDG_CACHE_HOME": str(cache_home), "OMP_NUM_THREADS": "1"}
                line = [str(Path(sys.executable).with_name("runner")), "kerastoy", "train", *words]
                found.append(subprocess.Popen(line, cwd=tmp_path, env=env | more, text=True, stdout=out, stderr=out))
        return found

    return begin


def final_tensors(run: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    newest = max((run / "checkpoints").glob("step-*"))
    return {name: tensor for file in newest.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_same(one: Path, other: Path) -> None:
    """Equal in every bit of the last checkpoint and every number of the log."""
    states = final_tensors(one), final_tensors(other)
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(tensor, states[1][name]) for name, tensor in states[0].items())
    logs = []
    for run in (one, other):
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        wanted = [line for line in lines if line["event"] in ("train", "validation")]
        logs.append([{name: value for name, value in line.items() if name != "timing"} for line in wanted])
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_two_processes_train_as_two_devices_do_and_go_on_after_one_is_killed(start: Start, tmp_path: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("the keras engine is not installed (extra keras)")
    before = start("two", [{}], "--run-dir", "two", "--devices", "2", *ALL)
    assert before[0].wait(240) == 0, (tmp_path / "two.0").read_text()

    whole = start("whole", tensorflow(), "--run-dir", "whole", *ALL)
    killed = start("killed", plain(), "--run-dir", "killed", *ALL)
    limit = time.monotonic() + 240
    while not list(tmp_path.glob("killed/checkpoints/step-*")) and time.monotonic() < limit:
        assert killed[0].poll() is None, (tmp_path / "killed.0").read_text()
        time.sleep(0.01)
    killed[1].send_signal(signal.SIGKILL)
    assert killed[0].wait(PATIENCE + 30) == 75
    said = (tmp_path / "killed.0").read_text()
    assert "process 1 (" in said.splitlines()[-1]
    assert "of 2 ended, so this training ends" in said.splitlines()[-1]
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "process 1 (" in summary["reason"]

    assert [process.wait(240) for process in whole] == [0, 0], (tmp_path / "whole.0").read_text()
    text = (tmp_path / "whole.0").read_text()
    assert text.count("2 processes train together: mirrored; the first one validates") == 1
    assert "train" not in (tmp_path / "whole.1").read_text(), "only the first one speaks"
    assert_same(tmp_path / "two", tmp_path / "whole")

    again = start("again", plain(), "--resume", "killed")
    assert [process.wait(240) for process in again] == [0, 0], (tmp_path / "again.0").read_text()
    assert_same(tmp_path / "whole", tmp_path / "killed")
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert (summary["status"], summary["devices"], summary["strategy"]) == ("done", 2, "mirrored")
