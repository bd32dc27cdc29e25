"""`import runner_core as runner`: the same runs as the command line's, from a notebook or a script."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_core as runner
from runner_core.api.prediction import named_arrays
from runner_core.cli import main

TINY: dict[str, Any] = {"epochs": 2, "train.steps_per_epoch": 3, "train.threads": 1}
WORDS = ["--epochs", "2", "--train.steps-per-epoch", "3", "--train.threads", "1"]

torch_only = pytest.mark.torch


def weights(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.glob("checkpoints/*/*.safetensors"))}


@pytest.fixture
def run(here: Path, trained: Path) -> runner.Run:
    return runner.open(trained)


# ---------------------------------------------------------------- a run that is there


@torch_only
def test_a_run_shows_its_curves_and_scores(run: runner.Run, trained: Path) -> None:
    assert (run.path, run.project, run.status) == (trained, "toy", "done")
    assert run.settings["train.epochs"] == 3
    assert run.history.column("step") == [40, 80, 120]
    assert set(run.history.columns) == {"step", "epoch", "loss", "bce", "best", "train_loss", "seconds"}
    assert all(0 < loss < 1 for loss in run.history.column("train_loss"))
    assert len(run.steps) == 25
    summary = json.loads((trained / "summary.json").read_text())
    assert dict(run.scores) == pytest.approx(summary["scores"])
    assert run.scores.baseline == pytest.approx(summary["baseline"])
    assert run.scores.records.column("record") == ["p0_a", "p0_b"]
    assert [figure.name for figure in run.figures] == ["001-p0_a.png", "002-p0_b.png"]


@torch_only
def test_a_notebook_shows_runs_and_tables(run: runner.Run) -> None:
    shown = run._repr_html_()
    assert "dice" in shown
    assert "<td>baseline</td>" not in shown
    assert "<th>baseline</th>" in shown
    assert "done" in shown
    assert run.history._repr_html_().count("<tr>") == 4
    assert "p0_b" in run.scores._repr_html_()
    assert repr(run) == f"<run of toy, done: {run.path}>"
    assert "&lt;b&gt;" in runner.Rows([{"a": "<b>"}])._repr_html_()
    assert "no rows" in runner.Rows()._repr_html_()


def test_no_run_is_refused_like_on_the_command_line(here: Path) -> None:
    with pytest.raises(runner.BadInput, match="there is no such run folder"):
        runner.open("nowhere")
    (here / "empty").mkdir()
    with pytest.raises(runner.BadInput, match="is not a run folder"):
        runner.open(here / "empty")


def test_one_setting_with_two_values_is_refused(here: Path) -> None:
    with pytest.raises(runner.BadInput, match=r"train\.epochs is given twice, as 3 and as 4 \(train\.epochs\)"):
        runner.train("toy", epochs=3, **{"train.epochs": 4})
    assert not list(here.iterdir())


def test_importing_and_opening_need_no_framework(here: Path, trained: Path) -> None:
    code = f"import sys, runner_core as r; r.open({str(trained)!r}).history; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"torch", "tensorflow", "keras", "tyro", "rich"} & set(loaded)


# ---------------------------------------------------------------- training


@torch_only
def test_the_same_bits_as_the_command_line(here: Path) -> None:
    """Trained twice in one process and once in a thread, below a running event loop: always the same."""
    assert main(["toy", "train", "--run-dir", "cli", *WORDS]) == 0
    first = runner.train("toy", run_dir="first", **TINY)
    found: dict[str, runner.Run] = {}

    async def cell() -> None:
        found["loop"] = runner.train("toy", run_dir="loop", **TINY)

    asyncio.run(cell())
    thread = threading.Thread(target=lambda: found.update(thread=runner.train("toy", run_dir="thread", **TINY)))
    thread.start()
    thread.join()
    expected = weights(here / "cli")
    assert len(expected) >= 1
    assert weights(first.path) == weights(found["loop"].path) == weights(found["thread"].path) == expected
    config = (here / "cli/config.yaml").read_text()
    assert (first.path / "config.yaml").read_text() == config
    assert dict(first.scores) == dict(runner.open("cli").scores)


@pytest.fixture
def unusual() -> Iterator[None]:
    """Settings of PyTorch that are not its defaults."""
    import torch
    from runner_core.engines.torch import process

    before = process.read()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    yield
    process.write({**before, "warn_only": False})
    torch.use_deterministic_algorithms(before["deterministic"])


@torch_only
def test_nothing_of_the_process_changes(here: Path, unusual: None) -> None:
    import torch

    def state() -> Any:
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        switches = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
        cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
        draws = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        return dict(os.environ), handlers, torch.get_num_threads(), switches, cudnn, draws, sys.stdout, sys.stderr

    before = state()
    running = threading.active_count()
    run = runner.train("toy", run_dir="run", **TINY | {"train.deterministic": True, "train.workers": 1})
    run.evaluate()
    run.export("network")
    assert state() == before
    assert threading.active_count() == running
    import multiprocessing

    assert not multiprocessing.active_children()


def test_an_image_of_nibabel_is_its_array_with_its_affine() -> None:
    image, affine = np.arange(24).reshape(2, 3, 4), np.diag([1.2, 1.5, 2.0, 1.0])
    arrays = named_arrays(SimpleNamespace(dataobj=image, affine=affine))
    np.testing.assert_array_equal(arrays["image"], image)
    np.testing.assert_array_equal(arrays["affine"], affine)


@torch_only
def test_settings_are_refused_as_exceptions(here: Path) -> None:
    for keywords, message in (
        ({"epocs": 1}, "did you mean 'epochs'"),
        ({"train.epoch": 1}, "did you mean 'epochs'"),
        ({"train": {"epochs": "many"}}, "train.epochs must be a whole number"),
        ({"epochs": 0}, "train.epochs"),
        ({"preset": "demmo"}, "did you mean 'demo'"),
        ({"data": here / "nowhere"}, "there is no such folder"),
        ({"data": 7}, "data must be a path"),
        ({"config": "nowhere.yaml"}, "nowhere.yaml"),
        ({"train.device": "cuda:9"}, "cuda:9"),
    ):
        with pytest.raises(runner.BadInput, match=message):
            runner.train("toy", run_dir="run", **keywords)
        assert not (here / "run").exists()
    with pytest.raises(runner.BadInput, match="toyy"):
        runner.train("toyy")


def test_every_spelling_of_a_setting(here: Path) -> None:
    from runner_core.cli.keywords import Keywords
    from runner_core.cli.options import TrainOptions
    from runner_core.cli.start import start_new

    given = {"lr": np.float32(0.5), "batch_size": np.int64(4), "train": {"epochs": 7}, "train.workers": 0}
    train = start_new("toy", "train", TrainOptions, Keywords.of(TrainOptions, given)).setup.config.train
    assert (train.learning_rate, train.batch_size, train.epochs, train.workers) == (0.5, 4, 7, 0)
    assert given["train"] == {"epochs": 7}


CELLS = """
import sys
import runner_core as runner
if sys.argv[1] == "late":
    import signal
    from runner_core.training import run as training
    close = training._Run.close
    def interrupted(run):
        signal.raise_signal(signal.SIGINT)
        close(run)
    training._Run.close = interrupted
