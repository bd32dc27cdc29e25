"""Every `train.*` option does in Keras what its description says, or is refused by name before TensorFlow is imported.

`TESTED` names a test for each option; those of options that no other file tests are here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.config import TrainConfig
from runner_core.contract import Progress

pytest.importorskip("tensorflow", reason="the keras engine is not installed (extra keras)")
from runner_core.engines.keras.learning import moment_of

HERE = Path(__file__).parent

TESTED = {
    "epochs": "test_keras_options.py::test_epochs_have_so_many_steps",
    "steps_per_epoch": "test_keras_options.py::test_epochs_have_so_many_steps",
    "batch_size": "test_keras_options.py::test_epochs_have_so_many_steps",
    "accumulate": "test_keras_trainer.py::test_steps_are_those_of_the_definition",
    "workers": "test_keras_options.py::test_workers_fill_the_batches",
    "prefetch": "test_loader.py::test_a_buffer_is_refilled_only_after_its_release",
    "learning_rate": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "optimizer": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "momentum": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "weight_decay": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "warmup": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "schedule": "test_keras_trainer.py::test_decay_and_schedule_are_what_the_settings_say",
    "decay": "test_keras_options.py::test_the_decay_is_as_long_as_asked",
    "clip": "test_keras_trainer.py::test_steps_are_those_of_the_definition",
    "ema": "test_keras_trainer.py::test_average_of_the_weights",
    "patience": "test_keras_options.py::test_patience_ends_a_run_that_does_not_improve",
    "seed": "test_keras_options.py::test_all_that_is_random_comes_from_the_seed",
    "deterministic": "test_keras_options.py::test_tensorflow_is_told_threads_and_determinism",
    "device": "test_keras_engine.py::test_device_names",
    "devices": "test_keras_devices.py::test_two_devices_learn_what_one_does",
    "patience_seconds": "test_distributed_cli.py::test_a_process_that_is_silent_ends_all_and_is_named",  # of several
    "strategy": "test_keras_options.py::test_what_pytorch_alone_has_is_refused_before_tensorflow_is_imported",
    "steps_per_execution": "test_keras_trainer.py::test_blocks_are_the_same_steps",
    "threads": "test_keras_options.py::test_tensorflow_is_told_threads_and_determinism",
    "compile": "test_keras_engine.py::test_xla_is_for_gpus",
    "kernels": "test_kernels_keras.py::test_a_wrong_gradient_under_xla_is_found_and_switched_off",
    "channels_last": "test_keras_options.py::test_what_pytorch_alone_has_is_refused_before_tensorflow_is_imported",
}


def test_every_option_has_a_test() -> None:
    assert sorted(TESTED) == sorted(option.name for option in fields(TrainConfig))
    for test in TESTED.values():
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (HERE / file).read_text(encoding="utf-8"), test


def in_a_process(code: str) -> str:
    """What the code prints in a process of its own, with the toys at hand."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HERE / "engine_toy")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train__strategy='fsdp'", "train.strategy fsdp is for PyTorch"),
        ("train__channels_last='on'", "train.channels_last is for PyTorch"),
        ("exchange__unused='find'", "exchange.unused find is for PyTorch"),
        ("train__optimizer='muon'", "train.optimizer muon is for PyTorch, and project enginetoy uses Keras"),
    ],
)
def test_what_pytorch_alone_has_is_refused_before_tensorflow_is_imported(setting: str, said: str) -> None:
    code = f"""
import sys, engine_toy as toy, keras_toy
from runner_core.base.errors import BadInput
try:
    toy.ToySetup(keras_toy.KerasToy(toy.small({setting}))).engine
except BadInput as error:
    print(error, not {{"keras", "tensorflow", "torch"}} & set(sys.modules))
"""
    found = in_a_process(code)
    assert found.startswith(said)
    assert found.endswith(" True")


