"""When a run logs, validates and saves; what it does when the disk is full, when it stops early, without validation."""

from __future__ import annotations

import errno
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.data.sampling import stream_seed
from runner_core.training import loop
from runner_core.training.cadence import Cadence

cadences = st.builds(
    Cadence,
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 6),
)


@given(cadences)
def test_no_event_is_missed(cadence):
    """Between a step and `next_event` nothing is due; the last step logs, validates and saves."""
    step = 0
    while step < cadence.steps:
        event = cadence.next_event(step)
        assert step < event <= cadence.steps
        assert cadence.ends_block(event)
        for quiet in range(step + 1, event):
            assert not any(due(quiet) for due in (cadence.logs, cadence.draws, cadence.validates, cadence.saves))
        step = event
    assert cadence.logs(step)
    assert cadence.validates(step)
    assert cadence.saves(step)
    assert not cadence.validates(0)


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (12, 1), (100, 5), (999, 49), (1000, 50), (10**6, 50)])
def test_a_short_run_logs_more_often(steps, every):
    config = RunConfig()
    config.train.epochs = 1
    assert Cadence.of(config, steps).log_every == every
    config.log.every = 50
    assert Cadence.of(config, steps).log_every == 50


@given(cadences)
def test_what_is_due_within_a_block_happens_at_its_end(cadence):
    plain, step = replace(cadence, block=1), 0
    while step < cadence.steps:
        event = cadence.next_event(step)
        for name in ("logs", "draws", "validates", "saves"):
            due = any(getattr(plain, name)(s) for s in range(step + 1, event + 1))
            assert getattr(cadence, name)(event) == due
        step = event


@given(cadences)
def test_the_validations_to_come_are_counted(cadence):
    for step in range(cadence.steps + 1):
        coming = sum(cadence.validates(later) for later in range(step + 1, cadence.steps + 1))
        assert cadence.validations_after(step) == coming


@pytest.mark.torch
def test_the_screen_shows_the_loss_of_now_and_every_validation(tmp_path, monkeypatch):
    """Each loss on the screen is the mean since the last train line; each validation has a line."""
    shown, said = [], []

    class Recorded(toy.Quiet):
        def update(self, step, epoch, values, validations=0.0):
            shown.append((step, values["loss"], validations))

        def print(self, text):
            said.append(text)

    monkeypatch.setattr(loop, "SHOW_EVERY", -1)
    steps: list[float] = []
    read = loop.Loop._log

    def keep(self):
        steps.append(self.trainer.losses())
        return read(self)

    monkeypatch.setattr(loop.Loop, "_log", keep)
    toy.run(toy.small(train__epochs=4, validate__every=2, log__every=5), tmp_path, display=Recorded())
    by_step = [loss for window in steps for loss in window]
    begins = {1: 0, 5: 1, 10: 5, 12: 10}  # train lines
    for step, loss, _ in shown:
        first = begins.get(step, max(line for line in begins if line <= step))
        assert loss == pytest.approx(sum(by_step[first:step]) / (step - first)), step
    assert [step for step, _, _ in shown] == list(range(1, 13))
    validations = [text for text in said if text.startswith("validation after epoch")]
    found = lines(tmp_path, "validation")
    assert [text.split()[3] for text in validations] == ["2", "4"]
    for text, event in zip(validations, found, strict=True):
        assert f"{event[toy.Toy.monitor[0]]:.4g}" in text
        assert ("(best so far)" in text) == event["best"]
    times = [seconds for _, _, seconds in shown]
    assert times[0] == times[-1] == 0
    assert times[7] > 0  # one validation was timed, one is to come


def test_a_validation_on_the_screen():
    monitor, metrics = loop.Monitor("dice", "max"), {"loss": 0.61278, "dice": 0.95491, "iou": 0.9137}
    text = monitor.line(metrics, 2.74, True, None)
    assert text == "dice ↑ 0.9549 (best so far)  loss ↓ 0.6128  iou ↑ 0.9137  in 2.7 s"
    text = monitor.line(metrics, 61, False, {"value": 0.96, "step": 70})
    assert text == "dice ↑ 0.9549 (best: 0.96, step 70)  loss ↓ 0.6128  iou ↑ 0.9137  in 1:01"
    many = monitor.line({**metrics, **{f"iou_{n}": 0.5 for n in range(9)}}, 1.0, True, None)
    assert many.startswith("dice ↑ 0.9549 (best so far)  loss ↓ 0.6128  iou ↑ 0.9137  iou_0 ↑ 0.5")
    assert many.endswith("iou_2 ↑ 0.5  and 6 more  in 1.0 s")
    own = loop.Monitor("loss", "min", {"dvh": "min", "euler": "max"})
    line = own.line({"loss": 1.0, "dvh": 2.0, "euler": 3.0, "mae_coarse": 4.0, "ratio": 5.0}, 0.04, True, None)
    assert line == "loss ↓ 1 (best so far)  dvh ↓ 2  euler ↑ 3  mae_coarse ↓ 4  ratio 5  in 0.0 s"