epochs = {"stop": 100_000, "late": 2}[sys.argv[1]]
settings = {"train.threads": 1, "log.every": 1, "train.steps_per_epoch": 3}
run = runner.train("toy", run_dir="run", epochs=epochs, **settings)
print("cell 1:", run.status, run.summary["steps"])
try:
    runner.train("toy", resume=run.path, lr=7.0)
except runner.BadInput as error:
    print("cell 2:", error)
"""
"""A program of its own, as a notebook's kernel is: no signal may reach the process of the tests."""


@torch_only
def test_an_interrupted_cell_saves_and_returns(here: Path) -> None:
    (here / "cells.py").write_text(CELLS)
    log = here / "run/log.jsonl"
    with subprocess.Popen([sys.executable, "cells.py", "stop"], stdout=subprocess.PIPE, text=True) as kernel:
        try:
            while kernel.poll() is None and not (log.exists() and '"event": "train"' in log.read_text()):
                time.sleep(0.05)
            kernel.send_signal(signal.SIGINT)
            said = kernel.communicate(timeout=300)[0]
        finally:
            kernel.kill()
    assert kernel.returncode == 0
    run = runner.open(here / "run")
    assert run.status == "stopped"
    assert f"cell 1: stopped {run.summary['steps']}\n" in said
    assert "cell 2: " in said
    assert "train.learning_rate: 0.01 in the run, 7.0 now" in said
    assert "resume with" in said
    assert list((run.path / "checkpoints").glob("step-*"))


