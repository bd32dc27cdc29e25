"""Trials in processes of their own: what they answer, how they fail, and that none outlives anybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from runner_core.config.values import plain
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.trial import Trial
from runner_core.training.assembly import TrainingSpec

pytestmark = pytest.mark.torch
PROJECT = Path(__file__).parent / "toy" / "project"


@pytest.fixture
def base(here, cache_home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    project = Plugins.load("toy").project()
    settings = from_preset(project, "demo")
    settings.train.threads = 1
    return TrainingSpec("toy", "demo", None, plain(settings))


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_answers(base):
    """Everything that can be asked of one, in one process; losses go on where they stood."""
    with Trial(base, "as it is", {}) as trial:
        ready = trial.start()
        assert (ready.engine, ready.kind, ready.batch, ready.steps_per_epoch) == ("torch", "cpu", 8, 40)
        assert (ready.parameters, ready.threads, ready.cache, ready.precision) == (481, 1, "memmap", "float32")
        assert ready.set_bytes == 10 * 2 * 4 * 24 * 24
        assert ready.sample == {"image": "1 × 24 × 24 uint8", "mask": "1 × 24 × 24 uint8"}
        turn = trial.steps(5)
        assert (turn.samples, turn.steps, turn.first) == (40, 5, 1)
        assert len(turn.losses) == 5 + ready.lead
        assert 0 <= turn.wait_seconds < turn.seconds
        assert trial.steps(3).first == 1 + 5 + ready.lead
        before = trial.evaluate(16)
        assert before.keys() == {"loss", "bce"}
        assert trial.evaluate(16) == before
        assert trial.data(0.05) > 0
        assert trial.steps(1).first == 1 + 5 + 3 + 2 * ready.lead
        assert trial.loss(2) < trial.network(3)
        host, device = trial.memory()
        assert host >= ready.host_bytes > 0
        assert device == 0
    assert not trial.alive
    with pytest.raises(TrialFailed, match="is not running"):
        trial.steps(1)


@pytest.mark.slow
def test_several_devices_take_the_same_steps(base):
    """Two processes share a batch; what one answers is about both, and none is left."""
    base = replace(base, settings=overlaid(base.settings, train={"devices": 2, "device": "cpu", "batch_size": 4}))
    with Trial(base, "two", {}) as trial:
        ready = trial.start()
        assert (ready.batch, ready.steps_per_epoch, ready.strategy) == (8, 40, "ddp")
        found = {"exchange.gradients": "step", "exchange.unused": "none", "exchange.reduce": "float32"}
        assert ready.exchange == found
        turn = trial.steps(5)
        assert (turn.samples, turn.steps, turn.first) == (40, 5, 1)
        assert trial.data(0.1) > 0
        assert trial.network(2) > 0
        assert trial.loss(1) is None
        assert trial.evaluate(16).keys() == {"loss", "bce"}
        other = next(child.pid for child in psutil.Process(trial.pid).children() if "worker" in str(child.cmdline()))
        os.kill(other, signal.SIGKILL)
        with pytest.raises(TrialFailed, match="killed by SIGKILL"):
            trial.steps(5)
    wait_until(lambda: gone(other))


def overlaid(settings, **sections):
    return {**settings, **{name: {**settings[name], **values} for name, values in sections.items()}}


def test_memory_is_its_own(base):
    """Not that of the process that started it, nor of programs that it called."""
    held = bytearray(1 << 30)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    with Trial(base, "x", {}) as trial:
        assert trial.start().host_bytes < len(held)


def test_a_process_leaves_nothing_behind(base, tmp_path, monkeypatch):
    """However it ends; and a cache that was prepared is there for the next one."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    said = []
    with Trial(base, "x", {"cache.dir": str(tmp_path / "cache")}, say=said.append) as trial:
        trial.prepare()
        assert not trial.alive
        assert any((tmp_path / "cache").iterdir())
        trial.start()
        assert list((tmp_path / "tmp").glob("runner-trial-*"))
    with Trial(base, "x", {"train.batch_size": 0}) as trial, pytest.raises(TrialFailed):
        trial.start()
    assert not list((tmp_path / "tmp").glob("runner-trial-*"))


