"""A run that was killed and resumed equals one that never was, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

TOYS = str(Path(__file__).parent / "engine_toy")
sys.path.insert(0, TOYS)
import engine_toy as toy  # noqa: E402
from runner_core.base.errors import BadInput, Stopped  # noqa: E402
from runner_core.contract import Finding  # noqa: E402
from runner_core.engines.torch.checkpoint import SafetensorsFormat  # noqa: E402
from runner_core.health import default_rules  # noqa: E402
from runner_core.output.runfolder import RunFolder  # noqa: E402
from runner_core.training.keeping import other_plugins  # noqa: E402
from runner_core.training.snapshots import read_watched  # noqa: E402

EVERYTHING = {
    "train__epochs": 4,
    "train__accumulate": 3,
    "train__ema": 0.9,
    "train__clip": 0.5,
    "checkpoint__every_steps": 2,
    "log__every": 5,
}


class Kill(BaseException):
    """Nothing in the runner catches this."""


def mortal(at: int, number: int | None = None):
    """A project whose call number `at` of `step` (training or validation) ends the process, as far as it can."""

    class Mortal(toy.Toy):
        calls = 0

        def step(self, model, batch, progress):
            Mortal.calls += 1
            if Mortal.calls == at:
                if number is None:
                    raise Kill
                os.kill(os.getpid(), number)
            return super().step(model, batch, progress)

    return Mortal


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy.run(toy.small(**EVERYTHING), folder)
    return folder


def disturb() -> None:
    """Change the state of the random generators, as in another process."""
    torch.manual_seed(random.randrange(1 << 30))
    torch.rand(7)
    np.random.seed(random.randrange(1 << 30))  # noqa: NPY002


@pytest.mark.parametrize("calls", [1, 2, 5, 9, 10, 11, 12, 20, 26, 33, 39, 44])
def test_killed_anywhere(tmp_path, whole, calls):
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path, project=mortal(calls))
    disturb()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_killed_while_watching(tmp_path, whole, calls):
    """Watched at the beginning and once for each validation: the network as validation saw it, the average."""

    class Mortal(toy.Toy):
        watched = 0

        def watch(self, model):
            Mortal.watched += 1
            if Mortal.watched == calls:
                raise Kill
            return super().watch(model)

    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path, project=Mortal)
    disturb()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)
    found, wanted = (read_watched(RunFolder(folder).events()) for folder in (tmp_path, whole))
    assert [step for step, _ in found] == [step for step, _ in wanted] == [0, 3, 6, 9, 12]
    tensors = toy.final_state(tmp_path)[1]
    (last,) = (t for name, t in tensors.items() if name == "ema.4.bias")
    assert found[-1][1]["last"].tolist() == last.tolist() != tensors["model.4.bias"].tolist()
    assert found[-1][1]["largest"].shape == ()


def test_killed_again_and_again(tmp_path, whole):
    resume = False
    for _ in range(100):
        try:
            toy.run(toy.small(**EVERYTHING), tmp_path, resume=resume, project=mortal(11))
            break
        except Kill:
            resume = True
            disturb()
    assert resume
    toy.assert_equal_runs(whole, tmp_path)


@pytest.mark.parametrize("files", [0, 1, 2])
def test_killed_while_saving(tmp_path, whole, files, monkeypatch):
    """The temporary folder of the torn checkpoint stays behind; the one before it counts."""
    write, saves = SafetensorsFormat.write, []

    def torn(self, folder, state):
        saves.append(folder)
        write(self, folder, state)
        if len(saves) == 3:
            for path in sorted(folder.iterdir())[files:]:
                path.write_bytes(path.read_bytes()[:-7])
            raise Kill

    monkeypatch.setattr(SafetensorsFormat, "write", torn)
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path)
    monkeypatch.undo()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_killed_between_log_and_checkpoint(tmp_path, whole, monkeypatch):
    """The log has the checkpoint's line, the disk has no such checkpoint: the line goes."""
    from runner_core.training.checkpoints import Checkpoints

    def never(self, *_):
        raise Kill

    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, state, step, *rest: (save if step < 6 else never)(self, state, step, *rest)
    )
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path)
    assert toy.log_lines(tmp_path)[-1] == {"event": "checkpoint", "step": 6, "epoch": 2, "best": True, "validated": 6}
    monkeypatch.undo()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)


