"""A Keras training on two devices of one process, here two parts of the processor, against one with the same batches.

Losses and metrics are logged as float32, so each may be off by its rounding, and their mean by one more: 4 · 2⁻²⁴ and
some room. The network computes in float64, where a sum in another order is off by 1e-16 of its size in each of twelve
steps; gradients are clipped, so no step enlarges that by much.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_several as several
from runner_core.base.errors import BadInput
from runner_core.cli.launch import place_of
from runner_core.contract.team import Place
from runner_core.engines import for_keras

ROUNDING = 8 * 2.0**-24
BOTH = (Path(__file__).parent / "kills", Path(__file__).parent / "toy" / "project")
"""Folders of the project kerastoy and of the one that it extends."""
Runner = Callable[..., "subprocess.CompletedProcess[str]"]
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the runs of two devices (`keras_several.main`), and runs of one: `one`, `one-blocks`, …"""
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    folder = tmp_path_factory.mktemp("several")
    several.train(several.settings(1), folder / "one")
    cut(shutil.copytree(folder / "one", folder / "handed-on"))
    several.train(several.settings(1, **several.BLOCKS), folder / "one-blocks")
    several.train(several.settings(1, **several.HALF), folder / "one-half")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, several.__file__, folder], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def cut(run: Path) -> Path:
    """The run as it stood at step 6."""
    for checkpoint in run.glob("checkpoints/step-*"):
        if int(checkpoint.name.removeprefix("step-")) > 6:
            shutil.rmtree(checkpoint)
    (run / "checkpoints" / "best.json").unlink()
    return run


