"""The report: one file, complete without network, whatever the run came to."""

from __future__ import annotations

import base64
import json
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core.api.run import Run
from runner_core.output.pictures import write_png
from runner_core.output.report import render, write_report
from runner_core.output.report.charts import Series, line_chart, nice_ticks, share_bar, thin
from runner_core.output.runfolder import RunFolder

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Checks that tags nest, and collects text and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += "" if self.open[-1:] == ["script"] else data


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(None, "toy", tmp_path / "run")
    run.config_file.write_text("project: toy\ntrain:\n  epochs: 3\n", encoding="utf-8")
    return run


def finished(run: RunFolder) -> None:
    """A run with everything a report can show, names in need of escaping included."""
    events: list[dict[str, Any]] = []
    for step in range(1, 1001):
        timing = {"data_wait": 0.1, "compute": 0.8, "other": 0.1}
        events.append({"event": "train", "step": step, "epoch": 0, "loss": 1 / step, "timing": timing})
    events.append({"event": "validation", "step": 1000, "epoch": 1, "loss": 0.5, "a<b": 0.9})
    events.append(
        {"event": "health", "step": 7, "level": "warning", "rule": "r", "message": "<script>alert(1)</script>"}
    )
    run.jsonl.write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")
    write_png(run.figures / "001-x.png", np.zeros((4, 4, 3), np.uint8))
    row = {"record": "<i>r1</i>", "group": "g", "scores": {"dice": 0.91, "hd95": None}, "baseline": {"dice": 0.5}}
    scores = {"means": {"dice": 0.91, "hd95": None}, "baseline": {"dice": 0.5}, "records": [row], "errors": []}
    (run.path / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    run.write_summary(
        {
            **{"project": "toy", "preset": "demo", "data": "phantom", "status": "done", "reason": None},
            **{"epochs": 1, "steps": 1000, "metrics": {"a<b": 0.9}, "best_step": 1000, "wall_seconds": 75.0},
            **{
                "samples_per_second": 1234.0,
                "data_wait_share": 0.1,
                "scores": {"dice": 0.91},
                "baseline": {"dice": 0.5},
            },
            **{
                "peak_memory_bytes": {"host": 1.5e9, "device": 2e9},
                "health": [],
                "versions": {"plugins": {"core": "1"}},
            },
        }
    )


def test_a_finished_run_is_shown_whole(folder: RunFolder) -> None:
    finished(folder)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    for part in (
        "toy",
        "done",
        "0.91",
        "trivial baseline 0.5",
        "<i>r1</i>",
        "whole set",
        "1,234",
        "10.0% waiting",
        "1:15",
        "epochs: 3",
    ):
        assert part in page.words, part
    assert "plugin: core" in page.words


def test_the_last_gradient_norms_are_a_table(folder: RunFolder) -> None:
    finished(folder)
    assert 'id="losses"' not in render(folder)
    for step, norm in ((50, 0.5), (1000, None)):
        line = {"event": "losses", "step": step, "epoch": 0, "gradient_norm": {"b<ce": 0.125, "dice": norm}}
        with folder.jsonl.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    assert "up to step 1,000lossgradient normb<ce0.125dice–" in Page(render(folder)).words


def test_a_run_that_is_done_with_warnings_is_not_shown_as_all_well(folder: RunFolder) -> None:
    finished(folder)
    assert '<span class="status done">done</span>' in render(folder)
    found = [{"rule": "r", "level": level, "message": "m"} for level in ("note", "warning")]
    folder.write_summary(folder.read_summary() | {"health": found})
    assert '<span class="status warned">done, 1 warning</span>' in render(folder)
    folder.write_summary(folder.read_summary() | {"scoring_errors": ["r1: cannot be read"]})
    assert '<span class="status warned">done, 2 warnings</span>' in render(folder)
    assert "<b>not scored</b> r1: cannot be read" in render(folder)


def test_what_the_badge_counts_is_listed_under_health(folder: RunFolder) -> None:
    finished(folder)
    told = {"health": [], "scoring_errors": ["<r1>: cannot be read"] * 31, "unsaved": "the disk is full"}
    folder.jsonl.write_text("", encoding="utf-8")
    folder.write_summary(folder.read_summary() | told)
    health = render(folder).partition("<h2>Health</h2>")[2].partition("</section>")[0]
    assert "No finding" not in health
    assert health.count("<b>not scored</b> &lt;r1&gt;: cannot be read") == 30
    assert "2 more in summary.json" in health
    folder.write_summary(folder.read_summary() | {"scoring_errors": []})
    assert "<b>the end is not saved</b> the disk is full" in render(folder)


def test_the_dashed_line_is_explained(folder: RunFolder) -> None:
    finished(folder)
    text = render(folder)
    assert "<title>best checkpoint, step 1000</title>" in text
    assert "Dashed: step 1,000, of the best checkpoint." in text


def test_nothing_is_fetched_from_anywhere(folder: RunFolder) -> None:
    finished(folder)
    text = render(folder)
    assert all(a.startswith("data:") for a in Page(text).addresses)
    assert not re.search(r"https?://|@import|url\(|<script[^>]|<link|XMLHttpRequest|\bimport\b", text)
    assert set(re.findall(r"\bfetch\([^)]*", text)) == {"fetch(location.href"}, "of `runner watch`: the page itself"


def test_what_the_run_says_is_text_and_never_markup(folder: RunFolder) -> None:
    finished(folder)
    text = render(folder)
    assert text.count("<script") == 1, "the page's own"
    assert "&lt;script&gt;" in text


def test_tables_remarks_and_later_evaluations_are_shown(folder: RunFolder) -> None:
    finished(folder)
    elsewhere = folder.path / "evaluation-test"
    elsewhere.mkdir()
    remark = {"rule": "empty", "level": "warning", "message": "<b>nothing</b> found"}
    row = {"record": "r2", "group": "g", "scores": {"dice": 0.25, "hidden": 0.125}, "baseline": {}}
    table = {
        "name": "sides",
        "title": "By side",
        "columns": ["side", "dice"],
        "rows": [["<left", 0.5], ["right", None]],
    }
    content = {"means": {"dice": 0.25, "hidden": 0.125}, "baseline": {}, "records": [{**row, "remarks": [remark]}]}
    content |= {"errors": ["r3.npy: cut short"], "shown": ["dice"], "tables": [table]}
    (elsewhere / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    write_png(elsewhere / "001-r2.png", np.zeros((4, 4, 3), np.uint8))
    words = Page(render(folder)).words
    for part in (
        "evaluation-test",
        "r2",
        "0.25",
        "By side",
        "<left",
        "<b>nothing</b> found",
        "r3.npy: cut short",
        "001-r2",
    ):
        assert part in words, part
    assert "hidden" not in words


def test_an_evaluation_says_which_records_were_trained_on(folder: RunFolder) -> None:
    """A score on what was trained on must not be read as one on new data."""
    finished(folder)
    (folder.path / "evaluation-mine").mkdir()
    rows = [{"record": name, "group": "g", "scores": {"dice": 0.5}, "baseline": {}} for name in ("a", "b", "c")]

    def page(*trained_on: bool) -> str:
        marked = [{**row, "trained_on": seen} for row, seen in zip(rows, trained_on, strict=True)]
        content = {"means": {"dice": 0.5}, "baseline": {}, "records": marked, "errors": [], "tables": []}
        (folder.path / "evaluation-mine" / "scores.json").write_text(json.dumps(content), encoding="utf-8")
        return render(folder)

    shown = page(True, False, True)
    assert "2 of these 3 records (or others of their groups) were trained on</p>" in shown
    assert "<th>dice</th><th>trained on</th>" in shown
    for name, seen in (("a", "yes"), ("b", "no"), ("c", "yes")):
        assert f"<th>{name}</th><td>0.5</td><td>{seen}</td>" in shown
    assert "trained on" not in page(False, False, False)


def test_one_epoch_is_one_epoch(folder: RunFolder) -> None:
    for epochs, steps, said in ((1, 1, "1epoch (1 step)"), (2, 1200, "2epochs (1,200 steps)")):
        folder.write_summary({"project": "toy", "status": "done", "epochs": epochs, "steps": steps})
        assert said in Page(render(folder)).words


def test_a_run_that_has_only_begun_has_a_report(folder: RunFolder) -> None:
    page = Page(render(folder))
    assert "running" in page.words


@pytest.mark.parametrize("status", ["unhealthy", "failed", "stopped"])
def test_a_run_that_ended_badly_says_why(folder: RunFolder, status: str) -> None:
    folder.write_summary({"project": "toy", "status": status, "reason": "loss was NaN"})
    assert "loss was NaN" in Page(render(folder)).words


points = st.lists(
    st.tuples(st.integers(0, 10**7), st.floats(-1e12, 1e12).filter(lambda v: v == 0 or abs(v) > 1e-12)),
    min_size=1,
    max_size=50,
)


@given(points)
def test_every_curve_is_a_well_formed_chart_inside_its_frame(values: list[tuple[float, float]]) -> None:
    svg = ET.fromstring(line_chart("loss <&>", [Series("training", "a", values)], mark=3))
    places = [p.split(",") for p in svg.find("polyline").get("points").split()]  # type: ignore[union-attr]
    assert all(-1 <= float(x) <= 481 and -1 <= float(y) <= 241 for x, y in places)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]) -> None:
    before = list(enumerate(values))
    after = thin(before)
    assert len(after) <= 402
    assert set(after) <= set(before)
    assert {min(values), max(values)} <= {y for _, y in after}
    assert [x for x, _ in after] == sorted(x for x, _ in after)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_lie_inside_and_are_few(low: float, span: float) -> None:
    if low + span > low * (1 + 1e-9):
        ticks = nice_ticks(low, low + span)
        slack = 1e-6 * max(span, abs(low))
        assert all(low - slack <= t <= low + span + slack for t in ticks)
        assert len(ticks) <= 7


