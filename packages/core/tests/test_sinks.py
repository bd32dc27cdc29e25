"""Trackers: what is written, and that a failing one never stops a run."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput
from runner_core.cli.train_text import advice_if_slow
from runner_core.output.display import Display
from runner_core.output.sinks import JsonlSink, Sinks, TextSink
from runner_core.output.sinks.tensorboard import TensorBoardSink


class Failing:
    def __init__(self) -> None:
        self.calls = 0

    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self.calls += 1
        raise ConnectionError("no route to the tracker")

    def figure(self, name: str, step: int, png: Path) -> None: ...

    def close(self) -> None: ...


def test_a_failing_sink_is_dropped_with_one_warning(tmp_path: Path) -> None:
    said: list[str] = []
    failing = Failing()
    sinks = Sinks([failing, JsonlSink(tmp_path / "log.jsonl")], said.append)
    for step in range(3):
        sinks.event("train", step, {"loss": 1.0})
    sinks.close()
    assert failing.calls == 1
    assert len(said) == 1
    assert "Failing failed and is switched off" in said[0]
    assert "no route" in said[0]
    assert len((tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_each_line_is_there_before_the_next_event(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "log.jsonl")
    sink.event("train", 1, {"epoch": 0, "loss": np.float32(0.5), "bad": math.nan, "timing": {"seconds": 1.0}})
    text = (tmp_path / "log.jsonl").read_text(encoding="utf-8")  # before close: a killed run keeps it
    assert json.loads(text) == {
        "event": "train", "step": 1, "epoch": 0, "loss": 0.5, "bad": None, "timing": {"seconds": 1.0}
    }  # fmt: skip
    sink.close()


def test_a_full_disk_delays_lines(tmp_path: Path) -> None:
    """Files may not grow in this process for a while, as on a full disk, in the middle of a line of many."""
    script = f"""
import resource, signal
from pathlib import Path
from runner_core.output.sinks import Sinks
from runner_core.output.sinks import JsonlSink, TextSink
folder, said = Path({str(tmp_path)!r}), []
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sinks = Sinks([JsonlSink(folder / "log.jsonl"), TextSink(folder / "train.log")], said.append)
for step in range(40):
    if step in (10, 30):
        limit = 777 if step == 10 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if step == 29:
        assert (folder / "log.jsonl").read_bytes()[-1:] == b"\\n"
    sinks.event("train", step, {{"loss": step / 7}})
sinks.close()
assert [s.count("kept in memory") for s in said] == [1, 1], said
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    read = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in read] == list(range(40))
    assert len((tmp_path / "train.log").read_text(encoding="utf-8").splitlines()) == 40


def test_lines_lost_for_good_are_counted(tmp_path: Path) -> None:
    said: list[str] = []
    sinks = Sinks([JsonlSink(tmp_path / "gone" / "log.jsonl")], said.append)
    for step in range(3):
        sinks.event("train", step, {})
    sinks.close()
    assert len(said) == 2
    assert "3 lines never came into" in said[1]


def test_a_line_torn_by_a_kill_does_not_take_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("whole\nto", encoding="utf-8")
    sink = TextSink(path)
    sink.event("train", 1, {})
    sink.close()
    assert path.read_text(encoding="utf-8").splitlines()[:2] == ["whole", "to"]


def test_the_log_may_be_replaced_before_the_first_event(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old\n", encoding="utf-8")
    sink = JsonlSink(path)
    replacement = tmp_path / "new"
    replacement.write_text("kept\n", encoding="utf-8")
    replacement.replace(path)
    sink.event("train", 1, {})
    sink.close()
    assert path.read_text(encoding="utf-8").splitlines()[0] == "kept"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


LOSSES = {"epoch": 1, "gradient_norm": {"bce": 0.1234567, "dice": 0.5}}


def test_the_text_log_reads_as_lines(tmp_path: Path) -> None:
    sink = TextSink(tmp_path / "train.log")
    sink.event("validation", 7, {"dice": 0.912345678, "timing": {"seconds": 2.0}})
    sink.event("watch", 7, {"arrays": {"edges": [[1.5, 2.5]] * 1000}})  # for programs
    sink.event("losses", 8, LOSSES)
    sink.close()
    line, losses = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert "validation step 7  dice 0.91235  seconds 2" in line
    assert "losses     step 8  epoch 1  gradient_norm bce 0.12346, dice 0.5" in losses


def test_tensorboard_writes_scalars_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from runner_core.output.pictures import write_png
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_png(tmp_path / "a.png", np.zeros((4, 5, 3), np.uint8))
    sink = TensorBoardSink(tmp_path / "tb")
    sink.event("train", 3, {"epoch": 1, "loss": 0.25, "name": "text", "timing": {"samples_per_second": 9.0}})
    sink.event("watch", 3, {"epoch": 1, "arrays": {"edges": [[1.5, 2.5]], "count": 3}})
    sink.event("losses", 4, LOSSES)
    sink.figure("a", 3, tmp_path / "a.png")
    sink.close()
    found = EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(3, 0.25)]
    assert found.Tags()["images"] == ["a"]
    losses = [f"losses/gradient_norm/{name}" for name in ("bce", "dice")]
    assert found.Tags()["scalars"] == ["train/loss", "train/samples_per_second", *losses]
    assert [(e.step, e.value) for e in found.Scalars("losses/gradient_norm/dice")] == [(4, 0.5)]


