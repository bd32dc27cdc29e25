"""Evaluations of one run: a folder for each data, split and settings; and what was trained on, told by content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import Record
from runner_core.cli import main
from runner_core.training.seen import seen

pytestmark = pytest.mark.torch


@pytest.fixture
def run(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A trained run, its phantom written out as `data`, and the same with other values as `other`."""
    assert main(["toy", "phantom", "data"]) == 0
    shutil.copytree("data", "other")
    for file in Path("other").glob("*.npy"):
        if not file.stem.endswith("_mask"):
            np.save(file, np.load(file) * np.float32(0.97))
    capsys.readouterr()
    return shutil.copytree(trained, here / "run")


def evaluations(run: Path) -> list[tuple[Path, Any]]:
    found = sorted(run.glob("evaluation-*"))
    return [(folder, json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))) for folder in found]


def test_each_data_and_split_has_a_folder_and_the_report_shows_them_apart(run: Path) -> None:
    for words in (["--data", "data"], ["--data", "other"], ["--split", "all"], ["--data", "other", "--split", "train"]):
        assert main(["toy", "evaluate", "run", *words]) == 0
    found = evaluations(run)
    assert [(Path(f["data"]).name, f["split"], f["records"]) for _, f in found] == [
        ("data", "all", 10), ("other", "all", 10), ("phantom", "all", 10), ("other", "train", 8)
    ]  # fmt: skip
    assert all(folder.name.startswith(f"evaluation-{f['split']}-{Path(f['data']).name}-20") for folder, f in found)
    assert len({f["content"] for _, f in found}) == 3, "data is the phantom written out"
    page = (run / "report.html").read_text(encoding="utf-8")
    for folder, f in found:
        assert f"Evaluation: {f['split']} of {f['data']}, {f['date']}" in page
        assert f"with {f['checkpoint']}, in {folder.name}" in page
        assert {p.name for p in folder.iterdir()} == set(f["files"])
    scores = [json.loads((folder / "scores.json").read_text(encoding="utf-8"))["means"] for folder, _ in found]
    assert scores[0] == scores[2] != scores[1]


def test_the_same_evaluation_again_replaces_the_first_and_nothing_else(run: Path) -> None:
    assert main(["toy", "evaluate", "run"]) == 0
    (first,) = run.glob("evaluation-*")
    (first / "mine.txt").write_text("notes", encoding="utf-8")
    assert main(["toy", "evaluate", "run"]) == 0
    assert [p.name for p in first.iterdir()] == ["mine.txt"]
    shutil.rmtree(first)
    assert len(evaluations(run)) == 1
    assert main(["toy", "evaluate", "run", "--precision.mode", "bfloat16"]) == 0
    (_, own), (_, other) = sorted(evaluations(run), key=lambda entry: len(entry[1]["settings"]))
    assert (own["settings"], other["settings"]) == ({}, {"precision.mode": {"run": "auto", "evaluation": "bfloat16"}})
    assert (
        "Settings unlike the run&#x27;s: precision.mode bfloat16 (the run: auto)" in (run / "report.html").read_text()
    )


def test_an_evaluation_that_fails_or_is_stopped_leaves_the_one_before(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "evaluate", "run"]) == 0
    before = sorted(run.iterdir())

    def stopped(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner_core.cli.evaluate.draw_figures", stopped)
    assert main(["toy", "evaluate", "run"]) == 130
    assert sorted(run.iterdir()) == before


def test_a_folder_with_something_in_it_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "evaluate", "run", "--out", "data"]) == 2
    assert "data: the folder is not empty; name another one with --out" in capsys.readouterr().err
    assert main(["toy", "evaluate", "run", "--out", "scores"]) == 0
    assert json.loads(Path("scores/evaluation.json").read_text(encoding="utf-8"))["data"] == "phantom"
    assert not [*run.glob("evaluation-*")]


def test_trained_on_is_told_by_content(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(data: str) -> str:
        assert main(["toy", "evaluate", "run", "--data", data]) == 0
        return capsys.readouterr().out

    shown = said("data")
    assert "8 of these 10 records (or others of their groups) were trained on" in shown
    assert [line.split("  ")[0] for line in shown.splitlines() if line.startswith(("whole set", "not trained on"))] == [
        "whole set",
        "not trained on",
        "not trained on: baseline",
    ]
    page = (run / "report.html").read_text()
    assert "8 of these 10 records (or others of their groups) were trained on</p>" in page
    (scored,) = [
        found for path in run.glob("evaluation-all-data-*/scores.json") for found in [json.loads(path.read_text())]
    ]
    fresh = [row["scores"]["error"] for row in scored["records"] if not row["trained_on"]]
    assert len(fresh) == 2
    assert scored["unseen"]["means"]["error"] == pytest.approx(sum(fresh) / 2)
    assert scored["means"]["error"] != pytest.approx(sum(fresh) / 2)
    assert "<th>not trained on</th>" in page
    found = said("other")
    assert "trained on\n" not in found.replace(", not counted as trained on\n", "")
    assert "names of training records or of their groups stand for other contents in this data: 8 records" in found

    trained = json.loads((run / "contents.json").read_text(encoding="utf-8"))["train"]
    key = sorted(trained)[0]
    for end in ("", "_mask"):  # under another name, beside another record of that group
        shutil.copy(f"data/{key}{end}.npy", f"other/new_a{end}.npy")
        shutil.copy(f"other/p0_a{end}.npy", f"other/new_b{end}.npy")
    found = said("other")
    assert "scans that were trained on have other names in this data: 1 record (new_a)" in found
    assert "2 of these 12 records (or others of their groups) were trained on" in found

    (run / "contents.json").unlink()  # a run of an older runner
    found = said("other")
    assert "recognised by their names" in found
    assert "8 of these 12 records" in found
    (run / "contents.json").write_text('{"train": [1]}', encoding="utf-8")
    assert main(["toy", "evaluate", "run"]) == 2
    assert "contents.json is damaged" in capsys.readouterr().err


def test_a_training_record_of_unknown_content_is_told_by_its_name() -> None:
    records = [Record("a", "g1", {}), Record("b", "g2", {})]
    found = seen({"train": ["a", "g1", "b", "g2"]}, {"a": "1"}, records, ["x", "y"], own=False)
    assert [found(record) for record in records] == [False, True]


def test_a_changed_list_of_files_is_one_message(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "evaluate", "run"]) == 0
    ((folder, found),) = evaluations(run)
    (folder / "evaluation.json").write_text(json.dumps(found | {"files": 5}), encoding="utf-8")
    assert main(["toy", "evaluate", "run"]) == 2
    assert "evaluation.json is damaged" in capsys.readouterr().err