@pytest.mark.torch
def test_in_blocks_everything_happens_where_one_ends(tmp_path, monkeypatch):
    """Three steps at once in epochs of seven: 3, 6, 7, 10, 13, 14."""
    from runner_core.engines.torch.trainer import TorchTrainer

    monkeypatch.setattr(TorchTrainer, "block", 3)
    toy.run(toy.small(train__epochs=2, train__steps_per_epoch=7, log__every=5, checkpoint__every_steps=4), tmp_path)
    assert [line["step"] for line in lines(tmp_path, "train")] == [3, 6, 10, 14]
    assert [line["step"] for line in lines(tmp_path, "checkpoint")] == [6, 7, 10, 13, 14]


@given(st.sets(st.tuples(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(0, 64)), min_size=2, max_size=50))
def test_streams_differ(parts):
    seeds = {stream_seed(*p) for p in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**64 for seed in seeds)


def lines(folder, event):
    return [line for line in toy.log_lines(folder) if line["event"] == event]


@pytest.mark.torch
def test_the_log_of_a_run(tmp_path):
    summary = toy.run(toy.small(train__epochs=4, validate__every=2, log__every=5), tmp_path)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 5, 10, 12]
    assert [line["step"] for line in lines(tmp_path, "validation")] == [6, 12]
    assert [line["step"] for line in lines(tmp_path, "checkpoint")] == [3, 6, 9, 12]
    start, end = lines(tmp_path, "start"), lines(tmp_path, "end")
    assert start == [
        {
            "event": "start",
            "step": 0,
            "epoch": 0,
            "steps": 12,
            "steps_per_epoch": 3,
            "samples": {"train": 30, "validation": 15},
            "precision": "float32",
        }
    ]
    assert end == [{"event": "end", "step": 12, "epoch": 4, "status": "done"}]
    assert {"loss", "bce", "spread", "learning_rate"} <= lines(tmp_path, "train")[0].keys()
    assert summary["metrics"] == {
        k: v for k, v in lines(tmp_path, "validation")[-1].items() if k not in ("event", "step", "epoch", "best")
    }


@pytest.mark.torch
def test_the_summary(tmp_path):
    summary = toy.run(toy.small(), tmp_path)
    assert (summary["status"], summary["epochs"], summary["steps"]) == ("done", 3, 9)
    assert 0 < summary["data_wait_share"] < 1
    assert summary["samples_per_second"] > 0
    assert summary["peak_memory_bytes"]["host"] > 10_000_000
    assert summary["peak_memory_bytes"]["device"] == 0
    assert summary["wall_seconds"] > 0
    assert summary["versions"]["torch"]
    json.dumps(summary)


@pytest.mark.torch
def test_time_is_accounted_for(tmp_path):
    """Wait, compute and other make up the whole, in every line; a slow network counts as compute, slow data as wait."""
    import time

    slept = {"data_wait": 0.0, "compute": 0.0}

    def sleep(where):
        slept[where] += 0.02
        time.sleep(0.02)

    class Slow(toy.Toy):
        def step(self, model, batch, progress):
            if model.training:
                sleep("compute")
            return super().step(model, batch, progress)

        def augment(self, sample, rng):
            sleep("data_wait")

    toy.run(toy.small(train__epochs=1), tmp_path, project=Slow, rules=[])
    measured = dict.fromkeys(slept, 0.0)
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        timing = json.loads(line).get("timing", {})
        if "compute" in timing:
            parts = timing["data_wait"] + timing["compute"] + timing["other"]
            assert parts == pytest.approx(timing["seconds"], abs=1e-5)
            measured = {name: measured[name] + timing[name] for name in measured}
    assert min(slept.values()) > 0
    assert all(measured[name] >= slept[name] for name in slept)


@pytest.mark.torch
def test_the_load_of_a_gpu_is_in_the_log(tmp_path, monkeypatch):
    """Only under `timing`, because no two runs are alike in it."""
    load = {"gpu_busy": 0.5, "gpu_watts": 250.51249}
    monkeypatch.setattr(loop.DeviceUsage, "facts", lambda self: load)
    toy.run(toy.small(train__epochs=1), tmp_path)
    trained = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    trained = [line for line in trained if line["event"] == "train"]
    assert trained
    for line in trained:
        assert (line["timing"]["gpu_busy"], line["timing"]["gpu_watts"]) == (0.5, 250.512)
        assert not [name for name in line if name.startswith("gpu")]


