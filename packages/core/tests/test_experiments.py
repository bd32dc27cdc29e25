"""`crossval` and `repeat`: runs in one folder that equal single runs, go on after a stop, and are pooled honestly."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_core
from runner_core import BadInput, Record
from runner_core.cli import main
from runner_core.config import DataConfig
from runner_core.data.splits import split
from runner_core.experiments.members import write_split
from runner_core.experiments.result import _notes
from runner_core.output import experiments
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.tools.uncertainty import mean
from runner_core.training.data import read_records

pytestmark = pytest.mark.torch
QUICK = ["--epochs", "2", "--train.steps-per-epoch", "2", "--train.threads", "1"]


def weights(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.glob("checkpoints/*/*.safetensors"))}


def read(folder: Path, name: str = "summary.json") -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.fixture
def crossval(here: Path) -> Path:
    """A cross-validation of the toy, three folds, in the working folder."""
    assert main(["toy", "crossval", "--folds", "3", "--out", "cv", *QUICK]) == 0
    return here / "cv"


def test_every_record_is_scored_once_by_a_run_that_never_saw_its_group(crossval: Path) -> None:
    found = read(crossval)
    assert (found["status"], found["done"], found["kind"]) == ("done", 3, "crossval")
    records = read(crossval, "scores.json")["records"]
    scores = SimpleNamespace(rows=[0], shown_names=["dice", "distance"])
    pooled = SimpleNamespace(scores=scores, counts=[3, 3], undefined={"distance": 2, "of no table": 1})
    for groups, few in ((3, True), (5, False)):
        notes = [*_notes({**found, "groups": groups}, pooled)]  # type: ignore[arg-type]
        assert any(note.startswith(f"only {groups} groups: the intervals are wide and rough") for note in notes) == few
        assert [note for note in notes if "undefined" in note] == [
            "distance is undefined in 2 of 6 scores (an empty prediction, for example): its mean is over the others"
        ]
    pooled.undefined["distance"] = 6
    assert [note for note in _notes(found, pooled) if "undefined" in note] == [  # type: ignore[arg-type]
        "distance is undefined in every score (an empty prediction, for example): it has no mean"
    ]
    keys = [entry["record"] for entry in records]
    assert len(set(keys)) == len(keys) == found["records"]
    for n in (1, 2, 3):
        split = (crossval / f"fold-{n}" / "split.yaml").read_text()
        train, validation = split.split("validation:")[0], split.split("validation:")[1]
        for entry in read(crossval / f"fold-{n}", "scores.json")["records"]:
            assert f"- {entry['group']}\n" in validation
            assert f"- {entry['group']}\n" not in train
    errors = [entry["scores"]["error"] for entry in records]
    assert found["scores"]["error"]["mean"] == pytest.approx(np.mean(errors))
    assert found["scores"]["error"]["low"] < found["scores"]["error"]["mean"] < found["scores"]["error"]["high"]
    assert errors == sorted(errors, reverse=True)  # monitor: min
    page = (crossval / "report.html").read_text()
    assert "95 % interval" in page
    assert 'href="fold-2/report.html"' in page


def test_other_methods_get_the_records_of_each_fold_and_a_place_in_the_report(crossval: Path) -> None:
    """From Python: the project with the fold's statistics, its records, and a table that stays in the page."""
    opened = runner_core.open(crossval)
    assert isinstance(opened, runner_core.Experiment)
    validated: list[str] = []
    for run in opened.runs:
        found = [(record.key, cropped.record.key) for _, record, cropped in run.records("validation")]
        scored = {entry["record"] for entry in read(run.path, "scores.json")["records"]}
        assert {key for key, _ in found} == {key for _, key in found} == scored
        assert not scored & {record.key for _, record, _ in run.records("train")}
        project, _, cropped = next(run.records("validation"))
        assert project.name == "toy"
        assert cropped.prepared
        validated += scored
    assert sorted(validated) == sorted(entry["record"] for entry in read(crossval, "scores.json")["records"])
    with pytest.raises(BadInput, match="sideways': there is no such split"):
        next(opened.runs[0].records("sideways"))
    opened.add_table(runner_core.Table("others", "Other methods", ("method", "dice"), [["a rule of thumb", 0.25]]))
    assert main(["toy", "crossval", "--resume", "cv"]) == 0
    page = (crossval / "report.html").read_text()
    assert "Other methods" in page
    assert "a rule of thumb" in page