def test_the_shares_fill_the_bar() -> None:
    text = share_bar({"compute": 3.0, "waiting": 1.0, "other": 0.0})
    widths = [float(w) for w in re.findall(r'width="([\d.]+)%" height="22"/>', text)]
    assert sum(widths) == pytest.approx(100)
    assert "compute: 3.0 s (75.0%)" in text


def test_only_the_runs_own_pictures_are_in_the_page(tmp_path: Path, folder: RunFolder) -> None:
    own, other = b"drawn by this run", b"somebody's key"
    (tmp_path / "away").mkdir()
    for outside in (tmp_path / "key-00000012.png", tmp_path / "away/key.png"):
        outside.write_bytes(other)
    (folder.figures / "own.png").write_bytes(own)
    (folder.figures / "own-00000012.png").write_bytes(own)
    (folder.figures / "a.png").symlink_to(tmp_path / "key-00000012.png")
    (folder.figures / "b-00000012.png").symlink_to(tmp_path / "key-00000012.png")
    (folder.figures / "away").symlink_to(tmp_path / "away")
    os.mkfifo(folder.figures / "pipe.png")
    (folder.path / "evaluation-x").symlink_to(tmp_path / "away")
    (tmp_path / "away/scores.json").write_text("{}")
    files = ["../../key-00000012.png", str(tmp_path / "key-00000012.png"), "b-00000012.png", "own-00000012.png"]
    events = [{"event": "figure", "step": 12, "name": f"n{n}", "file": file} for n, file in enumerate(files)]
    folder.jsonl.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    (tmp_path / "link").symlink_to(folder.path)
    for path in (folder.path, tmp_path / "link"):
        page = render(RunFolder(path))
        assert base64.b64encode(other).decode() not in page
        assert page.count(base64.b64encode(own).decode()) == 2
    assert [path.name for path in Run(folder.path).figures] == ["own-00000012.png", "own.png"]