def test_damaged_newest_checkpoint(tmp_path, whole):
    """A flipped byte is noticed and said, and the checkpoint before it continues to the same end."""
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path, project=mortal(40))
    newest = max((tmp_path / "checkpoints").glob("step-*")) / "training.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    display = toy.Quiet()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True, display=display)
    assert any("training.safetensors was changed" in text for text in display.said)
    toy.assert_equal_runs(whole, tmp_path)


def test_workers_change_nothing(tmp_path, whole):
    """Two worker processes, killed and resumed: the same run as with none."""

    class Bomb:
        name = "bomb"

        def observe(self, event):
            if event.step == 5:  # when its line is logged, between two checkpoints
                raise Kill

    config = toy.small(**EVERYTHING, train__workers=2)
    with pytest.raises(Kill):
        toy.run(config, tmp_path, rules=[*default_rules(toy.Toy(config), config), Bomb()])
    toy.run(config, tmp_path, resume=True)
    toy.assert_equal_runs(whole, tmp_path)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
@pytest.mark.parametrize("calls", [5, 10, 11])  # in a step; in the last step of an epoch; in validation
def test_signals(tmp_path, whole, number, code, calls):
    with pytest.raises(Stopped) as stopped:
        toy.run(toy.small(**EVERYTHING), tmp_path, project=mortal(calls, number))
    assert stopped.value.exit_code == code
    assert stopped.value.summary["status"] == "stopped"
    assert stopped.value.summary["steps"] in (2, 3, 4)
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True)
    (values, tensors), (values2, tensors2) = toy.final_state(whole), toy.final_state(tmp_path)
    assert values == values2
    assert all(torch.equal(tensors[name], tensors2[name]) for name in tensors)
    # only the line of the checkpoint that the signal asked for is more
    lines, lines2 = ([line for line in toy.log_lines(f) if line["event"] != "checkpoint"] for f in (whole, tmp_path))
    assert lines == lines2


def test_lost_terminal_does_not_stop(tmp_path, whole):
    display = toy.Quiet()
    toy.run(toy.small(**EVERYTHING), tmp_path, project=mortal(5, signal.SIGHUP), display=display)
    assert any("SIGHUP" in text for text in display.said)
    toy.assert_equal_runs(whole, tmp_path)


def test_second_interrupt_aborts_at_once(tmp_path):
    class Stubborn(toy.Toy):
        def step(self, model, batch, progress):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("still here")

    with pytest.raises(KeyboardInterrupt):
        toy.run(toy.small(), tmp_path, project=Stubborn)


def test_early_stopping_survives(tmp_path):
    settings = {**EVERYTHING, "train__patience": 2, "train__epochs": 12, "train__learning_rate": 1e-9}
    one, other = tmp_path / "one", tmp_path / "other"
    summary = toy.run(toy.small(**settings), one, rules=[])
    assert summary["stopped_early"]
    assert summary["epochs"] < 12
    with pytest.raises(Kill):
        toy.run(toy.small(**settings), other, project=mortal(25), rules=[])
    toy.run(toy.small(**settings), other, resume=True, rules=[])
    toy.assert_equal_runs(one, other)
    again = toy.run(toy.small(**settings), other, resume=True, rules=[])
    assert again["steps"] == summary["steps"]
    assert again["metrics"] == summary["metrics"]