@pytest.mark.parametrize("words", [("--group-by", "plate", "--folds", "3"), ("--folds", "column:plate")])
def test_intervals_are_for_new_values_of_the_column_that_the_folds_keep_together(
    crossval: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """With `--group-by plate`, records of one plate are no more independent than those of one group."""

    def with_plates(*arguments: Any) -> list[Any]:
        return [replace(r, values={"plate": int(r.group[1:]) % 3}) for r in read_records(*arguments)]

    with monkeypatch.context() as changed:  # the folder knows the plates from its beginning
        changed.setattr("runner_core.cli.experiment.read_records", with_plates)
        changed.setattr("runner_core.cli.experiment._train_members", lambda *arguments, **more: None)
        assert main(["toy", "crossval", *words, "--out", "plates", *QUICK]) == 0
    assert len(set(read(Path("plates"), "groups.json").values())) == 3
    shutil.copy("plates/groups.json", crossval)
    before = read(crossval)
    assert main(["toy", "crossval", "--resume", "cv"]) == 0
    found, records = read(crossval), read(crossval, "scores.json")["records"]
    assert (found["groups"], {entry["group"] for entry in records}) == (3, {"0", "1", "2"})
    plates = [str(int(re.findall(r"p(\d+)_", entry["record"])[0]) % 3) for entry in records]
    wanted = mean([entry["scores"]["error"] for entry in records], plates)
    assert (found["scores"]["error"]["low"], found["scores"]["error"]["high"]) == pytest.approx(wanted.interval())
    assert found["scores"]["error"]["low"] != before["scores"]["error"]["low"]
    assert found["scores"]["error"]["mean"] == pytest.approx(before["scores"]["error"]["mean"])


def test_a_member_equals_the_same_training_by_itself(crossval: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.split", str(crossval / "fold-2.yaml"), "--train.momentum", "0.5"]
    assert main(["toy", "train", "--run-dir", "alone", *words, *QUICK]) == 0
    assert "note: train.momentum 0.5 has no effect: train.optimizer is adamw" in capsys.readouterr().out
    assert weights(crossval / "fold-2") == weights(Path("alone"))
    assert read(crossval / "fold-2")["scores"] == read(Path("alone"))["scores"]


def test_a_member_that_was_stopped_while_it_was_scored_is_scored_again(
    crossval: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, whole, run = weights(crossval), read(crossval), crossval / "fold-2"
    summary = {name: value for name, value in read(run).items() if name != "scores"}  # as it is before the scoring
    (run / "summary.json").write_text(json.dumps(summary | {"reason": "scoring did not finish"}))
    (run / "scores.json").unlink()
    capsys.readouterr()
    assert main(["toy", "crossval", "--resume", "cv"]) == 0
    assert "2 of 3 runs done already" in capsys.readouterr().out
    assert weights(crossval) == before
    assert read(crossval)["scores"] == whole["scores"]
    assert [member["status"] for member in read(crossval)["members"]] == ["done"] * 3


def test_a_done_one_is_not_trained_again_and_other_settings_are_refused(
    crossval: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = weights(crossval)
    shutil.rmtree(crossval / "fold-3")
    capsys.readouterr()
    assert main(["toy", "crossval", "--resume", "cv"]) == 0
    assert "2 of 3 runs done already" in capsys.readouterr().out
    assert weights(crossval) == before
    assert main(["toy", "crossval", "--resume", "auto", "--out", "cv", "--folds", "3", *QUICK]) == 0
    assert "3 of 3 runs done already" in capsys.readouterr().out
    for other, said in (
        (["--lr", "0.1"], "train.learning_rate (it has 0.01)"),
        (["--folds", "2"], "--folds (it has 3)"),
    ):
        assert main(["toy", "crossval", "--resume", "cv", *other]) == 2
        error = capsys.readouterr().err
        assert "was started otherwise" in error
        assert said in error
    assert main(["toy", "repeat", "--resume", "cv"]) == 2
    assert "is of `runner toy crossval`" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stop_leaves_what_is_done_and_says_how_to_go_on(
    launch: Callable[..., subprocess.Popen[str]], tmp_path: Path, cache_home: Path, runner: Any
) -> None:
    words = ["--epochs", "4", "--train.steps-per-epoch", "200", "--train.threads", "1"]
    process = launch("toy", "crossval", "--folds", "2", "--out", "cv", "--part", "1/1", *words)
    jsonl = tmp_path / "cv" / "fold-1" / "log.jsonl"
    while process.poll() is None and '"train"' not in (jsonl.read_text() if jsonl.exists() else ""):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    out = (tmp_path / "out").read_text()
    assert "0 of 2 runs done" in out
    assert re.search(r"go on with: .*toy crossval --resume cv --part 1/1$", out, re.MULTILINE)
    done = runner("toy", "crossval", "--resume", "cv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from the checkpoint" in done.stdout
    whole = runner("toy", "train", "--run-dir", "alone", "--data.split", tmp_path / "cv" / "fold-1.yaml", *words)
    assert whole.returncode == 0
    assert weights(tmp_path / "cv" / "fold-1") == weights(tmp_path / "alone")


def test_seeds_share_one_split(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "repeat", "--seeds", "2", "--out", "seeds", "--train.seed", "7", *QUICK]) == 0
    capsys.readouterr()
    folder = ExperimentFolder.open(Path("seeds"))
    assert [(m.name, m.seed) for m in folder.members] == [("seed-7", 7), ("seed-8", 8)]
    one, other = (read(here / "seeds" / m.name, "scores.json")["records"] for m in folder.members)
    assert {e["record"] for e in one} == {e["record"] for e in other}
    pooled = {e["record"]: e["scores"]["dice"] for e in read(here / "seeds", "scores.json")["records"]}
    for key, value in pooled.items():
        each = [e["scores"]["dice"] for entries in (one, other) for e in entries if e["record"] == key]
        assert len(each) == 2
        assert value == pytest.approx(np.mean(each))
    assert weights(here / "seeds" / "seed-7") != weights(here / "seeds" / "seed-8")


def test_parts_on_several_machines_give_the_same_runs(crossval: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = ["toy", "crossval", "--folds", "3", "--resume", "auto", "--out", "shared", *QUICK]
    assert main([*shares, "--part", "2/2"]) == 0
    assert read(Path("shared"))["status"] == "unfinished"
    assert "2 of 3 runs are not done" in capsys.readouterr().out
    assert main([*shares, "--part", "1/2"]) == 0
    assert read(Path("shared"))["status"] == "done"
    for n in (1, 2, 3):
        assert weights(crossval / f"fold-{n}") == weights(Path(f"shared/fold-{n}"))
    assert main([*shares, "--part", "3/2"]) == 2


def test_two_parts_may_start_at_the_same_moment(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.cli import experiment

    shares = ["toy", "crossval", "--folds", "2", "--resume", "auto", "--out", "shared", *QUICK]

    refuse = experiment.refuse_full_folder

    def meanwhile(path: Path, remedy: str) -> None:
        monkeypatch.setattr(experiment, "refuse_full_folder", refuse)
        assert main([*shares, "--part", "1/2"]) == 0

    monkeypatch.setattr(experiment, "refuse_full_folder", meanwhile)
    assert main([*shares, "--part", "2/2"]) == 0
    assert read(here / "shared")["status"] == "done"


@pytest.mark.slow
def test_several_at_once_give_the_same_runs(crossval: Path, runner: Any, tmp_path: Path) -> None:
    done = runner("toy", "crossval", "--folds", "3", "--out", "both", "--at-once", "2", *QUICK, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fold-3: done in" in done.stdout
    for n in (1, 2, 3):
        assert weights(crossval / f"fold-{n}") == weights(tmp_path / "both" / f"fold-{n}")
    assert not list((tmp_path / "both").glob(".*"))


def test_a_run_that_a_health_rule_stops_is_named_and_the_others_go_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "crossval", "--folds", "2", "--out", "cv", "--lr", "1e30", *QUICK]) == 3
    said = capsys.readouterr()
    assert "fold-1" in said.err
    assert "fold-2" in said.err
    assert read(here / "cv")["status"] == "unfinished"


def test_the_result_is_json_on_request(here: Path, runner: Any) -> None:
    done = runner("toy", "crossval", "--folds", "groups", "--out", "cv", "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["about"]["folds"] == "groups"
    assert math.isfinite(found["scores"]["dice"]["mean"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--folds", "99"], "a group is never divided"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--at-once", "0"], "--at-once is 0"),
        (["--resume", "nowhere"], "there is no such folder"),
        (["--resume", "auto"], "--resume auto needs the folder"),
        (["--resume"], "there is no crossval of toy to go on with"),
        (["--group-by", "plate"], "record p0_a has no such value"),
        (["--data.split", "group:p0"], "makes its own splits"),
        (["--validate.records", "1"], "scores every validation record"),
        (["--predict.views", "miror-x"], "there is no view 'miror-x'; did you mean 'mirror-x'?"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["toy", "crossval", *words, *QUICK]) == 2
    assert message in capsys.readouterr().err
    assert not list(here.glob("runs/toy/crossval*/fold-*/checkpoints"))


@pytest.mark.parametrize("command", ["crossval", "repeat", "train"])
def test_an_unknown_view_is_refused_before_data_are_read(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["toy", command, "--predict.views", "mirror-q"]) == 2
    assert "there is no view 'mirror-q'" in capsys.readouterr().err
    assert not list(here.iterdir()), "no phantom, no cache, no folder of an experiment or a run"


def test_a_folder_whose_settings_the_first_run_refuses_is_removed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a project which knows its views only with statistics."""
    monkeypatch.setattr("runner_core.cli.start.refuse_unknown_views", lambda project: None)
    words = ["toy", "crossval", "--folds", "2", "--out", "cv", *QUICK]
    assert main([*words, "--predict.views", "mirror-q"]) == 2
    assert "there is no view 'mirror-q'" in capsys.readouterr().err
    assert not (here / "cv").exists()


def test_a_second_process_is_told_at_once_which_one_trains(
    crossvalidated: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ExperimentFolder.open(Path(shutil.copytree(crossvalidated, here / "cv")))
    whole = ["toy", "crossval", "--resume", "cv"]

    def unread(*_: object) -> None:
        raise AssertionError("records were read")

    with monkeypatch.context() as patched:
        patched.setattr("runner_core.cli.experiment.read_records", unread)
        for held, asked in (("", []), ("", ["--part", "2/2"]), ("2/2", []), ("1/2", ["--part", "1/3"])):
            with folder.claimed(held):
                assert main([*whole, *asked]) == 2
                said = capsys.readouterr().err
                assert f"cv: process {os.getpid()} on {platform.node()}, since 2" in said
                assert "is training here already" in said
                assert said.count("\n") == 1
    for stray in (".running-2-of-2", ".running-", ".running-x"):  # of a process that was killed, or of none
        (folder.path / stray).write_text("process 1 on elsewhere")
    with folder.claimed("2/2"):
        assert main([*whole, "--part", "1/2"]) == 0
    assert sorted(path.name for path in folder.path.glob(".running-*")) == [".running-", ".running-x"]


@pytest.mark.parametrize(("first", "second"), [("1/2", ""), ("", "2/2"), ("1/2", "1/3"), ("", "")])
def test_of_two_that_claim_at_once_one_gets_the_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """The second comes when the first has made its marker, and has not locked it yet."""
    folder = ExperimentFolder(tmp_path, "repeat", "toy", [Member(f"seed-{n}") for n in range(4)])
    there, came, tried, got = Event(), Event(), Event(), list[str]()
    locked = experiments.lock

    def lock(descriptor: int, **how: bool) -> None:
        if current_thread() is not other:
            came.set()
        elif how:
            there.set()
            assert came.wait(60)
        locked(descriptor, **how)

    def claim(part: str) -> None:
        with suppress(BadInput), folder.claimed(part):
            got.append(part)
            assert current_thread() is not other or tried.wait(60)

    other = Thread(target=claim, args=[first])
    monkeypatch.setattr(experiments, "lock", lock)
    other.start()
    assert there.wait(60)
    claim(second)
    tried.set()
    other.join()
    assert got == [first]
    assert not list(tmp_path.iterdir())


def test_a_share_that_is_given_up_while_another_claims_it_has_one_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second opens the marker just before the first removes it. Then a third comes."""
    folder = ExperimentFolder(tmp_path, "repeat", "toy", [Member("seed-0")])
    there, end, ends = Event(), Event(), Event()
    locked = experiments.lock

    def lock(descriptor: int, **how: bool) -> None:
        if current_thread() is other and there.is_set():
            ends.set()  # it waits for its turn to remove the marker
        elif current_thread() is not other and how and not end.is_set():
            end.set()
            assert ends.wait(60)
        locked(descriptor, **how)

    def hold() -> None:
        with folder.claimed():
            there.set()
            assert end.wait(60)
        ends.set()

    other = Thread(target=hold)
    monkeypatch.setattr(experiments, "lock", lock)
    other.start()
    assert there.wait(60)
    got = []
    with ExitStack() as held:
        for name in ("second", "third"):
            with suppress(BadInput):
                held.enter_context(folder.claimed())
                got.append(name)
            other.join()
    assert len(got) == 1
    assert not list(tmp_path.iterdir())


def test_a_full_or_damaged_folder_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "full").mkdir()
    (here / "full" / "notes").write_text("mine")
    assert main(["toy", "crossval", "--out", "full", *QUICK]) == 2
    assert "full exists and is not an empty folder" in capsys.readouterr().err
    folder = ExperimentFolder(here / "full", "crossval", "toy", [Member("fold-1")])
    folder.save()
    assert ExperimentFolder.open(here / "full") == folder
    for text in ("", "[]", "{}", '{"kind": "crossval", "project": "toy", "about": {}, "members": [{"name": "../x"}]}'):
        (here / "full" / "experiment.json").write_text(text)
        with pytest.raises(BadInput, match=r"experiment\.json is damaged"):
            ExperimentFolder.open(here / "full")


def test_a_page_that_cannot_be_written_again_is_refused_with_the_remedy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, project, summary, said in (
        ("crossval", "toy", None, "has no summary.json yet: `runner toy crossval --resume it` writes it when all runs"),
        ("crossval", "toy", "{}", "summary.json is damaged: it is not what the runner writes; `runner toy crossval"),
        ("crossval", "other", None, "is an experiment of project 'other', not of 'toy'"),
        ("sweep", "toy", None, "is a sweep, whose report is not written by itself: `runner toy sweep --resume it`"),
    ):
        (here / "it").mkdir(exist_ok=True)
        ExperimentFolder(here / "it", kind, project, [Member("fold-1")]).save()
        if summary is not None:
            (here / "it" / "summary.json").write_text(summary)
        assert main(["toy", "report", "it"]) == 2
        assert said in capsys.readouterr().err
        (here / "it" / "summary.json").unlink(missing_ok=True)


def test_a_repetition_in_a_new_terminal_takes_the_latest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "repeat", "--seeds", "1", *QUICK]) == 0
    capsys.readouterr()
    assert main(["toy", "repeat", "--resume"]) == 0
    assert "1 of 1 run done already" in capsys.readouterr().out
    assert len(os.listdir("runs/toy")) == 1


def test_what_the_first_start_chose_is_kept_at_the_next(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "crossval", "--folds", "2", "--balance", "voxels", "--out", "cv", *QUICK]) == 0
    shutil.move("cv", "moved")
    shutil.rmtree("moved/fold-2")
    capsys.readouterr()
    assert main(["toy", "crossval", "--resume", "moved"]) == 0
    assert "1 of 2 runs done already" in capsys.readouterr().out
    assert main(["toy", "crossval", "--resume", "moved", "--balance", "records"]) == 2
    assert "--balance (it has voxels)" in capsys.readouterr().err
    assert main(["toy", "crossval", "--resume", "moved", "--no-extension", "x"]) == 2
    assert "was started with other extensions" in capsys.readouterr().err


def test_a_record_that_is_left_out_stays_out(tmp_path: Path) -> None:
    a1, a2, b, c = Record("a1", "a", {}), Record("a2", "a", {}), Record("b", "b", {}), Record("c", "c", {})
    file = tmp_path / "split.yaml"
    config = DataConfig(split=str(file))
    write_split(file, {"train": [a1, b], "validation": [c]}, [a1, a2, b, c])
    assert split([a1, a2, b, c], config, 0) == {"train": [0, 2], "validation": [3], "test": []}
    write_split(file, {"train": [a1, a2, b], "validation": [c]}, [a1, a2, b, c])
    assert "- a\n" in file.read_text()
    assert split([a1, a2, b, c], config, 0) == {"train": [0, 1, 2], "validation": [3], "test": []}


def test_a_strangers_experiment_names_no_options_and_leads_nowhere(tmp_path: Path) -> None:
    for name, settings in (("fold-1", {"config": "x.yaml"}), ("", {}), ("link", {}), ("fold-1", 5)):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("/tmp")
        ExperimentFolder(tmp_path, "crossval", "toy", [Member(name, settings=settings)]).save()  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="is damaged"):
            ExperimentFolder.open(tmp_path)