def test_tensorflow_is_told_threads_and_determinism() -> None:
    """It keeps both until the process ends; so they are asked for in one of their own."""
    code = """
import engine_toy as toy, keras_toy, tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled
threads = tf.config.threading
for settings in ({}, {"train__threads": 3, "train__deterministic": True}):
    setup = toy.ToySetup(keras_toy.KerasToy(toy.small(**settings)))
    setup.engine._configure(setup)
    print(threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads(),
          is_op_determinism_enabled())
"""
    assert in_a_process(code).splitlines()[-2:] == ["0 0 False", "3 3 True"]


def test_epochs_have_so_many_steps(tmp_path: Path) -> None:
    sizes = []

    class Watched(keras_toy.KerasToy):
        def on_device(self, batch, statistics, rng):
            if rng is not None:
                sizes.append(batch["image"].shape[0])
            return super().on_device(batch, statistics, rng)

    settings = {"train__epochs": 3, "train__steps_per_epoch": 4, "train__batch_size": 5}
    summary = keras_toy.run(toy.small(**settings), tmp_path, project=Watched)
    assert summary["steps"] == 12
    assert set(sizes) == {5}
    validated = [line["epoch"] for line in toy.log_lines(tmp_path) if line["event"] == "validation"]
    assert validated == [1, 2, 3]


def test_workers_fill_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def filled_by(workers: int) -> set[int]:
        notes = tmp_path / f"notes-{workers}"
        notes.mkdir()
        monkeypatch.setenv(keras_toy.NOTES, str(notes))
        settings = {"train__epochs": 1, "train__steps_per_epoch": 3, "train__workers": workers}
        keras_toy.run(toy.small(**settings), tmp_path / f"run-{workers}", project=keras_toy.NotesProcesses)
        return {int(file.name) for file in notes.iterdir()}

    assert filled_by(0) == {os.getpid()}
    others = filled_by(1)
    assert len(others) == 1
    assert os.getpid() not in others


def test_the_decay_is_as_long_as_asked() -> None:
    def rates(decay: float) -> list[float]:
        settings = {"train__schedule": "wsd", "train__warmup": 0.0, "train__learning_rate": 1.0, "train__epochs": 1}
        setup = toy.ToySetup(keras_toy.KerasToy(toy.small(**settings, train__decay=decay)))
        trainer = setup.engine.trainer(setup, toy.make_data(setup.project), 10)
        return [trainer._schedule(Progress(step, 10, 0)) for step in range(10)]

    assert rates(0.2) == pytest.approx([1.0] * 9 + [0.5])
    assert rates(0.5) == pytest.approx([1.0] * 6 + [0.8, 0.6, 0.4, 0.2])


def test_patience_ends_a_run_that_does_not_improve(tmp_path: Path) -> None:
    """Nothing is learned at this rate, so only the first validation is better than those before."""
    settings = {"train__learning_rate": 1e-12, "train__epochs": 8, "net__batchnorm": False}
    patient = keras_toy.run(toy.small(**settings), tmp_path / "patient", rules=[])
    early = keras_toy.run(toy.small(**settings, train__patience=2), tmp_path / "early", rules=[])
    assert (patient["stopped_early"], early["stopped_early"]) == (False, True)
    assert early["steps"] / patient["steps"] == 3 / 8


def test_all_that_is_random_comes_from_the_seed() -> None:
    def weights(seed: int) -> dict[str, np.ndarray]:
        setup = toy.ToySetup(keras_toy.KerasToy(toy.small(train__seed=seed)))
        state = setup.engine.trainer(setup, toy.make_data(setup.project), 10).state()
        return {name: array for name, array in state.tensors.items() if name.startswith("model") and array.std() > 0}

    one, again, other = weights(1), weights(1), weights(2)
    assert one
    for name, array in one.items():
        np.testing.assert_array_equal(array, again[name], err_msg=name)
        assert not np.array_equal(array, other[name]), name
    assert moment_of(3, 0, 1).tolist() == moment_of(3, 0, 1).tolist() != moment_of(3, 0, 2).tolist()
