"""The run folder: made, locked, truncated, summarised."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput
from runner_core.base.writing import replace_text
from runner_core.output.runfolder import RunFolder


def make(path: Path) -> RunFolder:
    folder = RunFolder.create(None, "toy", path)
    folder.config_file.write_text("project: toy\n", encoding="utf-8")
    return folder


def test_two_runs_in_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path, "toy").path for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(f.parent == tmp_path / "toy" for f in folders)


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(BadInput, match=r"not empty.*--resume"):
        RunFolder.create(None, "toy", tmp_path)


def test_a_start_that_was_killed_before_its_settings_were_written_is_no_run(tmp_path: Path) -> None:
    first = RunFolder.create(None, "toy", tmp_path / "run")
    (first.path / ".lock").touch()
    (first.path / ".4711.config.yaml").write_text("half", encoding="utf-8")
    again = RunFolder.create(None, "toy", tmp_path / "run")
    with again.lock():
        assert {found.name for found in again.path.iterdir()} == {".lock", "checkpoints", "figures"}
    (again.checkpoints / "step-00000001").mkdir()
    with pytest.raises(BadInput, match="not empty"):
        RunFolder.create(None, "toy", tmp_path / "run")


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    for name in (
        ".12.log.jsonl",
        ".3.summary.json",
        ".99.report.html",
        ".7.scores-calibration.csv",
        ".streaming.json.ab_12xyz",
    ):
        (folder.path / name).write_text("half", encoding="utf-8")
    (folder.path / ".mine").write_text("mine", encoding="utf-8")
    with folder.lock():
        assert {found.name for found in folder.path.glob(".*")} == {".lock", ".mine"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(BadInput, match=r"file/run cannot be written.*--run-dir"):
        RunFolder.create(None, "toy", tmp_path / "file" / "run")


def test_a_run_is_found_from_a_checkpoint_inside(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    inside = folder.checkpoints / "step-00000001"
    inside.mkdir()
    assert RunFolder.open(inside).path == folder.path
    with pytest.raises(BadInput, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(BadInput, match="no such run folder"):
        RunFolder.open(tmp_path / "nothing")


def test_the_latest_run_is_the_one_started_last(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no run of toy"):
        RunFolder.latest("toy", tmp_path)
    for name in ("b", "a"):
        make(tmp_path / "toy" / name)
    (tmp_path / "toy" / "c").mkdir()  # not a run
    assert RunFolder.latest("toy", tmp_path).path.name == "a"


def test_a_running_folder_is_locked_until_its_process_is_gone(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    hold = (
        "import sys, time, pathlib, runner_core.output.runfolder as r\n"
        "with r.RunFolder(pathlib.Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, folder.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(BadInput, match="another runner is training"), folder.lock():
        pass
    process.kill()  # as kill -9: nothing is released by hand
    process.wait()
    process.stdout.close()
    with folder.lock():
        pass


def lines(*events: tuple[str, int]) -> str:
    return "".join(json.dumps({"event": kind, "step": step, "validated": 0}) + "\n" for kind, step in events)


def kept(folder: RunFolder) -> list[tuple[str, int]]:
    return [(e["event"], e["step"]) for e in folder.events()]


def test_the_log_is_cut_after_the_checkpoint(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    log = [("start", 0), ("train", 5), ("checkpoint", 5), ("train", 10), ("checkpoint", 10), ("train", 12)]
    folder.jsonl.write_text(lines(*log) + '{"event": "tra', encoding="utf-8")
    folder.truncate_log(5)
    assert kept(folder) == log[:3]


def test_without_the_checkpoints_line_later_steps_go(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    folder.jsonl.write_text(lines(("start", 0), ("train", 5), ("train", 10)), encoding="utf-8")
    folder.truncate_log(7)
    assert kept(folder) == [("start", 0), ("train", 5)]
    folder.truncate_log(0)
    assert kept(folder) == []


def test_a_step_saved_before_and_after_its_validation(tmp_path: Path) -> None:
    """SIGTERM at an epoch's end, resumed, killed before the second checkpoint was written: cut at the first."""
    folder = make(tmp_path / "run")
    first, validation, second = (
        {"event": "checkpoint", "step": 3, "validated": 0},
        {"event": "validation", "step": 3},
        {"event": "checkpoint", "step": 3, "validated": 3},
    )
    log = "".join(json.dumps(event) + "\n" for event in (first, validation, second))
    for validated, expected in ((0, [first]), (3, [first, validation, second])):
        folder.jsonl.write_text(log, encoding="utf-8")
        folder.truncate_log(3, validated)
        assert folder.events() == expected


def test_a_torn_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    """Torn within a character, and written on after it; a line separator inside a text is no end of a line."""
    folder = make(tmp_path / "run")
    note = json.dumps({"event": "health", "step": 1, "message": "a\u2028b"}, ensure_ascii=False) + "\n"
    torn = '{"event": "health", "message": "µ'.encode()[:-1]
    after = lines(("checkpoint", 5), ("train", 6))
    folder.jsonl.write_bytes(note.encode() + torn + b"\n" + after.encode() + torn)
    assert kept(folder) == [("health", 1), ("checkpoint", 5), ("train", 6)]
    folder.truncate_log(5)
    assert kept(folder) == [("health", 1), ("checkpoint", 5)]


@given(st.lists(st.sampled_from(["train", "validation", "checkpoint"]), max_size=20), st.data())
def test_cutting_then_repeating_gives_the_same_log(tmp_path_factory: Any, kinds: list[str], data: Any) -> None:
    """Whatever the moment of the kill: cut at a checkpoint, run the rest again, and nothing is lost or twice."""
    folder = make(tmp_path_factory.mktemp("log") / "run")
    log = [("start", 0), *((kind, number) for number, kind in enumerate(kinds, 1))]
    saved = [number for kind, number in log if kind == "checkpoint"]
    killed = data.draw(st.integers(0, len(log)))
    at = max([s for s in saved if s < killed], default=0)
    folder.jsonl.write_text(lines(*log[:killed]), encoding="utf-8")
    folder.truncate_log(at)
    rest = log if at == 0 else log[at + 1 :]
    with folder.jsonl.open("a", encoding="utf-8") as file:
        file.write(lines(*rest))
    assert kept(folder) == log


def test_a_summary_is_plain_json(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    folder.write_summary(
        {"a": np.float32(0.5), "b": math.nan, "c": (1, 2), "d": tmp_path, "e": np.arange(2), "f": np.float64("inf")}
    )
    text = folder.summary_file.read_text(encoding="utf-8")
    assert "NaN" not in text
    assert folder.read_summary() == {"a": 0.5, "b": None, "c": [1, 2], "d": str(tmp_path), "e": [0, 1], "f": None}
    assert [p.name for p in folder.path.glob(".summary*")] == []


def test_what_cannot_be_written_is_named_as_people_know_it(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "summary.json"
    with pytest.raises(OSError) as raised:
        replace_text(path, "{}")
    assert raised.value.filename == str(path)
