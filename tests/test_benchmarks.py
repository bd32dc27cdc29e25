"""The benchmarks' statistics, their page, and that each of them works."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from workspace import ROOT

sys.path.append(str(ROOT))  # the benchmarks are no package that one installs
sys.path.insert(0, str(ROOT / "packages" / "core" / "tests" / "pretend"))
import pretend
from runner_core.cli import main

from benchmarks import NAMES, wrong_labels
from benchmarks.harness import Aim, Options, Result, Table, Times, Turns, at_least, compared, number
from benchmarks.page import PAGE, RESULTS, keep, page, section, table
from benchmarks.verdict import EVERY, SCORES, SOURCES


def times(*seconds):
    taken = Times()
    taken.by_turn = dict(enumerate(seconds))
    return taken


def test_turns_change_who_begins_and_leave_out_who_is_missing():
    seen = []

    def way(name):
        return lambda item: seen.append((name, item))

    def missing():
        raise ImportError("no such library")

    def late():
        def way(item):
            raise ImportError("found out when asked")

        return way

    turns = Turns(4, warmup=1)
    turns.add("a", lambda: way("a"))
    turns.add("b", lambda: way("b"), every=2)
    turns.add("gone", missing)
    turns.add("late", late)
    turns.add("own", lambda: lambda item: 7.0 + item, own_clock=True)
    found = turns.run(lambda turn: 10 * turn)
    assert turns.left_out == {"gone": "no such library", "late": "found out when asked"}
    assert seen == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 10), ("a", 20), ("b", 20), ("a", 30)]
    assert {name: sorted(t.by_turn) for name, t in found.items()} == {
        "a": [0, 1, 2, 3],
        "b": [0, 2],
        "own": [0, 1, 2, 3],
    }
    assert found["own"].by_turn[3] == 37.0


def test_medians_quartiles_and_paired_differences():
    taken = times(5, 1, 2, 4, 3)
    assert taken.median == 3
    assert taken.quartiles == (2, 4)
    assert times(8).quartiles == (8, 8)
    sparse = Times()
    sparse.by_turn = {0: 6.0, 2: 2.5, 4: 100.0}
    assert sparse.above(taken) == 1.0  # of 1, 0.5 and 97: an outlier moves nothing


def test_ratios_say_how_many_times_as_fast():
    both = {"slow": times(0.02, 0.02), "runner": times(0.004, 0.006)}
    shown = compared(both, "slow", rate=("samples", 10))
    assert shown.columns == ["", "ms (median)", "quartiles", "samples a second", "speed, slow = 1"]
    assert shown.rows[0] == ["runner", 5.0, "4.5 – 5.5", 2000.0, 4.0]
    assert shown.rows[1][-1] == 1
    assert compared(both, "slow", "who").columns == ["who", "ms (median)", "quartiles", "speed, slow = 1"]
    assert at_least(both, "runner", "slow", 4) == [Aim("runner at least 4 times as fast as slow: 4", True)]
    assert not at_least(both, "runner", "slow", 4.5)[0].met
    assert at_least(both, "runner", "absent", 1) == []


def test_numbers_are_for_people():
    values = (None, "text", 7, 12345, 0.12345, 1234.5, 99.96, 0.5)
    assert [number(v) for v in values] == ["–", "text", "7", "12,345", "0.123", "1,234", "100", "0.5"]


def test_a_section_says_what_where_and_whether_the_aim_was_met(tmp_path):
    result = Result(
        "Title",
        "What it is.",
        [Table(["", "ms"], [["runner", 1.2345649], ["other", None]])],
        [Aim("quick", True), Aim("quicker", False)],
        ["A remark."],
        {"peer": "not installed"},
        ("numpy", "no-such-package"),
    )
    there = {
        "cpu": "A CPU",
        "cores": 2,
        "ram_gb": 8,
        "gpu": "none",
        "python": "3.11.1",
        "load": 0.5,
        "date": "2030-01-02",
    }
    keep("cache", result, there, there | {"load": 1.5}, tmp_path)
    kept = json.loads((tmp_path / "cache.json").read_text())
    assert kept["tables"][0]["rows"][0][1] == 1.23456
    text = section("cache", kept)
    said = " ".join(text.split())
    for part in ("## Title", "python -m benchmarks cache`", "| **runner** | **1.23** |", "| other | – |",
                 "- Aim: quick – **met**.", "- Aim: quicker – **NOT met**.", "Left out: peer (not installed).",
                 "*Measured on 2030-01-02: A CPU, 2 cores, 8 GB, GPU: none; load 0.5 before, 1.5 after; Python 3.11.1,",
                 "numpy "):  # fmt: skip
        assert part in said
    assert "no-such-package" not in text
    whole = page(tmp_path)
    assert text in whole
    assert "No GPU was at hand" in whole


def test_an_empty_cell_is_not_bold():
    assert table(["a", "b"], [["runner", ""]]).splitlines()[-1] == "| **runner** |  |"


def test_the_page_is_what_the_results_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks --render`"
    assert {path.stem for path in RESULTS.glob("*.json")} <= {*NAMES, "gpu"}


@pytest.mark.parametrize("name", SOURCES)
def test_the_settings_of_the_verdict_s_trainings_are_there(name, capsys):
    words = ["--preset", "demo", *EVERY, *SOURCES[name].words.split()]
    assert main([SOURCES[name].project, "config", *words]) == 0, capsys.readouterr().err
    assert (SCORES / f"{name}.json").exists()


def test_projects_are_found_in_a_checkout_where_nothing_is_installed(monkeypatch):
    from benchmarks import gpucase

    monkeypatch.setattr(gpucase.discovery, "projects", dict)
    found = gpucase.find_projects()
    assert {"brainunet", "openkbp"} <= set(found)
    assert found["brainunet"].entry.load().runner_project().name == "brainunet"


def test_the_gpu_s_benchmark_goes_on_where_it_ended(tmp_path):
    gpu = importlib.import_module("benchmarks.gpu")
    file, asked = tmp_path / "cases.jsonl", []

    def measured(case):
        asked.append(case.name)
        return {"step": 0.5}

    first = gpu.Kept(file, ["a card", "cuda", False])
    assert first(gpu.Case("p", "one"), measured) == {"step": 0.5}
    assert first(gpu.Case("p", "two"), gpu._too_late) == gpu.LATE
    file.write_text(file.read_text() + '{"way": ["a card"')  # as a kill leaves it
    again = gpu.Kept(file, ["a card", "cuda", False])
    assert [again(gpu.Case("p", name), measured)["step"] for name in ("one", "two")] == [0.5, 0.5]
    assert asked == ["one", "two"]
    other = gpu.Kept(file, ["another card", "cuda", False])
    other(gpu.Case("p", "one"), measured)
    assert asked == ["one", "two", "one"]
    other.remove()
    assert not file.exists()


def test_a_gpu_s_share_of_the_limit_and_what_did_not_run():
    gpu = importlib.import_module("benchmarks.gpu")
    base = {"precision": "tf32", "batch": 4, "samples": [4, {}, "default"], "step": 0.5, "quartiles": [0.4, 0.6],
            "allocated": 2e9, "first_step": 1.0, "loader": 9.0}  # fmt: skip
    found = {
        gpu.Case("p", "preset"): base | {"flops": 2e12, "bytes": 1e11},
        gpu.Case("p", "compile"): base | {"step": 0.25},  # not counted itself: the same samples' operations
        gpu.Case("p", "large"): base | {"samples": [8, {}, "default"]},
        gpu.Case("p", "broken"): {"fault": "out of memory"},
        gpu.Case("p", "kernel"): {"table": {"microseconds": 3.0}},
    }
    limit = {"tf32 matrix product, TFLOP/s": 8.0, "copy, GB/s (read and written)": 1000.0}
    result = gpu.told(found, limit, {})
    steps = result.tables[0].rows
    assert [row[0] for row in steps] == ["p, preset", "p, compile", "p, large"]
    assert [row[-2:] for row in steps] == [["50 %", "20 %"], ["100 %", "40 %"], [None, None]]
    assert steps[0][1:8] == ["tf32", 4, 500.0, "400 – 600", 8.0, 2.0, None]
    assert result.left_out == {"p, broken": "out of memory"}
    assert result.tables[2].rows == [["p, kernel: microseconds", 3.0]]


def test_time_that_is_up_is_said(monkeypatch, tmp_path, capsys):
    """Cases that found no time are counted; a run in which none did fails."""
    gpu = importlib.import_module("benchmarks.gpu")
    monkeypatch.setattr(gpu, "in_a_process", lambda case, options, seconds: {})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--seconds", "0", "--out", str(tmp_path), "--device", "cpu"])
    assert gpu.main() == 1
    kept = json.loads((tmp_path / "gpu.json").read_text())
    (late,) = (case for case, reason in kept["left_out"].items() if reason == "no time was left")
    assert re.fullmatch(r"\d+ further cases", late)
    assert f"{late} (no time was left)" in " ".join((tmp_path / "gpu.md").read_text().split())


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(pretend.missing()), reason=pretend.missing())
def test_the_gpu_s_benchmark_on_the_pretended_accelerator(tmp_path):
    """Every case of `--quick`; Keras knows no other device, and says so."""
    words = ["--quick", "--device", "pretend", "--out", str(tmp_path), "--seconds", "800"]
    command = [sys.executable, "benchmarks/gpu.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    left_out = json.loads((tmp_path / "gpu.json").read_text())["left_out"]
    other = {name: why for name, why in left_out.items() if "No module named" not in why}
    assert other.keys() == {"openkbp, preset", "openkbp, float32"}
    assert all("train.device" in why for why in other.values())
    assert "peak memory" in (tmp_path / "gpu.md").read_text()


@pytest.mark.weekly
@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_works(name):
    before = {path: path.read_bytes() for path in (PAGE, *RESULTS.glob("*.json"))}
    command = [sys.executable, "-m", "benchmarks", name, "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| **runner" in done.stdout or "ours = 1" in done.stdout
    assert before == {path: path.read_bytes() for path in (PAGE, *RESULTS.glob("*.json"))}


def test_a_gpu_s_volumes_are_ones_that_vesuvius_trains_on(tmp_path, monkeypatch):
    """`--quick` takes the phantom in their place."""
    from runner_vesuvius.files import find_records

    gpu_vesuvius = importlib.import_module("benchmarks.gpu_vesuvius")
    monkeypatch.setattr(gpu_vesuvius, "SIDE", 40)
    gpu_vesuvius.DATA(tmp_path)
    records = find_records(tmp_path)
    assert sorted(record.group for record in records) == ["PHerc-A", "PHerc-A", "PHerc-B", "PHerc-B"]
    assert all(set(record.files) == {"image", "label"} for record in records)


def test_a_gpu_s_fields_are_ones_that_dinocell_trains_on(tmp_path, monkeypatch):
    from runner_dinocell.config import default
    from runner_dinocell.fields import decode
    from runner_dinocell.files import find_records

    gpu_dinocell = importlib.import_module("benchmarks.gpu_dinocell")
    assert default().data.window <= gpu_dinocell.SIDE
    monkeypatch.setattr(gpu_dinocell, "SIDE", 40)
    gpu_dinocell.DATA(tmp_path)
    records = find_records(tmp_path, default())
    assert {record.group for record in records} == {"source_1/Batch01/BR0101", "source_1/Batch02/BR0201"}
    assert len(records) == 16
    assert decode(records[0]).arrays["image"].shape == (3, 40, 40)


@pytest.mark.weekly
def test_the_gpu_s_script_works_on_a_cpu(tmp_path):
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert {row[0] for row in kept["tables"][0]["rows"]} >= {"ssmunet, preset", "brainunet, preset", "openkbp, preset"}
    assert any("scan, bfloat16" in row[0] for row in kept["tables"][2]["rows"])
    assert not kept["left_out"]


@pytest.mark.weekly
def test_a_case_brings_data_of_its_own(tmp_path):
    from benchmarks import gpucase

    case = next(c for c in importlib.import_module("benchmarks.gpu_ssmunet").CASES if c.data is not None)
    values = gpucase.measure(case, "cpu", tmp_path, 0.1, quick=True)
    assert values["step"] > 0
    assert len(list(tmp_path.rglob("core_*.npz"))) == 4
    assert not list(tmp_path.rglob("phantoms"))


def test_options_know_where_real_data_are(tmp_path):
    (tmp_path / "brainunet").mkdir()
    assert Options(data=tmp_path).folder("brainunet") == tmp_path / "brainunet"
    assert Options(data=tmp_path).folder("openkbp") is None
    assert Options().folder("brainunet") is None


def test_wrong_labels_are_seeded_where_the_project_would_read_them():
    """A fault changes what is labelled; what is not stays so, and a dose is known at the same places."""
    rng = np.random.default_rng(0)
    masks = {name: (rng.integers(-1, 2, (9, 8, 7)), rng.integers(-1, 2, (9, 8, 7))) for name in wrong_labels.MASKS}
    for name, (label, other) in masks.items():
        wrong = wrong_labels.seeded(wrong_labels.MASKS[name], np.zeros((1, 9, 8, 7)), label, other)
        assert wrong.shape == label.shape
        assert not np.array_equal(wrong, label), name
        assert set(np.unique(wrong)) <= {-1, 0, 1}
    dose, other = 70 * rng.random((2, 9, 8, 7))
    dose[:, :2], other[:, -2:] = np.nan, np.nan
    for name, change in wrong_labels.DOSES.items():
        wrong = wrong_labels.seeded(change, dose[None], dose, other)
        assert np.array_equal(np.isnan(wrong), np.isnan(dose)), name
        assert not np.array_equal(np.nan_to_num(wrong), np.nan_to_num(dose)), name
    tissue = rng.integers(0, 4, (12, 12))
    soft = np.ones((4, 12, 12))
    soft[:, :3] = 0
    for name, change in wrong_labels.TISSUES.items():
        wrong = wrong_labels.seeded(change, soft, tissue, tissue.T)
        assert (wrong[:3] == -1).all(), name
        assert (wrong[3:] != tissue[3:]).any(), name
    wells = {("p", f"{n}"): "ab"[n % 2] for n in range(4)} | {("q", f"{n}"): "ab"[n // 2] for n in range(4)}
    for name, faults in wrong_labels.PLATES.items():
        given = [*faults(wells)]
        assert given, name
        assert all(one and all(wells[well] != label for well, label in one.items()) for one in given), name


@pytest.mark.parametrize("name", wrong_labels.CASES)
def test_the_settings_of_the_wrong_labels_trainings_are_there(name, capsys):
    words = wrong_labels.CASES[name].words.split()[2:]  # without --folds
    assert main([name, "config", "--preset", "demo", *words]) == 0, capsys.readouterr().err


def test_a_commands_peak_is_its_own_and_not_that_of_the_process_that_starts_it() -> None:
    from benchmarks.harness import command

    held = b"1" * (256 << 20)
    ran = command(sys.executable, "-c", "import time; held = b'1' * (64 << 20); time.sleep(1)")
    assert 64 << 20 < ran.peak < 160 << 20 < len(held)
