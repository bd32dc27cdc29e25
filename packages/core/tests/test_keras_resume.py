"""A Keras run that was killed and resumed equals one that never was, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

TOYS = str(Path(__file__).parent / "engine_toy")
sys.path.insert(0, TOYS)
import engine_toy as toy  # noqa: E402
import keras_toy  # noqa: E402
from runner_core.base.errors import BadInput, Stopped  # noqa: E402
from runner_core.output.runfolder import RunFolder  # noqa: E402
from runner_core.training.snapshots import read_watched  # noqa: E402

pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
from runner_core.engines.keras.trainer import KerasTrainer  # noqa: E402

EVERYTHING = {
    "train__epochs": 4,
    "train__accumulate": 3,
    "train__ema": 0.9,
    "train__clip": 0.5,
    "train__deterministic": True,
    "checkpoint__every_steps": 2,
    "log__every": 5,
}
BLOCKS = {**EVERYTHING, "train__accumulate": 1, "train__steps_per_execution": 2}


class Kill(BaseException):
    """Nothing in the runner catches this."""


def kill_at(monkeypatch, call: int, method: str = "train_step", number: int | None = None) -> None:
    """Call number `call` of a trainer's method ends the process, as far as it can."""
    original, calls = getattr(KerasTrainer, method), []

    def mortal(self, *arguments):
        calls.append(method)
        if len(calls) == call:
            if number is None:
                raise Kill
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    monkeypatch.setattr(KerasTrainer, method, mortal)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    keras_toy.run(toy.small(**EVERYTHING), folder)
    return folder


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks") / "run"
    keras_toy.run(toy.small(**BLOCKS), folder)
    return folder


@pytest.mark.parametrize(
    ("method", "call"),
    [("train_step", n) for n in (1, 2, 4, 7, 12)] + [("validate", 2), ("state", 1), ("state", 4), ("read_log", 3)],
)
def test_killed_anywhere(tmp_path, whole, method, call, monkeypatch):
    with monkeypatch.context() as patched:
        kill_at(patched, call, method)
        with pytest.raises(Kill):
            keras_toy.run(toy.small(**EVERYTHING), tmp_path)
    keras_toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)


def test_what_is_watched_is_what_validation_saw(tmp_path, whole, monkeypatch):
    """The average of the weights; once at the beginning and for each validation, whenever the run was killed."""
    with monkeypatch.context() as patched:
        kill_at(patched, 2, "watch")
        with pytest.raises(Kill):
            keras_toy.run(toy.small(**EVERYTHING), tmp_path)
    keras_toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)
    found = read_watched(RunFolder(tmp_path).events())
    assert [step for step, _ in found] == [0, 3, 6, 9, 12]
    tensors = toy.final_state(tmp_path)[1]
    (average,) = (t for name, t in tensors.items() if name.startswith("ema.") and t.shape == (1,))
    (own,) = (t for name, t in tensors.items() if name.startswith("model.") and t.shape == (1,))
    assert found[-1][1]["last"].tolist() == np.asarray(average).tolist() != np.asarray(own).tolist()


@pytest.mark.parametrize("call", [2, 5, 10])
def test_killed_within_blocks(tmp_path, blocks, call, monkeypatch):
    """Epochs of three steps in blocks of two and one: checkpoints fall on the ends of blocks."""
    with monkeypatch.context() as patched:
        kill_at(patched, call)
        with pytest.raises(Kill):
            keras_toy.run(toy.small(**BLOCKS), tmp_path)
    keras_toy.run(toy.small(**BLOCKS), tmp_path, resume=True)
    toy.assert_equal_runs(blocks, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal(tmp_path, whole, number, monkeypatch):
    with monkeypatch.context() as patched:
        kill_at(patched, 5, number=number)
        with pytest.raises(Stopped, match="after step 5: the checkpoint of step 5 is saved"):
            keras_toy.run(toy.small(**EVERYTHING), tmp_path)
    keras_toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    tensors, wanted = toy.final_state(tmp_path)[1], toy.final_state(whole)[1]
    for name, array in wanted.items():
        np.testing.assert_array_equal(array, tensors[name], err_msg=name)


def test_other_settings_are_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        kill_at(patched, 5)
        with pytest.raises(Kill):
            keras_toy.run(toy.small(**EVERYTHING), tmp_path)
    with pytest.raises(BadInput, match=r"train\.steps_per_execution: 1 in the run, 2 now"):
        keras_toy.run(toy.small(**{**EVERYTHING, "train__steps_per_execution": 2}), tmp_path, resume=True)


def test_a_torch_checkpoint_is_refused(tmp_path):
    """Data and settings are the same, the framework is another."""
    pytest.importorskip("torch", reason="the torch engine is not installed (extra torch)")
    toy.run(toy.small(train__epochs=1), tmp_path)
    with pytest.raises(BadInput, match="not written by the keras engine"):
        keras_toy.run(toy.small(train__epochs=1), tmp_path, resume=True)


def command(folder: Path, resume: bool, settings) -> list[str]:
    script = str(Path(TOYS) / "keras_toy.py")
    return [sys.executable, script, str(folder), "resume" if resume else "new", json.dumps(settings)]


def run(folder: Path, resume: bool, settings) -> subprocess.Popen[bytes]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(folder, resume, settings), env=env, stderr=subprocess.DEVNULL)


def steps_logged(folder: Path) -> int:
    try:
        lines = (folder / "log.jsonl").read_text().splitlines()
        return max([json.loads(line)["step"] for line in lines], default=0)
    except (OSError, ValueError, KeyError):
        return 0


def killed_and_resumed(folder: Path, settings, at: list[int]) -> None:
    """kill −9 once the log has reached each of these steps, then let it finish."""
    for number, step in enumerate(at):
        process = run(folder, number > 0, settings)
        limit = time.monotonic() + 300
        while steps_logged(folder) < step and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        process.kill()
        process.wait()
    assert run(folder, True, settings).wait(timeout=300) == 0


LONG = {**EVERYTHING, "train__epochs": 20, "log__every": 1}
LONG_BLOCKS = {**BLOCKS, "train__epochs": 20, "log__every": 1}
SIX = [1, 7, 19, 31, 44, 58]
"""Steps at which a run is killed."""


@pytest.mark.slow
def test_kill_9(tmp_path):
    """Processes that are really killed, against one that was not; dropout and noise on."""
    assert run(tmp_path / "whole", False, LONG).wait(timeout=300) == 0
    killed_and_resumed(tmp_path / "killed", LONG, [23])
    toy.assert_equal_runs(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(
    "settings, at",
    [
        pytest.param(LONG, SIX, id="steps", marks=pytest.mark.weekly),
        pytest.param(LONG_BLOCKS, SIX, id="blocks", marks=pytest.mark.weekly),
        pytest.param(LONG_BLOCKS, SIX[::2], id="blocks, half as often", marks=pytest.mark.slow),
    ],
)
def test_kill_9_again_and_again(tmp_path, settings, at):
    assert run(tmp_path / "whole", False, settings).wait(timeout=300) == 0
    killed_and_resumed(tmp_path / "killed", settings, at)
    toy.assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
