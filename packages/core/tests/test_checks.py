"""A project's checks of single records and of all of them report in `check`, and at the start of a training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import LEFT_OUT, BadInput, Finding, Record, collect_left_out, leave_out
from runner_core.cli import main


@pytest.mark.torch
def test_new_data_is_checked_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    for mask in (here / "data").glob("*_mask.npy"):
        np.save(mask, np.zeros_like(np.load(mask)))
    monkeypatch.setattr("runner_core.training.data._SHOWN", 3)
    words = ["toy", "train", "--data", "data", "--train.epochs", "1", "--train.steps-per-epoch", "2"]
    words += ["--cache.workers", "1", "--health.mode", "off"]
    assert main([*words, "--run-dir", "one"]) == 0
    said = capsys.readouterr().out
    assert said.count("nothing is marked") == 3
    assert f"7 more: runner toy check --data {here / 'data'}" in said
    assert main([*words, "--run-dir", "two"]) == 0
    assert "nothing is marked" not in capsys.readouterr().out


@pytest.mark.torch
def test_faults_of_the_set_are_told_by_check_and_at_the_start(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    assert main(["toy", "phantom", "data"]) == 0
    (here / "data" / "p0_a.npy").write_bytes(b"not numpy")
    seen, level = [], "warning"

    def check_set(self: Any, records: Sequence[Record]) -> Sequence[Finding]:
        seen.append(len(records))
        found = Finding("axes", level, f"{len(records)} records have two axes")  # type: ignore[arg-type]
        return [found, Finding("axes", "note", "which is odd")]

    monkeypatch.setattr(Toy, "checks", declare(Toy, "checks", records=check_set))
    assert main(["toy", "check", "--data", "data"]) == 2  # for the faulty record, which is not among them
    assert "warning  9 records have two axes\nnote     which is odd" in capsys.readouterr().out
    (here / "data" / "p0_a.npy").unlink()
    (here / "data" / "p0_a_mask.npy").unlink()
    assert main(["toy", "check", "--data", "data"]) == 0
    assert "0 faulty records, 0 errors, 1 warning, 1 note" in capsys.readouterr().out
    level = "error"
    assert main(["toy", "check", "--data", "data"]) == 2
    assert "error    9 records have two axes" in capsys.readouterr().out
    words = ["--data", "data", "--train.epochs", "1", "--train.steps-per-epoch", "2", "--health.mode", "off"]
    assert main(["toy", "train", *words, "--cache.workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "WARNING: 9 records have two axes" in said
    assert "which is odd" not in said
    assert seen == [9, 9, 9, 9]


def test_a_set_that_cannot_be_checked_is_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    def check_set(self: Any, records: Sequence[Record]) -> Sequence[Finding]:
        raise BadInput(f"{records[0].files['image']}: has no axis")

    monkeypatch.setattr(Toy, "checks", declare(Toy, "checks", records=check_set))
    assert main(["toy", "check"]) == 2
    assert "p0_a.npy: has no axis" in capsys.readouterr().out


def test_check_names_a_record_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy

    def decode(self: Any, record: Record) -> Any:
        raise BadInput(f"{record.key}: no image")

    monkeypatch.setattr(Toy, "decode", decode)
    assert main(["toy", "check", "--cache.workers", "1"]) == 2
    assert "error    p0_a: no image\n" in capsys.readouterr().out


@pytest.mark.torch
def test_what_records_leave_out_is_shown_by_check_training_and_predict(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The project needs no check of its own for it; each line is shown once, although `inputs` calls `records`."""
    from toy_project import Toy

    find = Toy.records

    def records(self: Any, root: Any) -> Sequence[Record]:
        leave_out("x.tif left out: no mask")
        leave_out("1 of 7 files has no known name", "warning")
        return find(self, root)

    monkeypatch.setattr(Toy, "records", records)
    assert main(["toy", "phantom", "data"]) == 0
    assert "left out" not in capsys.readouterr().out
    assert main(["toy", "check", "--data", "data", "--out", "audit"]) == 0
    said = capsys.readouterr().out
    assert said.count("note     x.tif left out: no mask\nwarning  1 of 7 files has no known name\n") == 1
    assert said.count("x.tif") == 1
    found = json.loads((here / "audit" / "check.json").read_text())["findings"]
    assert {"record": None, "level": "note", "rule": LEFT_OUT, "message": "x.tif left out: no mask"} in found
    words = ["--data", "data", "--train.epochs", "1", "--train.steps-per-epoch", "2", "--health.mode", "off"]
    assert main(["toy", "train", *words, "--cache.workers", "1", "--run-dir", "run"]) == 0
    said = capsys.readouterr().out
    assert said.count("NOTE: x.tif left out: no mask\n") == 1
    assert said.count("WARNING: 1 of 7 files has no known name\n") == 1
    assert main(["toy", "predict", "run", "data", "--out", "out"]) == 0
    said = capsys.readouterr().out
    assert said.count("note: x.tif left out: no mask\nnote: 1 of 7 files has no known name\n") == 1
    assert said.count("x.tif") == 1
    assert main(["toy", "evaluate", "run"]) == 0
    assert "x.tif" not in capsys.readouterr().out


def test_a_block_keeps_what_is_left_out_in_it() -> None:
    leave_out("nobody listens")
    with collect_left_out() as outer:
        leave_out("a")
        with collect_left_out() as inner:
            leave_out("b")
        leave_out("c")
    assert [finding.message for finding in outer] == ["a", "c"]
    assert [finding.message for finding in inner] == ["b"]