def assert_close(one: Path, other: Path) -> None:
    """Equal but for rounding: the numbers of the log, the tensors of the last checkpoint."""
    lines, others = toy.log_lines(one), toy.log_lines(other)
    assert [line["event"] for line in lines] == [line["event"] for line in others]
    for line, line2 in zip(lines, others, strict=True):
        assert line.keys() == line2.keys()
        for name, value in line.items():
            if type(value) is float:
                assert math.isclose(value, line2[name], rel_tol=ROUNDING, abs_tol=ROUNDING), (name, line, line2)
    (_, tensors), (_, tensors2) = toy.final_state(one), toy.final_state(other)
    learned = [name for name in tensors if name.startswith(("model.", "ema.", "optimizer."))]
    assert len(learned) > 10
    for name in learned:
        np.testing.assert_allclose(tensors[name], tensors2[name], 1e-9, 1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("one, other", [("one", "two"), ("one-blocks", "blocks"), ("one-half", "half")])
def test_two_devices_learn_what_one_does(one: str, other: str, both: Path) -> None:
    """With clipping, an average, micro-batches, weight decay, regularisers and a constraint; in blocks; in float16."""
    assert_close(both / one, both / other)
    assert len([line for line in toy.log_lines(both / other) if line["event"] == "train"]) >= 3


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(both: Path, tmp_path: Path) -> None:
    assert_close(both / "one", both / "handed-on")
    run = cut(shutil.copytree(both / "two", tmp_path / "run"))
    several.train(several.settings(1), run, resume=True)
    assert_close(both / "one", run)
    with pytest.raises(BadInput, match=r"train.batch_size times train.devices: 8 in the run, 4 now"):
        several.train(several.settings(1, train__batch_size=4), run, resume=True)


@pytest.mark.slow
def test_a_killed_run_of_two_devices_goes_on_bit_for_bit(both: Path) -> None:
    """With dropout, noise and BatchNorm."""
    toy.assert_equal_runs(both / "random", both / "killed")


@pytest.mark.slow
def test_each_device_draws_its_own_random_numbers() -> None:
    """For `on_device` and for dropout, also after a validation, which restores the streams."""
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    code = f"""
import sys; sys.path.insert(0, {str(Path(several.__file__).parent)!r})
import engine_toy as toy, keras_several as several, numpy as np, keras, tensorflow as tf
from runner_core.contract.team import Place
project = several.Several(several.settings(2, **several.RANDOM))
setup = toy.ToySetup(project)
setup.team = setup.engine.join(Place(0, 1, 0, 1, "", devices=2))
trainer = setup.engine.trainer(setup, toy.make_data(project), 3)
learning, drawn = trainer._learning, []
layer = next(layer for layer in trainer.network.layers if "Dropout" in type(layer).__name__)
def draw(moment):
    learning._rng.state.assign(learning.replicas.stream(moment[2:4]))
    return [keras.random.uniform((4,), seed=s) for s in (learning._rng, layer.seed_generator)]
run = tf.function(lambda: trainer._replicas._strategy.run(draw, (tf.constant([0, 0, 5, 6], tf.uint32),)))
for _ in range(2):
    with trainer._undisturbed():  # as a validation does
        pass
    noise, mask = ([value.numpy() for value in drawn.values] for drawn in run())
    assert not np.intersect1d(*noise).size and not np.intersect1d(*mask).size
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr


# ---------------------------------------------------------------- the command line

TWO = ["--devices", "2", "--train.device", "cpu", "--train.batch-size", "4", "--train.deterministic"]


def final_tensors(run: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    newest = max((run / "checkpoints").glob("step-*"))
    return {name: tensor for file in newest.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.slow
def test_a_killed_command_goes_on_bit_for_bit(runner: Runner, launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    words = [*TWO, "--train.epochs", "1", "--checkpoint.every-steps", "5"]
    done = runner("kerastoy", "train", "--run-dir", "whole", *words, installed=BOTH, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 devices train together: mirrored; the first one validates") == 1
    assert "device: 2 × " in done.stdout
    training = launch("kerastoy", "train", "--run-dir", "killed", *words, installed=BOTH)
    limit = time.monotonic() + 240
    while not list(tmp_path.glob("killed/checkpoints/step-*")) and time.monotonic() < limit:
        assert training.poll() is None
        time.sleep(0.01)
    training.send_signal(signal.SIGKILL)
    training.wait()
    again = runner("kerastoy", "train", "--resume", "killed", installed=BOTH, fresh=True)
    assert again.returncode == 0, again.stderr
    lines = [
        [line for line in toy.log_lines(tmp_path / run) if line["event"] in ("train", "validation")]
        for run in ("whole", "killed")
    ]
    assert lines[0] == lines[1]
    states = [final_tensors(tmp_path / run) for run in ("whole", "killed")]
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(tensor, states[1][name]) for name, tensor in states[0].items())
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert (summary["devices"], summary["strategy"]) == (2, "mirrored")
    scored = runner("kerastoy", "evaluate", "killed", "--out", "again", installed=BOTH, fresh=True)  # on one device
    assert scored.returncode == 0, scored.stderr
    assert (tmp_path / "again" / "scores.json").read_bytes() == (tmp_path / "whole" / "scores.json").read_bytes()


def test_devices_that_cannot_be_are_refused_before_tensorflow_is_imported(runner: Runner, tmp_path: Path) -> None:
    code = (
        "import sys; from runner_core.cli import main\n"
        "code = main(); print(code, {'keras', 'tensorflow', 'scipy'} & set(sys.modules))\n"
    )
    words = ["kerastoy", "train", "--run-dir", "run", "--devices", "2"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, BOTH)), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "train.devices 2: there is no GPU here that TensorFlow could use" in done.stderr, done
    assert done.stdout.strip() == "2 set()"
    assert not (tmp_path / "run").exists()


TWO_PROCESSES = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("settings", "environment", "gpus", "said"),
    [
        ({}, {}, 0, r"train\.devices 2: there is no GPU here .* --train\.device cpu"),
        ({}, {}, 1, r"train\.devices 2: TensorFlow sees only 1 GPU here; use at most as many"),
        ({"train__device": "cuda:1"}, {}, 2, "train.device cuda:1 names only one GPU"),
        ({"train__compile": "on"}, {}, 2, r"train\.devices 2: train\.compile on does not go with it"),
        ({"cache__mode": "device"}, {}, 2, r"cache\.mode device keeps the data on one GPU"),
        ({}, {"KERAS_BACKEND": "jax"}, 2, "only TensorFlow trains on several; leave KERAS_BACKEND unset"),
        ({}, {"WORLD_SIZE": "2", "RANK": "0"}, 2, "2 processes were started together: set MASTER_ADDR and MASTER_PORT"),
        ({"train__devices": 3}, TWO_PROCESSES, 4, r"2 processes were .* and train\.devices is 3: leave it out"),
        ({"cache__mode": "device"}, TWO_PROCESSES, 2, r"cache\.mode device keeps the data on one GPU"),
        ({"train__compile": "on"}, TWO_PROCESSES, 2, r"2 processes .* train\.compile on does not go with it"),
        ({}, TWO_PROCESSES | {"LOCAL_RANK": "1"}, 1, r"train\.devices 2: TensorFlow sees only 1 GPU here"),
        ({}, TWO_PROCESSES | {"KERAS_BACKEND": "jax"}, 2, "only TensorFlow trains in several"),
        ({}, {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, 2, "TF_CONFIG .* names no task of this process"),
    ],
)
def test_what_several_devices_cannot_have_is_refused_by_name(
    settings: dict[str, object], environment: dict[str, str], gpus: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(for_keras, "cuda_devices", lambda: gpus)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = toy.small(**{"train__devices": 2, "train__device": "auto", **settings})
    with pytest.raises(BadInput, match=said):
        place_of(toy.ToySetup(several.Several(config)))


def test_a_place_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_keras, "cuda_devices", lambda: 4)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    for device, devices in (("cpu", 8), ("auto", 4), ("cuda", 2)):
        config = toy.small(train__devices=devices, train__device=device)
        assert place_of(toy.ToySetup(several.Several(config))) == Place(0, 1, 0, 1, "", devices=devices)
    assert place_of(toy.ToySetup(several.Several(toy.small()))) is None


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        (TWO_PROCESSES, "a:29500"),
        (TWO_PROCESSES | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "a:29501"),  # torchrun listens at 29500
        (
            {"TF_CONFIG": '{"cluster": {"chief": ["a:3"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}'},
            "a:3",
        ),
    ],
)
def test_one_of_several_processes(environment: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_keras, "cuda_devices", lambda: 1)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    setup = toy.ToySetup(several.Several(toy.small(train__device="auto")))
    assert place_of(setup) == Place(1, 2, 0, 1, f"tcp://{address}")
    assert setup.config.train.devices == 2
