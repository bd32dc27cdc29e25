"""The report of a running training: there from the first validation, cheap, and right after a kill and a resume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runner_core.api.run import Run
from runner_core.cli import main
from runner_core.output import live
from runner_core.output.progress import arrow, note_start, progress, read_starts
from runner_core.output.report import render
from runner_core.output.runfolder import RunFolder
from runner_core.training.loop import Loop

ABOUT = {
    "project": "toy",
    "preset": "demo",
    "data": "phantom",
    "command": "runner toy train",
    "monitor": ["dice", "max"],
    "directions": {"dvh": "min"},
}
VALIDATION = {"epoch": 1, "loss": 0.5, "dice": 0.25, "best": True, "timing": {"seconds": 1.0}}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(None, "toy", tmp_path / "run")
    run.config_file.write_text("project: toy\n", encoding="utf-8")
    log(run, "start", 0, {"steps": 80})
    return run


def log(run: RunFolder, kind: str, step: int, values: Any) -> None:
    with run.jsonl.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": kind, "step": step, **values}) + "\n")


def test_the_first_validation_writes_a_page_of_a_running_training(run: RunFolder) -> None:
    sink = live.LiveReport(run, ABOUT | {"command": "runner toy train --data https://me:secret@host/a"})
    sink.event("start", 0, {})
    assert not run.report_file.exists()
    log(run, "validation", 20, VALIDATION)
    sink.event("validation", 20, VALIDATION)
    page = run.report_file.read_text(encoding="utf-8")
    for part in (
        "status running",
        "step 20 of 80",
        'value="20" max="80"',
        "runner toy train",
        "0.25",
        "higher is better",
    ):
        assert part in page, part
    assert 'data-reload="20"' in page
    assert "secret" not in page


def test_a_finished_page_does_not_reload(run: RunFolder) -> None:
    note_start(run, ABOUT)
    run.write_summary({"status": "done", "starts": read_starts(run), "ended": "some day"})
    page = render(run)
    assert 'data-reload=""' in page
    assert "Reload now" not in page
    assert "ended some day" in page


def test_an_arrow_says_where_better_values_are() -> None:
    up, down = ["dice", "iou_tumour", "mean_recall"], ["loss", "dice_loss", "mae_dose", "dose_rmse"]
    unknown = ["dice_error", "iou_gap", "recall_seconds", "accuracy_drop", "loss_std", "f1_time", "mae_count", "volume"]
    assert {arrow(name, {}) for name in up} == {"↑"}
    assert {arrow(name, {}) for name in down} == {"↓"}
    assert {arrow(name, {}) for name in unknown} == {""}
    assert arrow("dice_error", {"dice_error": "min"}) == "↓", "the project said so"


def test_a_resumed_run_is_not_what_its_old_summary_says(run: RunFolder) -> None:
    note_start(run, ABOUT)
    run.write_summary({"status": "stopped", "reason": "stopped by SIGTERM", "starts": read_starts(run)})
    assert progress(run, run.events()).status == Run(run.path).status == "stopped"
    note_start(run, ABOUT)
    found = progress(run, run.events())
    assert (found.status, found.steps, found.monitor) == ("running", 80, ("dice", "max"))
    assert [found.arrow(name) for name in ("dice", "dvh", "bce_loss", "ratio")] == ["↑", "↓", "↓", ""]
    assert Run(run.path).status == "running"
    page = render(run)
    assert "SIGTERM" not in page
    assert "last resumed" in page
    log(run, "end", 80, {"status": "done"})
    assert progress(run, run.events()).status == Run(run.path).status == "scoring"


@pytest.mark.torch
def test_a_resumed_run_is_running_before_its_first_step(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, seen = RunFolder(shutil.copytree(trained, here / "run")), list[int]()
    before = len(read_starts(run))
    monkeypatch.setattr(Loop, "run", lambda loop: seen.append(len(read_starts(run))))
    assert main(["toy", "train", "--resume", "run", "--train.batch-size", "3"]) == 2
    assert len(read_starts(run)) == before, "a refused resume is no start"
    assert main(["toy", "train", "--resume", "run"]) == 0
    assert seen == [before + 1]
    assert len(read_starts(run)) == before + 1


def test_a_run_whose_process_is_gone_is_interrupted(run: RunFolder) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    note_start(run, ABOUT)
    start = {**read_starts(run)[0], "pid": gone.pid}
    run.starts_file.write_text(f"{json.dumps(start)}\n{{torn", encoding="utf-8")
    assert "status interrupted" in render(run)
    assert Run(run.path).status == "interrupted"
    run.starts_file.write_text(json.dumps(start | {"host": "another"}), encoding="utf-8")
    assert "status running" in render(run)
    run.starts_file.write_text(json.dumps(start | {"pid": os.getpid()}), encoding="utf-8")
    assert "status running" in render(run)


@pytest.mark.parametrize("cost", [0.01, 2.0])
def test_reports_take_at_most_a_hundredth_of_the_time(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, cost: float
) -> None:
    clock, written = [0.0], []

    def write(folder: RunFolder) -> None:
        written.append(clock[0])
        clock[0] += cost

    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live, "write_report", write)
    sink = live.LiveReport(run, ABOUT)
    for step in range(2000):
        clock[0] += 0.5
        sink.event("validation" if step % 3 == 0 else "train", step, VALIDATION)
    assert cost * len(written) <= 0.0101 * clock[0] + cost
    assert len(written) >= 0.5 * min(clock[0] / (100 * cost), 2000 / 3)


def test_a_disk_without_space_stops_nothing(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: RunFolder) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "write_report", full)
    live.LiveReport(run, ABOUT).event("validation", 1, VALIDATION)