def test_finished_run_resumes_to_the_same_summary(tmp_path, monkeypatch):
    monkeypatch.setattr("runner_core.training.loop.SHOW_EVERY", -1)  # the screen reads the loss after every step
    first = toy.run(toy.small(), tmp_path)
    again = toy.run(toy.small(), tmp_path, resume=True)
    same = ("status", "epochs", "steps", "metrics", "best_step", "samples_per_second")
    assert {k: first[k] for k in same} == {k: again[k] for k in same}


def test_other_settings_are_refused(tmp_path):
    toy.run(toy.small(), tmp_path)
    other = toy.small(train__learning_rate=0.5, train__workers=2, log__every=7)
    other.net.dropout = 0.9
    with pytest.raises(BadInput) as refused:
        toy.run(other, tmp_path, resume=True)
    message = str(refused.value)
    assert "train.learning_rate: 0.05 in the run, 0.5 now" in message
    assert "net.dropout: 0.3 in the run, 0.9 now" in message
    assert "workers" not in message
    assert "log.every" not in message


def test_other_records_are_refused(tmp_path):
    toy.run(toy.small(), tmp_path)
    made = toy.Toy(toy.small())
    with pytest.raises(BadInput, match="records of train"):
        toy.run(toy.small(), tmp_path, resume=True, data=toy.make_data(made, toy.MemoryStore(records=7)))


def test_other_pixels_under_the_same_keys_are_refused(tmp_path):
    toy.run(toy.small(), tmp_path)
    made = toy.Toy(toy.small())
    with pytest.raises(BadInput, match="data and its preparation"):
        toy.run(toy.small(), tmp_path, resume=True, data=toy.make_data(made, toy.MemoryStore(seed=1)))


def test_a_best_that_is_gone_is_said_and_forgotten(tmp_path):
    """Its folder is missing: best.json never names it, and a later validation becomes the best."""
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path, project=mortal(40))
    best = json.loads((tmp_path / "checkpoints" / "best.json").read_text())["step"]
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    folder = tmp_path / "checkpoints" / f"step-{best:08d}"
    if folder == newest:
        pytest.skip("the best is the newest")
    shutil.rmtree(folder)
    display = toy.Quiet()
    toy.run(toy.small(**EVERYTHING), tmp_path, resume=True, display=display)
    assert any("is gone" in text for text in display.said)
    named = json.loads((tmp_path / "checkpoints" / "best.json").read_text())["step"]
    assert (tmp_path / "checkpoints" / f"step-{named:08d}").is_dir()


def test_findings_survive(tmp_path):
    class Says:
        name = "says"

        def observe(self, event):
            return Finding("says", "note", "early") if event.moment == "log" and event.step == 1 else None

    with pytest.raises(Kill):
        toy.run(toy.small(), tmp_path, project=mortal(9), rules=[Says()])
    summary = toy.run(toy.small(), tmp_path, resume=True, rules=[Says()])
    assert [f["message"] for f in summary["health"]] == ["early"]


def test_more_epochs_are_refused_under_a_schedule_of_the_projects_own(tmp_path):
    class Scheduled(toy.Toy):
        def schedule(self, progress):
            return 1 - progress.fraction / 2

    constant = {"train__schedule": "constant"}
    toy.run(toy.small(**constant), tmp_path, project=Scheduled)
    with pytest.raises(BadInput, match="schedule of the project's own"):
        toy.run(toy.small(**constant, train__epochs=5), tmp_path, project=Scheduled, resume=True)


def test_other_plugins_are_said():
    assert other_plugins({"core": "1", "a": "2"}, {"core": "1", "a": "3", "b": "1"}) == [
        "NOTE: plugin a was 2 when the checkpoint was written and is 3 now",
        "NOTE: plugin b was not there when the checkpoint was written and is 1 now",
    ]


