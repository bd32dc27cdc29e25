"""`sweep`: trials by Optuna, given up early, going on after a kill, and judged on records that it never looked at."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, Record
from runner_core.cli import main
from runner_core.config import RunConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.experiments.sweep import Sweep, parse_space, settings_of
from runner_core.output.experiments import ExperimentFolder

pytest.importorskip("optuna", reason="Optuna is not installed (the extra runner-core[sweep])")
QUICK = ["--epochs", "2", "--train.steps-per-epoch", "2", "--train.threads", "1"]
VARY = ["--vary", "train.learning_rate=1e-3..1e-1:log", "model.width=2,4"]


@dataclass
class Model:
    width: int = 8
    channels: tuple[int, ...] = (8, 16)
    norm: bool = True
    name: str = "a"


@dataclass
class Config(RunConfig):
    model: Model = field(default_factory=Model)


class Bounded:
    """A project as far as a search asks it: it refuses settings that are out of bounds."""

    name = "toy"

    def __init__(self, config: RunConfig) -> None:
        refuse_out_of_bounds(config)


def space(*words: str) -> Any:
    return parse_space(words, Config(), Bounded)  # type: ignore[arg-type]


def test_ranges_and_choices_have_the_types_of_their_settings() -> None:
    found = space(
        "train.learning_rate=1e-4..1e-2:log", "model.width=2..32", "model.norm=true,false", "model.channels=[4, 8],[8]"
    )
    assert space("train.learning_rate=1e-4,5e-3")["train.learning_rate"].choices == ("0.0001", "0.005")
    rate, width = found["train.learning_rate"], found["model.width"]
    assert (rate.low, rate.high, rate.log) == (1e-4, 1e-2, True)
    assert (width.low, width.high, type(width).__name__) == (2, 32, "IntDistribution")
    chosen = {"model.norm": "false", "model.channels": "[4, 8]", "model.width": 5}
    assert settings_of(chosen, found) == {"model.norm": False, "model.channels": [4, 8], "model.width": 5}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.learning_rat=1..2", "there is no setting 'train.learning_rat'; did you mean 'train.learning_rate'"),
        ("model.width", "write model.width=LOW..HIGH"),
        ("model.width=4..2", "from a smaller to a larger"),
        ("model.width=1.5..2.5", "takes whole numbers"),
        ("train.learning_rate=0..1:log", "above 0"),
        ("train.learning_rate=1..x", "is not a range of numbers"),
        ("train.learning_rate=1e-4..1:lin", "only `log` may stand"),
        ("model.width=4", "name two values or more"),
        ("model.width=a,b", "model.width"),
        ("train.batch_size=0..4", "train.batch_size"),
    ],
)
def test_what_cannot_be_searched_is_refused(word: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        space(word)


def test_a_setting_that_is_none_has_no_first_trial(tmp_path: Path) -> None:
    folder = ExperimentFolder(tmp_path, "sweep", "toy", [])
    found = space("train.clip=1..5")
    assert type(found["train.clip"]).__name__ == "IntDistribution"
    sweep = Sweep(folder, space("train.clip=0.5..1"), "dice", True, 0, {"train.clip": None}, 2, float("inf"))
    assert sweep.following() is not None


def test_nothing_to_search_is_refused() -> None:
    with pytest.raises(BadInput, match="name the settings to search"):
        space()
    with pytest.raises(BadInput, match="twice"):
        space("model.width=1..2", "model.width=3..4")


def test_a_trial_that_lags_behind_is_given_up(tmp_path: Path) -> None:
    """Optuna's median rule on logs as trials write them."""
    folder = ExperimentFolder(tmp_path, "sweep", "toy", [])
    sweep = Sweep(folder, space("model.width=1..99"), "dice", True, 0, {"model.width": 8}, 20, float("inf"))
    states = []
    for number in range(8):
        member = sweep.following()
        assert member is not None
        assert member.settings["model.width"] == 8 or number
        run = sweep.experiment.run(member)
        run.path.mkdir()
        good = number < 7
        stopped = False
        for step in range(1, 5):
            with run.jsonl.open("a") as log:
                dice = 0.1 * step + 0.01 * number if good else 0.01
                log.write(json.dumps({"event": "validation", "step": step, "dice": dice}) + "\n")
            stopped = stopped or sweep.stops(member)
        if good:
            run.config_file.write_text("")
            run.write_summary({"status": "done", "scores": {}})
        states.append((stopped, sweep.ended(member, "" if good else "ended with code 143")))
    assert states == [*[(False, "done")] * 7, (True, "given up")]
    best = sweep.best()
    assert best is not None
    assert best.name == "trial-006"
    base = sweep.base_member()
    assert base is not None
    assert base.name == "trial-000"
    assert [value for _, _, value in sweep.table()] == pytest.approx([0.46, 0.45, 0.44, 0.43, 0.42, 0.41, 0.4, None])


