"""`runner compare`: where runs differ, whatever is left of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner_core.cli import main
from runner_core.output.report.charts import COLOURS
from runner_core.output.runfolder import RunFolder
from runner_core.tools.runs import _by_content

Said = Callable[..., str]


def written(folder: Path, *, project: str = "toy", summary: Any = None, sides: Any = None, **settings: Any) -> Path:
    """A run's folder: two train lines and a validation, and a summary unless it is False."""
    run = RunFolder.create(None, project, folder)
    train = {"epochs": 3, "batch_size": 8, "learning_rate": 0.1, **settings}
    head = {"project": project, "preset": "demo", "source": "phantom", "plugins": {"core": "1"}}
    run.config_file.write_text(yaml.safe_dump({**head, "train": train, "model": {"filters": [4, 8]}}))
    timing = {"seconds": 2.0, "data_wait": 0.5, "samples_per_second": 40.0}
    lines: list[dict[str, Any]] = [
        {"event": "train", "step": 5, "loss": 0.5, "learning_rate": 0.1, "timing": timing},
        {"event": "validation", "step": 10, "loss": 0.3, "dice": 0.7, "best": True, "timing": {"seconds": 1.0}},
        {"event": "train", "step": 10, "loss": 0.25, "learning_rate": 0.05, "timing": timing},
    ]
    run.jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if sides is not None:
        (folder / "split.yaml").write_text(yaml.safe_dump(sides))
    if summary is not False:
        done = {
            **{"status": "done", "steps": 10, "metrics": {"dice": 0.7}, "best_step": 10, "samples_per_second": 40.0},
            **{"wall_seconds": 75.0, "peak_memory_bytes": {"host": 2e9, "device": 0}, "device": {"name": "one"}},
            **{"versions": {"torch": "2.10", "plugins": {"core": "1"}}, "health": []},
        }
        run.write_summary(done | (summary or {}))
    return folder


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Return the output of `runner compare` for these runs, in single spaces; its result is in the folder `out`."""
    monkeypatch.chdir(tmp_path)

    def compare(*runs: Path, code: int = 0) -> str:
        assert main(["compare", *map(str, runs), "--out", "out"]) == code
        captured = capsys.readouterr()
        return re.sub(" +", " ", captured.err if code else captured.out)

    return compare


def test_what_differs_is_shown_and_what_does_not_is_not(said: Said, tmp_path: Path) -> None:
    one = written(tmp_path / "one")
    other = written(
        *(tmp_path / "other",),
        batch_size=16,
        ema=0.9,
        summary={
            "samples_per_second": 60.0,
            "metrics": {"dice": 0.75},
            "scores": {"iou": 0.5},
            "baseline": {"iou": 0.1},
        },
    )
    text = said(one, other)
    assert f"run 1 {one} done, 10 steps\n run 2 {other} done, 10 steps" in text
    assert "train.batch_size 8 16\n" in text
    assert "train.ema – 0.9\n" in text
    assert "learning_rate" not in text
    assert "filters" not in text
    assert "what else differs" not in text
    assert "dice 0.7000 0.7500\n" in text
    assert "iou – 0.5000\n trivial baseline, iou – 0.1000" in text
    assert "samples/s 40 60\n times run 1 1.00 1.50\n seconds a step 0.4 0.4\n waiting for data 25.0% 25.0%" in text
    assert "wall time 1:15 1:15\n peak host memory 2.0 GB 2.0 GB\n" in text
    assert "device memory" not in text
    assert "NOTE" not in text
    facts = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert facts["settings"] == {"train.batch_size": [8, 16], "train.ema": ["–", 0.9]}
    assert facts["speed"]["samples/s"] == [40.0, 60.0]


def test_a_killed_run_with_a_torn_log_is_compared(said: Said, tmp_path: Path) -> None:
    one, killed = written(tmp_path / "one"), written(tmp_path / "killed", summary=False)
    with (killed / "log.jsonl").open("ab") as log:
        log.write('{"event": "train", "step": 15, "loss": 0.1, "§'.encode()[:-1])
    text = said(one, killed)
    assert f"run 2 {killed} 10 steps so far: it is running, or was killed" in text
    assert "NOTE: run 2 is not done" in text
    assert "dice 0.7000 0.7000\n" in text, "of the log's best validation"
    assert "step of it 10 10" in text
    assert "samples/s 40 40\n" in text
    assert "wall time 1:15 –" in text


def test_a_run_that_never_logged_is_compared(said: Said, tmp_path: Path) -> None:
    one, empty = written(tmp_path / "one"), written(tmp_path / "empty", summary=False)
    (empty / "log.jsonl").unlink()
    text = said(one, empty)
    assert "0 steps so far" in text
    assert "samples/s 40 –\n" in text


def test_what_is_no_fair_comparison_is_said(said: Said, tmp_path: Path) -> None:
    sides = [{"train": ["a", "b"], "validation": ["c"]}, {"train": ["a", "c"], "validation": ["b"]}]
    stopped = {
        "status": "stopped",
        "reason": "stopped by SIGINT",
        "device": {"name": "two"},
        "versions": {"torch": "3"},
    }
    one = written(tmp_path / "one", sides=sides[0])
    text = said(one, written(tmp_path / "other", sides=sides[1], summary=stopped))
    assert "NOTE: run 2 is not done: stopped by SIGINT" in text
    assert "NOTE: the runs were not validated on the same records" in text
    assert "NOTE: the runs were on different devices (one, two)" in text
    assert "what else differs\n run 1 run 2\n version of torch 2.10 3\n" in text


def test_the_page_has_every_run_in_every_curve(said: Said, tmp_path: Path) -> None:
    runs = [written(tmp_path / f"<run {number}>") for number in range(3)]
    said(*runs)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;run 2&gt;" in page
    assert "<run" not in page
    charts = re.findall(r'<svg class="chart".*?</svg>', page)
    titles = {re.search('aria-label="([^"]*)"', chart)[1] for chart in charts}  # type: ignore[index]
    wanted = {"loss, train", "learning_rate, train", "samples/s", "loss, validation", "dice, validation"}
    assert titles == wanted
    for chart in charts:
        assert [kind in re.findall('<polyline class="(.)"', chart) for kind in COLOURS[:3]] == [True] * 3
    assert "http" not in page.replace("http://www.w3.org", "")
    style = page.partition("<style>")[2].partition("</style>")[0]
    for kind in COLOURS:
        for shape in ("polyline", "circle", "svg text", "i"):
            assert f"{shape}.{kind} {{" in style or f"{shape}.{kind}," in style, "a line without a colour"


def test_runs_are_found_by_what_is_in_them(said: Said, tmp_path: Path) -> None:
    one, other = written(tmp_path / "one"), written(tmp_path / "other")
    assert "run 2" in said(one / "checkpoints", other / "config.yaml")


def test_what_cannot_be_compared_is_refused(said: Said, tmp_path: Path) -> None:
    one, other = written(tmp_path / "one"), written(tmp_path / "other", project="brainunet")
    assert f"{one} is a run of toy, {other} one of brainunet" in said(one, other, code=2)
    assert "name two runs at least" in said(one, code=2)
    assert "is named twice" in said(one, tmp_path / "one" / "checkpoints", code=2)
    assert "there is no such run folder" in said(one, tmp_path / "missing", code=2)
    damaged = written(tmp_path / "damaged")
    (damaged / "summary.json").write_text("{")
    assert f"{damaged / 'summary.json'} is damaged" in said(one, damaged, code=2)
    assert not (tmp_path / "out").exists()


def test_the_default_folder_is_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [written(tmp_path / "runs" / "toy" / name) for name in ("one", "two")]
    assert main(["compare", *map(str, runs)]) == 0
    (folder,) = (tmp_path / "runs" / "toy").glob("compare-*")
    assert {path.name for path in folder.iterdir()} == {"compare.json", "report.html"}
    assert RunFolder.latest("toy").path.name in ("one", "two")


def test_a_full_folder_is_refused_before_anything_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [written(tmp_path / name) for name in ("one", "other")]
    assert main(["compare", *map(str, runs), "--out", "one"]) == 2
    said = capsys.readouterr()
    assert said.err == "runner: one: the folder is not empty; name another one with --out\n"
    assert not said.out


def test_equal_splits_of_two_repetitions_are_no_difference(tmp_path: Path) -> None:
    for name, text in (("a", "train: [p1]"), ("b", "train: [p1]"), ("c", "train: [p2]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "split.yaml").write_text(text, encoding="utf-8")
    a, b, c = (_by_content({"data.split": str(tmp_path / n / "split.yaml"), "x": 1}, tmp_path / n) for n in "abc")
    assert a == b
    assert a != c
    others = {"data.split": str(tmp_path / "a" / "split.yaml")}
    assert _by_content(others, tmp_path / "b") == others
    assert _by_content({"data.split": None}, tmp_path) == {"data.split": None}