def test_tensorboard_leaves_nothing_of_a_run_without_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    TensorBoardSink(tmp_path / "tb").close()
    assert not list(tmp_path.iterdir())


def test_tensorboard_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(BadInput, match=r"`uv pip install .tensorboard>="):
        TensorBoardSink(tmp_path)


class Gone(io.StringIO):
    """A terminal that has been closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_display_whose_terminal_is_gone_falls_silent_and_keeps_the_log(tmp_path: Path) -> None:
    display = Display(tmp_path / "train.log", Gone())
    display.say("one")
    display.start(10, 0, "toy")
    display.update(5, 0, {"loss": 1.0})
    display.say("two")
    display.stop()
    assert [line[21:] for line in (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()] == ["one", "two"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar_with_loss_rate_wait_and_eta() -> None:
    terminal = Terminal()
    display = Display(stream=terminal)
    display.start(10, 2, "toy")
    display.update(10, 1, {"loss": 0.123456, "samples_per_second": 1234.5, "data_wait_share": 0.07})
    display.say("[not markup]")
    display.stop()
    display.stop()
    text = terminal.getvalue()
    for part in ("toy", "10/10", "loss 0.1235", "1,234 samples/s", "data wait 7%", "ETA", "[not markup]"):
        assert part in text


def test_a_narrow_terminal_shows_every_step_and_the_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    display = Display(stream=terminal)
    display.start(2000, 0, "brainunet")
    display.update(1234, 10, {"loss": 0.123456, "samples_per_second": 1234.5, "data_wait_share": 0.07})
    assert display._bar is not None
    display._bar.refresh()
    display.stop()
    line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "1234/2000 epoch 11  ETA 0:00  loss 0.1235" in line


def test_elsewhere_there_are_plain_lines() -> None:
    stream = io.StringIO()
    display = Display(stream=stream)
    display.start(4, 0, "toy")
    for step in range(1, 5):
        display.update(step, 0, {"loss": 1.0})
    display.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "toy: steps 0 to 4"
    assert lines[-1].startswith("step 4/4")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "bar"])
def test_other_work_is_shown_and_is_not_counted_as_steps(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    """Steps take a second, a validation 60 s: the time to the end is that of the steps and of validations to come."""
    clock = [0.0]
    monkeypatch.setattr("runner_core.output.display.time.monotonic", lambda: clock[0])
    display = Display(stream=stream)
    display.start(20, 0, "toy")
    for step in range(1, 11):
        clock[0] += 1
        display.update(step, 0, {})
    with display.aside("validation", 3) as advance:
        for _ in range(3):
            clock[0] += 20
            advance()
    display._plain_at = -math.inf
    display.update(10, 1, {}, validations=60)
    if display._bar is not None:
        display._bar.refresh()
        assert len(display._bar.tasks) == 1
    assert re.findall(r"ETA ([\d:]+)", stream.getvalue())[-1] == "1:10"
    assert "validation" in stream.getvalue()
    display.stop()


def test_advice_comes_once_when_the_pace_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first step takes 60 s, the others 10: advice gets the time to the end at the pace of the others."""
    clock, heard = [0.0], list[float]()
    monkeypatch.setattr("runner_core.output.display.time.monotonic", lambda: clock[0])

    def advice(seconds: float) -> list[str]:
        heard.append(seconds)
        return ["smaller is faster"]

    stream = io.StringIO()
    display = Display(tmp_path / "train.log", stream)
    display.once_measured(advice)
    display.start(100, 0, "toy")
    for step in range(1, 20):
        clock[0] += 60 if step == 1 else 10
        display.update(step, 0, {})
    assert heard == [970.0]
    assert stream.getvalue().count("smaller is faster") == 1
    assert "smaller is faster" in (tmp_path / "train.log").read_text()