def test_same_steps_learn_the_same_with_workers_and_past_the_end(base):
    """Losses by step do not depend on who fills the batches, nor on how turns cut them; a training that is over is gone
    through again."""
    few = {"train.epochs": 1, "train.steps_per_epoch": 6}
    losses = {}
    for settings in (few, few | {"train.workers": 1}):
        with Trial(base, "x", settings) as trial:
            found = [trial.start().loss]
            while len(found) < 15:
                turn = trial.steps(1 + len(found) % 3)
                assert turn.first == len(found)
                found += turn.losses
            losses[len(settings)] = found[:15]
            process = psutil.Process(trial.pid)
            pids = [process.pid, *(child.pid for child in process.children(recursive=True))]
        assert gone(pids[0])
        wait_until(lambda pids=pids: all(map(gone, pids)))
    assert losses[2] == losses[3]
    assert losses[2][0] > losses[2][-1]


def test_failures_say_why(base):
    for settings, reason in (
        ({"train.batch_size": 0}, "setting train.batch_size must be at least 1, not 0"),
        ({"train.batchsize": 4}, "there is no setting 'train.batchsize'; did you mean 'batch_size'"),
    ):
        trial = Trial(base, "x", settings)
        with pytest.raises(TrialFailed) as failed:
            trial.start()
        assert reason in failed.value.reason
        assert not failed.value.memory
        assert not trial.alive


def test_killed_too_large_and_too_slow(base):
    with Trial(base, "x", {}) as trial:
        trial.start()
        os.kill(trial.pid, signal.SIGKILL)
        with pytest.raises(TrialFailed, match="killed by SIGKILL") as failed:
            trial.steps(1)
        assert failed.value.memory
    with Trial(base, "x", {}, memory_bytes=1) as trial:
        with pytest.raises(TrialFailed, match="more than the 1 B it may") as failed:
            trial.start()
        assert failed.value.memory
    with Trial(base, "x", {}, timeout=0.1) as trial, pytest.raises(TrialFailed, match="took longer"):
        trial.start()


def test_what_is_printed_does_not_disturb(base, tmp_path, monkeypatch):
    """Output of Python and of C is kept; an error that is not the runner's is reported with it."""
    noisy = tmp_path / "noisy"
    for file in PROJECT.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            copy = noisy / file.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text()
            text = text.replace(
                "        width = self.config.model.width\n",
                '        import os\n\n        print("{noise}")\n        os.write(1, b"more noise")\n'
                "        width = self.config.model.width\n",
            )
            copy.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(noisy))
    with Trial(base, "x", {}) as trial:
        assert trial.start().batch == 8
        with pytest.raises(TrialFailed, match="TypeError") as failed:
            trial.steps("many")
        assert "more noise" in failed.value.output
        assert "Traceback" in failed.value.output


def test_no_process_outlives_its_parent(base, tmp_path):
    """The processes that fill its batches end too."""
    code = f"""
import time
from pathlib import Path
from runner_core.tools.measure.trial import TrainingSpec, Trial
trial = Trial(TrainingSpec("toy", "demo", None, {dict(base.settings)!r}), "x", {{"train.workers": 1}})
trial.start()
Path("pid").write_text(str(trial.pid))
trial.steps(1 << 40)
"""
    with (tmp_path / "out").open("w") as out:
        parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=out, stderr=out)
    try:
        file = Path(tmp_path / "pid")
        wait_until(lambda: parent.poll() is not None or (file.exists() and file.read_text()), 240)
        assert parent.poll() is None, (tmp_path / "out").read_text()
        worker = psutil.Process(int(file.read_text()))
        wait_until(worker.children)
        pids = [worker.pid, *(child.pid for child in worker.children(recursive=True))]
        assert len(pids) >= 2
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: all(map(gone, pids)))