@torch_only
def test_an_interruption_after_the_last_step_ends_what_follows_it(here: Path) -> None:
    (here / "cells.py").write_text(CELLS)
    done = subprocess.run(
        [sys.executable, "cells.py", "late"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "interrupted after the training: the network is in run\ncell 1: done 6\n" in done.stdout
    assert not runner.open("run").scores, "they were not waited for"


@torch_only
def test_a_run_without_a_checkpoint(run: runner.Run, here: Path) -> None:
    shutil.copytree(run.path, "empty", ignore=shutil.ignore_patterns("step-*", "best.json", "summary.json", "scores.*"))
    empty = runner.open("empty")
    assert empty.status == "interrupted", "the process that trained it is gone"
    assert not empty.scores
    assert "interrupted" in empty._repr_html_()
    for use in (empty.evaluate, lambda: empty.predict(np.zeros((3, 24, 24))), lambda: empty.export("network")):
        with pytest.raises(runner.BadInput, match="no usable checkpoint"):
            use()


@pytest.mark.slow
@torch_only
def test_several_devices_train_in_processes_of_their_own(here: Path) -> None:
    run = runner.train("toy", run_dir="two", device="cpu", devices=2, **TINY)
    assert run.status == "done"
    assert run.summary["devices"] == 2
    data = runner.phantom("toy", "data")
    (data / "p1_a.npy").write_bytes(b"damaged")
    with pytest.raises(runner.BadInput, match="ended with code 2"):
        runner.train("toy", data=data, run_dir="other", device="cpu", devices=2, **TINY)
    assert not (here / "other").exists()


SCRIPT = """
import runner_core as runner
run = runner.train("toy", run_dir="run", epochs=1, **{"train.steps_per_epoch": 2, "train.workers": 1})
print("once", run.status)
"""


@torch_only
def test_a_script_without_a_guard_trains_once(here: Path) -> None:
    """Spawned workers would import it, and train again, if they saw the main module."""
    (here / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once done") == 1
    assert done.stdout.count("run folder:") == 1


# ---------------------------------------------------------------- using it


@torch_only
def test_evaluating_and_exporting(run: runner.Run, here: Path) -> None:
    scores = run.evaluate(split="all", out="scores")
    assert len(scores.records) == 10
    assert sum(scores.records.column("trained_on")) == 8
    assert scores.folder == Path("scores")
    assert set(scores) == set(run.scores)
    assert all(file.is_file() for file in run.export("network"))
    with pytest.raises(runner.BadInput, match="did you mean 'test'"):
        run.evaluate(split="tets")
    with pytest.raises(runner.BadInput, match="trained with other settings"):
        run.evaluate(out="other", **{"model.width": 5})
    with pytest.raises(runner.BadInput, match="step-00000120"):
        run.evaluate(checkpoint="step-12")


@torch_only
def test_a_prediction_equals_the_command_lines(
    run: runner.Run, here: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = runner.phantom("toy", "data")
    path = data / "p1_a.npy"
    assert main(["toy", "predict", str(trained), str(path), "--out", "cli"]) == 0
    expected = {file.name: file.read_bytes() for file in Path("cli").iterdir()}
    image = np.load(path)
    found = run.predict(path)
    assert {file.name: file.read_bytes() for file in found.save("files")} == expected
    array = run.predict(image)
    assert array.array.shape == image.shape
    np.testing.assert_array_equal(array.array, found.array)
    assert [file.name for file in array.save("one")] == ["array_mask.npy"]
    assert array.save("mine.npy") == [Path("mine.npy")]
    np.testing.assert_array_equal(np.load("mine.npy"), found.array > 0.5)
    assert len(run.predict(path, scaled=True).save("scaled")) == 2
    assert "<img" in found._repr_html_()
    assert [record.files["image"] for record in run.inputs(path)] == [path]
    assert run.load() == sorted((trained / "checkpoints").iterdir())[-1].name
    (data / "p1_a.npy").write_bytes(b"damaged")
    assert [found.record for found in run.predictions(data)][:3] == ["p0_a", "p0_b", "p1_b"]
    assert "warning: not predicted" in capsys.readouterr().err


@torch_only
def test_inputs_that_cannot_be_predicted(run: runner.Run, here: Path) -> None:
    data = runner.phantom("toy", "data")
    for item, spacing, message in (
        (data, None, "name one, or go through"),
        (data / "nothing.npy", None, "no such file"),
        (data / "p1_a.npy", 1.0, "spacing is for arrays"),
        (np.zeros((3, 9, 9)), None, r"^the array: .*expected \(slices, 24, 24\)"),
        ("text", None, "no such file"),
        (object(), None, "no array of numbers"),
        (np.zeros((3, 24, 24)), -1, "positive"),
    ):
        with pytest.raises(runner.BadInput, match=message):
            run.predict(item, spacing)
    found = run.predict(data / "p1_a.npy")
    with pytest.raises(runner.BadInput, match="in the output folder"):
        found.save(data)
    with pytest.raises(runner.BadInput, match="name a folder"):
        found.save("mask.nii.gz")
    assert not list(Path().glob("*.nii.gz"))


def test_checking(here: Path) -> None:
    data = runner.phantom("toy", "data")
    found = runner.check("toy", data=data)
    assert found.ready
    assert found.report is not None
    assert "ready to train" in found._repr_html_()
    (data / "p1_a.npy").write_bytes(b"damaged")
    found = runner.check("toy", data=data)
    assert not found.ready
    assert found.findings[0]["level"] == "error"
    assert found.findings[0]["record"] == "p1_a"