@pytest.mark.parametrize("schedule, allowed", [("constant", True), ("cosine", False)])
def test_more_epochs_only_when_the_schedule_does_not_change(tmp_path, schedule, allowed):
    toy.run(toy.small(train__schedule=schedule), tmp_path)
    longer = toy.small(train__schedule=schedule, train__epochs=5)
    if allowed:
        assert toy.run(longer, tmp_path, resume=True)["epochs"] == 5
    else:
        with pytest.raises(BadInput, match=r"train.epochs was 3 in the run and is 5 now"):
            toy.run(longer, tmp_path, resume=True)


WSD = {"train__schedule": "wsd", "train__warmup": 0.0, "train__decay": 0.5, "checkpoint__keep": 1}


@pytest.mark.parametrize("more", [{}, {"checkpoint__every_steps": 2, "train__ema": 0.9}])
def test_a_finished_wsd_run_goes_on_as_if_it_had_always_been_longer(tmp_path, more):
    run, whole, settings = tmp_path / "run", tmp_path / "whole", {**WSD, **more}
    toy.run(toy.small(**settings, train__epochs=4), run)
    finished = toy.final_state(run)[1]
    toy.run(toy.small(**settings, train__epochs=8), whole)
    (run / "config.yaml").write_text("train: {epochs: 8}\n")
    display = toy.Quiet()
    summary = toy.run(toy.small(**settings, train__epochs=8), run, resume=True, display=display)
    assert summary["epochs"] == 8
    assert any("is kept in" in text for text in display.said)
    toy.assert_equal_runs_after(run, whole)
    kept = toy.final_state(run / "epochs-4")[1]
    assert all(np.array_equal(np.asarray(kept[name]), np.asarray(finished[name])) for name in finished)
    assert "epochs: 4" in (run / "epochs-4" / "config.yaml").read_text()
    with pytest.raises(BadInput, match="You may only add epochs"):
        toy.run(toy.small(**settings, train__epochs=6), run, resume=True)


def test_a_wsd_run_that_kept_nothing_from_before_its_decay_says_so(tmp_path):
    toy.run(toy.small(**WSD, train__epochs=4), tmp_path)
    steps = RunFolder(tmp_path).saved_steps()
    assert len(steps) in (2, 3), "the newest, the one before the decay, and perhaps the best"
    for step in steps[:-1]:
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(BadInput, match="no checkpoint from before its learning rate fell"):
        toy.run(toy.small(**WSD, train__epochs=8), tmp_path, resume=True)


def test_another_projects_checkpoint_is_refused(tmp_path):
    class Other(toy.Toy):
        name = "other"

    toy.run(toy.small(), tmp_path)
    with pytest.raises(BadInput, match="project enginetoy, not of other"):
        toy.run(toy.small(), tmp_path, resume=True, project=Other)


def start(folder: Path, settings: dict, resume: bool) -> subprocess.Popen[bytes]:
    script = str(Path(TOYS) / "engine_toy.py")
    arguments = [sys.executable, script, str(folder), "resume" if resume else "fresh", json.dumps(settings)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE)


def newest_step(run: Path) -> int:
    return max((int(p.name.rpartition("-")[2]) for p in run.glob("checkpoints/step-*")), default=0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "epochs, kills",
    [pytest.param(75, 3, marks=pytest.mark.slow), pytest.param(150, 6, marks=pytest.mark.weekly)],
)
def test_kill_minus_nine(tmp_path, workers, epochs, kills):
    """Real processes, killed at random moments, until one reaches the end."""
    settings = {**EVERYTHING, "train__epochs": epochs, "train__workers": workers}
    one, other = tmp_path / "one", tmp_path / "other"
    assert start(one, settings, resume=False).wait() == 0
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(kills):
        process = start(other, settings, resume=(other / "checkpoints").exists())
        goal = newest_step(other) + rng.randint(2, 40)
        while newest_step(other) < goal:  # killed for its progress, not for its time: no machine is too fast or slow
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        process.wait()
    process = start(other, settings, resume=True)
    assert process.wait() == 0, process.stderr.read().decode()
    toy.assert_equal_runs(one, other)
