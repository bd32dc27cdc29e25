"""Checkpoints that a thread writes while training goes on: the same files, and the same training."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy  # noqa: E402
from runner_core.base.background import Background  # noqa: E402
from runner_core.base.errors import NotSaved, Stopped  # noqa: E402
from runner_core.engines.torch import checkpoint as torch_checkpoint  # noqa: E402
from runner_core.engines.torch.checkpoint import Held, SafetensorsFormat  # noqa: E402
from runner_core.tools.verify_resume import differences  # noqa: E402

MANY = {"checkpoint__every_steps": 2, "checkpoint__keep": 99, "train__ema": 0.9, "health__mode": "off"}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that waits for each of its checkpoints."""
    folder = tmp_path_factory.mktemp("waiting")
    toy.run(toy.small(**MANY, checkpoint__background=False), folder)
    return folder


def test_training_goes_on_meanwhile_and_the_files_are_those_of_the_step(waiting, tmp_path, monkeypatch):
    taken, change, waited = 0, threading.Condition(), []
    write = SafetensorsFormat.write

    def late(form, folder, state):
        """Write when training has taken another step."""
        step = state.values["loop"]["step"]
        if step < 9:
            with change:
                assert change.wait_for(lambda: taken > step, 60), "training waits for the checkpoint"
            waited.append(step)
        write(form, folder, state)

    class Going(toy.Toy):
        def after_step(self, network, progress):
            nonlocal taken
            with change:
                taken = progress.step + 1
                change.notify()

    monkeypatch.setattr(SafetensorsFormat, "write", late)
    toy.run(toy.small(**MANY), tmp_path, project=Going)
    assert waited == [2, 3, 4, 6, 8]
    found = differences(waiting, tmp_path, SafetensorsFormat().read)
    assert not found, found[0].text()


def test_a_signal_waits_until_its_checkpoint_is_written(tmp_path, monkeypatch):
    wrote = []
    write = SafetensorsFormat.write

    def slow(form, folder, state):
        threading.Event().wait(0.3)
        write(form, folder, state)
        wrote.append(state.values["loop"]["step"])

    monkeypatch.setattr(SafetensorsFormat, "write", slow)

    class Stops(toy.Toy):
        def after_step(self, network, progress):
            if progress.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="the checkpoint of step 5 is saved"):
        toy.run(toy.small(**MANY), tmp_path, project=Stops)
    assert wrote[-1] == 5
    assert (tmp_path / "checkpoints" / "step-00000005" / "manifest.json").exists()
    assert not list((tmp_path / "checkpoints").glob(".*"))


KILLED = """
import os, signal, sys, threading
sys.path.insert(0, {place!r})
import engine_toy as toy
import torch
from runner_core.engines.torch.checkpoint import SafetensorsFormat
torch.set_num_threads(1)
write = SafetensorsFormat.save
def save(form, tensors, file):
    write(form, tensors, file)
    if "step-00000006" in str(file) and threading.current_thread() is not threading.main_thread():
        os.kill(os.getpid(), signal.SIGKILL)
SafetensorsFormat.save = save
toy.run(toy.small(**{settings!r}), __import__("pathlib").Path({folder!r}))
"""


def test_kill_9_of_the_writing_keeps_the_one_before(waiting, tmp_path):
    place = str(Path(__file__).parent / "engine_toy")
    code = KILLED.format(place=place, settings=MANY, folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    there = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert ".writing-step-00000006" in there
    assert "step-00000006" not in there
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy.run(toy.small(**MANY), tmp_path, resume=True)
    straight = tmp_path.with_name("straight")
    toy.run(toy.small(**MANY), straight)
    torch.set_num_threads(threads)
    found = differences(straight, tmp_path, SafetensorsFormat().read)
    assert not found, found[0].text()
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_an_error_is_raised_by_the_one_who_waits():
    background = Background("checkpoint")
    background.wait()
    background.begin(lambda: (_ for _ in ()).throw(NotSaved("the disk is gone")))
    background.join()
    with pytest.raises(NotSaved, match="the disk is gone"):
        background.wait()
    background.wait()


def test_a_full_disk_in_the_last_checkpoint_is_no_success(tmp_path, monkeypatch):
    write = SafetensorsFormat.write

    def full(form, folder, state):
        if state.values["loop"]["step"] == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(form, folder, state)

    monkeypatch.setattr(SafetensorsFormat, "write", full)
    summary = toy.run(toy.small(**MANY), tmp_path)
    assert summary["status"] == "failed"
    assert "no space left to save the checkpoint of step 9" in summary["unsaved"]


def test_what_an_engine_without_copies_saves_is_written_before_the_next_step(waiting, tmp_path, monkeypatch):
    from runner_core.engines.torch.trainer import TorchTrainer

    monkeypatch.delattr(TorchTrainer, "hold")
    toy.run(toy.small(**MANY), tmp_path)
    found = differences(waiting, tmp_path, SafetensorsFormat().read)
    assert not found, found[0].text()


# ---------------------------------------------------------------- copies


def test_copies_stay_as_they_were_and_use_their_memory_again():
    weight = torch.arange(12.0).view(3, 4)
    image = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    held, live = Held(), {"a": weight, "tied": weight.view(3, 4), "part": weight[1:], "image": image}
    copies, shapes, _ = held(live, divided=True)
    assert not shapes
    wanted = {name: tensor.clone() for name, tensor in live.items()}
    for tensor in (weight, image):
        tensor.add_(1)
    assert all(torch.equal(copies[name], wanted[name]) for name in live)
    assert copies["a"] is copies["tied"]
    assert torch_checkpoint.apart(copies)[1] == torch_checkpoint.apart(live)[1] == {"tied": "a"}
    places = {name: copy.data_ptr() for name, copy in copies.items()}
    again, _, _ = held(live, divided=True)
    assert {name: copy.data_ptr() for name, copy in again.items()} == places
    assert all(torch.equal(again[name], live[name]) for name in live)