@pytest.mark.torch
def test_best_is_kept_and_last_too(tmp_path):
    class Worsens(toy.Toy):
        monitor = ("age", "max")

        def metrics(self):
            class Age:
                value = 3

                def reset(self):
                    self.value -= 1

                def update(self, prediction, batch):
                    pass

                def compute(self):
                    return {"age": self.value}

            return [Age()]

    summary = toy.run(toy.small(train__epochs=6, checkpoint__keep=2), tmp_path, project=Worsens)
    assert summary["best_step"] == 3
    assert summary["metrics"]["age"] == 2
    kept = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert kept == ["step-00000003", "step-00000015", "step-00000018"]


@pytest.mark.torch
def test_a_better_validation_is_saved_although_no_checkpoint_is_due(tmp_path):
    toy.run(toy.small(train__epochs=3, checkpoint__every=100), tmp_path)
    best = [line["step"] for line in lines(tmp_path, "validation") if line["best"]]
    assert set(best) <= {line["step"] for line in lines(tmp_path, "checkpoint")}


@pytest.mark.torch
def test_without_validation_the_last_is_the_best(tmp_path):
    made = toy.Toy(toy.small())
    summary = toy.run(toy.small(), tmp_path, data=toy.make_data(made, validation=False))
    assert summary["metrics"] == {}
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text()) == {"step": summary["steps"]}


@pytest.mark.torch
def test_unknown_monitored_metric(tmp_path):
    class Wrong(toy.Toy):
        monitor = ("acuracy", "max")

    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        toy.run(toy.small(), tmp_path, project=Wrong)


@pytest.mark.torch
@pytest.mark.parametrize("fails", [{2}, {3}, {2, 3}])
def test_a_full_disk_does_not_end_the_run(tmp_path, fails, monkeypatch):
    """It is said, the last good checkpoint stays, training goes on; at the end it is said again if the last failed."""
    from runner_core.engines.torch.checkpoint import SafetensorsFormat

    write, calls = SafetensorsFormat.write, []

    def full(self, folder, state):
        calls.append(folder)
        if len(calls) in fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, folder, state)

    monkeypatch.setattr(SafetensorsFormat, "write", full)
    display = toy.Quiet()
    summary = toy.run(toy.small(), tmp_path, display=display)
    assert summary["status"] == ("failed" if 3 in fails else "done")
    told = [text.rpartition(". ")[2] for text in display.said if "no space left" in text and "WARNING" in text]
    wanted = {2: "The checkpoint of step 3 is kept; training goes on",
              3: f"The checkpoint of step {3 if 2 in fails else 6} is kept"}  # fmt: skip
    assert told == [wanted[call] for call in sorted(fails)], "after the last step nothing goes on"
    assert not any("checkpoint.keep" in text for text in display.said if 2 in fails), "one checkpoint cannot be fewer"
    kept = {int(p.name[5:]) for p in (tmp_path / "checkpoints").glob("step-*")}
    good = {3 * n for n in (1, 2, 3) if n not in fails}
    assert kept == good
    assert summary["best_step"] in good
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["step"] == summary["best_step"]
    assert bool(summary["unsaved"]) == (3 in fails)
    assert ("the end of this training is not saved" in (summary["reason"] or "")) == (3 in fails)


@pytest.mark.torch
def test_no_records_to_train_on(tmp_path):
    made = toy.Toy(toy.small())
    data = toy.make_data(made)
    data.splits = {"train": [], "validation": [0]}
    with pytest.raises(BadInput, match="no records to train on"):
        toy.run(toy.small(), tmp_path, data=data)


@pytest.mark.torch
def test_augmenting_on_the_host_and_a_set_on_the_device_exclude_each_other(tmp_path):
    made = toy.Toy(toy.small())
    with pytest.raises(BadInput, match=r"set cache\.mode memmap"):
        toy.run(toy.small(), tmp_path, data=toy.make_data(made, toy.MemoryStore(device=True)))


@pytest.mark.torch
def test_the_precision_is_in_the_log_after_the_first_step(tmp_path):
    toy.run(toy.small(log__every=50), tmp_path)
    assert lines(tmp_path, "precision") == [
        {"event": "precision", "step": 1, "epoch": 0, "asked": "float32", "seen": {"torch.float32": 2}}
    ]


@pytest.mark.parametrize("block", [1, 3, 4, 7])
@pytest.mark.parametrize("begin", range(21))
def test_the_last_step_before_the_decay_is_saved(block: int, begin: int) -> None:
    cadence = Cadence(10, 2, log_every=1000, save_every=1000, block=block, decay_begin=begin)
    visited, step = [], 0
    while step < cadence.steps:
        step = cadence.next_event(step)
        visited.append(step)
    before = cadence.before_decay
    assert before is not None
    assert begin - block < before <= begin
    assert [step for step in visited if cadence.saves(step)] == sorted({before, 20} - {0})
    assert all(cadence.ends_block(step) for step in visited)