def test_hours_on_a_cpu_show_what_presets_are_for() -> None:
    def default() -> None:
        """Train everything, for a GPU.

        More.
        """

    def small() -> None:
        """Train on a CPU."""

    def setup(kind: str, preset: str = "default") -> Any:
        project = SimpleNamespace(presets={"default": default, "small": small, "demo": small, "plain": dict})
        return SimpleNamespace(device=SimpleNamespace(kind=kind), preset=preset, project=project)

    note, *presets = advice_if_slow(setup("cpu"), 26.2 * 3600)
    assert "takes another 26 h on the CPU" in note
    assert presets == ["  preset default (this run): Train everything, for a GPU.", "  preset small: Train on a CPU."]
    assert not list(advice_if_slow(setup("cpu"), 3600))
    assert not list(advice_if_slow(setup("cuda"), 26 * 3600))
    assert "takes another 5 days on" in next(advice_if_slow(setup("cpu"), 120 * 3600))


def test_work_on_records_is_shown_below_the_lines_and_not_in_a_pipe(tmp_path: Path) -> None:
    for stream in (Terminal(), io.StringIO()):
        display = Display(tmp_path / "train.log", stream)
        with display.records("scoring", 2) as bar:
            infer = bar.counting(lambda arrays: arrays)
            for key in ("scan_a", "scan_b[x]"):
                bar.begin(key)
                assert infer(infer(key)) == key
                if bar.bar is not None:
                    bar.bar.refresh()
                display.say(f"scored {key}")
                bar.done()
        display.say("the end")
        text = stream.getvalue()
        assert ("scan_b[x], batch 2" in text) is (stream.isatty())
        assert text.index("scored scan_b[x]") < text.index("the end")
        assert stream.isatty() or text == "scored scan_a\nscored scan_b[x]\nthe end\n"
    assert "batch" not in (tmp_path / "train.log").read_text()


def test_an_error_of_other_work_is_not_taken_for_a_lost_terminal() -> None:
    display = Display(stream=Terminal())
    display.start(20, 0, "toy")
    with pytest.raises(FileNotFoundError), display.aside("validation", 3):
        raise FileNotFoundError("scan.nii")
    assert display._bar is not None
    assert len(display._bar.tasks) == 1
    display.stop()


def test_a_silent_display_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(silent=True)
    display.start(2, 0, "toy")
    with display.aside("validation", 1) as advance:
        advance()
    assert not display.due(2)
    display.update(2, 1, {})
    display.say("words")
    assert capsys.readouterr().out == ""


def test_a_slow_run_shows_its_speed_in_two_digits() -> None:
    stream = io.StringIO()
    display = Display(stream=stream)
    display.start(1, 0, "toy")
    display.update(1, 0, {"samples_per_second": 0.6412})
    assert "0.64 samples/s" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "bar"])
def test_the_eta_forgets_a_standstill_and_not_what_comes_again(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    """A step a second; an hour's standstill after step 100; 5 s of validation after every tenth step from step 400."""
    clock = [0.0]
    monkeypatch.setattr("runner_core.output.display.time.monotonic", lambda: clock[0])
    display = Display(stream=stream)
    display.start(1000, 0, "toy")

    def eta(first: int, last: int, validation: float = 0.0) -> int:
        for step in range(first, last):
            clock[0] += 1 + (validation if step % 10 == 0 else 0)
            display.update(step, 0, {})
        clock[0] += 1
        display._plain_at = -math.inf  # printed however long ago the last line was
        display.update(last, 0, {})
        if display._bar is not None:
            display._bar.refresh()
        found = re.findall(r"ETA (?:(\d+):)?(\d+):(\d\d)", stream.getvalue())[-1]
        return sum(int(part or 0) * unit for part, unit in zip(found, (3600, 60, 1), strict=True))

    assert eta(1, 100) == pytest.approx(900, abs=1)
    clock[0] += 3600
    assert eta(101, 400) == pytest.approx(600, abs=1)
    assert eta(401, 900, validation=5) == pytest.approx(150, rel=0.1)
    display.stop()
