"""Which records validate: how many of them are used, what is said of it, and that a run keeps its split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner_core.cli import main

SHORT = ["toy", "train", "--run-dir", "run", "--train.epochs", "1", "--train.steps-per-epoch", "2"]


def summary(here: Path) -> Any:
    return json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.torch
def test_validations_and_the_final_scores_use_the_records_asked_for_and_evaluate_takes_all(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, "--data.validation-fraction", "0.4", "--validate.records", "2"]) == 0
    said = capsys.readouterr().out
    assert "validation: 4 records of 2 groups: " in said
    assert "validations and the final scores use 2 records of these 4 (validate.records); `evaluate` takes all" in said
    assert "scoring 2 validation records" in said
    assert summary(here)["split"] == {
        "train": {"records": 6, "groups": 3, "share": 0.6, "used": 6},
        "validation": {"records": 4, "groups": 2, "share": 0.4, "used": 2},
    }
    assert "2 of 4 validation records" in (here / "run" / "report.html").read_text(encoding="utf-8")
    start = json.loads((here / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert start["samples"]["train"] == 3 * start["samples"]["validation"]
    scored = json.loads((here / "run" / "scores.json").read_text(encoding="utf-8"))["records"]
    assert len({row["group"] for row in scored}) == 2, "one of each group"
    assert len(yaml.safe_load((here / "run" / "split.yaml").read_text(encoding="utf-8"))["validation"]) == 4 + 2

    assert main(["toy", "evaluate", "run", "--out", "all"]) == 0
    assert len(json.loads((here / "all" / "scores.json").read_text(encoding="utf-8"))["records"]) == 4

    resume = ["toy", "train", "--resume", "run"]
    assert main([*resume, "--validate.records", "3"]) == 2
    assert "validate.records: 2 in the run, 3 now" in capsys.readouterr().err
    assert main(resume) == 0


@pytest.mark.torch
def test_a_run_that_goes_on_keeps_its_split(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule of another version may choose other groups: the run is neither refused nor changed."""
    assert main(SHORT) == 0
    kept = (here / "run" / "split.yaml").read_bytes()
    monkeypatch.setattr("runner_core.data.splits.nearest_share", lambda sizes, wanted, round_up: [len(sizes) - 1])
    capsys.readouterr()
    assert main(["toy", "check"]) == 0
    other = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("validation: "))
    assert main(["toy", "train", "--resume", "run"]) == 0
    said = capsys.readouterr().out
    assert "validation: 2 records" in said
    assert other not in said
    assert (here / "run" / "split.yaml").read_bytes() == kept


@pytest.mark.torch
@pytest.mark.parametrize(
    "asked, share",
    [("0.2", "(20% of the records)"), ("0.05", "(20% of the records; data.validation_fraction asks for 5%")],
)
def test_check_says_which_share_validates(
    asked: str, share: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "check", "--data.validation-fraction", asked]) == 0
    assert share in capsys.readouterr().out
    assert main(["toy", "check", "--data.split", "group:p1"]) == 0
    assert "validation: 2 records of 1 group: p1 (20% of the records)" in capsys.readouterr().out