@pytest.mark.slow
@pytest.mark.torch
def test_the_best_is_judged_on_groups_that_the_search_never_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "sweep", "--out", "s", *VARY, "--trials", "3", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "that the search did not look at" in said
    found = json.loads((here / "s" / "summary.json").read_text())
    assert [trial["state"] for trial in found["trials"]] == ["done"] * 3
    values = [trial["value"] for trial in found["trials"]]
    assert values == sorted(values)  # the toy's loss: smaller is better
    assert found["best"] == found["trials"][0]["name"]
    assert all(1e-3 <= t["settings"]["train.learning_rate"] <= 1e-1 for t in found["trials"])
    split = (here / "s" / "split.yaml").read_text()
    held_out = split.split("test:")[1].split("train:")[0].split()[1::2]
    assert held_out
    for trial in found["trials"]:
        scored = json.loads((here / "s" / trial["name"] / "scores.json").read_text())["records"]
        assert not {entry["group"] for entry in scored} & {*held_out}
    judged = json.loads(next((here / "s" / found["best"]).glob("evaluation-test-*/scores.json")).read_text())
    assert {entry["group"] for entry in judged["records"]} <= {*held_out}
    assert found["judged"]["best"]["scores"]["dice"] == pytest.approx(judged["means"]["dice"])
    assert "What mattered" in (here / "s" / "report.html").read_text()

    capsys.readouterr()
    assert main(["toy", "train", "--config", "s/best.yaml", "--run-dir", "again"]) == 0
    assert main(["toy", "sweep", "--resume", "s", "--trials", "4"]) == 0
    assert len(json.loads((here / "s" / "summary.json").read_text())["trials"]) == 4
    assert main(["toy", "sweep", "--resume", "s", "--vary", "model.width=2,8"]) == 2
    assert "--vary (it has" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.torch
def test_a_killed_sweep_goes_on_with_the_trial_that_it_trained(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path, runner: Any
) -> None:
    words = ["--epochs", "2", "--train.steps-per-epoch", "300", "--train.threads", "1"]
    process = launch("toy", "sweep", "--out", "s", *VARY, "--trials", "2", *words)
    log = tmp_path / "s" / "trial-000" / "log.jsonl"
    while process.poll() is None and '"train"' not in (log.read_text() if log.exists() else ""):
        time.sleep(0.05)
    child = int(subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()[0])
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    while Path(f"/proc/{child}").exists():  # it notices that its parent is gone, saves and ends
        time.sleep(0.1)
    done = runner("toy", "sweep", "--resume", "s", "--trials", "2", fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert sorted(trial["name"] for trial in found["trials"]) == ["trial-000", "trial-001"]
    assert all(trial["state"] == "done" for trial in found["trials"])


def test_a_record_with_the_name_of_another_group_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `crossval`: in the file of the split the name would stand for both."""
    records = [Record("g2", "g1", {}), Record("b", "g2", {})]
    monkeypatch.setattr("runner_core.cli.experiment.read_records", lambda *_: records)
    assert main(["toy", "sweep", *VARY, *QUICK]) == 2
    assert "record g2 of group g1 has the name of another group" in capsys.readouterr().err
    assert not list(here.glob("runs/toy/*"))


def test_without_optuna_the_names_are_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words, message in (
        ((), "name the settings to search"),
        (("model.widht=2,4",), "did you mean 'model.width'"),
        (("model.width=2,4",), r"a sweep needs the package optuna: `uv pip install .optuna>=[\d.]+.` adds it"),
    ):
        with pytest.raises(BadInput, match=message):
            space(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "model.widht=2,4"], "did you mean 'model.width'"),
        ([], "name the settings to search"),
        (["--vary", "model.width=2,4", "--vary", "train.seed=1,2"], "--vary is given twice"),
        (["--vary", "data.split=auto,none"], "is the same for all trials"),
        ([*VARY, "--trials", "0"], "--trials is 0"),
        ([*VARY, "--minutes", "0"], "--minutes is 0"),
        ([*VARY, "--holdout", "1"], "--holdout is 1"),
        ([*VARY, "--data.split", "none"], "no record validates"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["toy", "sweep", *words, *QUICK]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "runs").exists() or not list((here / "runs" / "toy").iterdir())
