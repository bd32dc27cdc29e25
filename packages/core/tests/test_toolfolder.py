"""Folders of tools: nobody else writes into one, and what holds nothing is gone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from runner_core.base.errors import BadInput
from runner_core.cli import main
from runner_core.output.runfolder import RunFolder, claimed
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.tune import Tuning


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_another_writes_into_is_refused(there: bool) -> None:
    out = Path("new/out")
    if there:
        out.mkdir(parents=True)
    with claimed("toy", "profile", out) as folder:
        with (
            pytest.raises(BadInput, match=r"new/out: another runner is writing into this folder.*--out"),
            claimed("toy", "tune", out),
        ):
            pass
        (folder / "report.html").touch()
    assert [path.name for path in out.iterdir()] == ["report.html"]
    with pytest.raises(BadInput, match="the folder is not empty"), claimed("toy", "tune", out):
        pass


def test_a_training_and_a_tool_keep_each_other_out() -> None:
    with (
        claimed("toy", "profile", Path("out")),
        pytest.raises(BadInput, match="another runner"),
        RunFolder(Path("out")).lock(),
    ):
        pass


def test_what_a_killed_tool_left_refuses_nobody() -> None:
    Path("out").mkdir()
    Path("out/.lock").touch()
    with claimed("toy", "profile", Path("out")) as folder:
        (folder / "report.html").touch()
    assert [path.name for path in Path("out").iterdir()] == ["report.html"]


def test_folders_without_a_name_are_each_its_own() -> None:
    with claimed("toy", "tune", None) as one, claimed("toy", "tune", None) as other:
        assert one != other
        assert one.parent == other.parent == Path("runs/toy")
    assert not Path("runs").exists()


@pytest.mark.parametrize("out", [None, Path("new/er/out")])
def test_nothing_is_left_of_what_is_refused(out: Path | None) -> None:
    def refused() -> None:
        with claimed("toy", "profile", out) as folder:
            (folder / "trace").mkdir()
            raise BadInput("no data")

    with pytest.raises(BadInput, match=r"^no data$"):
        refused()
    assert not list(Path().iterdir())


def test_what_was_there_before_stays() -> None:
    Path("mine/empty").mkdir(parents=True)
    with pytest.raises(BadInput, match="no data"), claimed("toy", "profile", Path("mine/empty")):
        raise BadInput("no data")
    assert Path("mine/empty").is_dir()
    with pytest.raises(BadInput, match="mine: the folder is not empty"), claimed("toy", "profile", Path("mine")):
        pass
    assert Path("mine/empty").is_dir()


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("kept", [False, True])
def test_an_interruption_says_what_is_left(stop: BaseException, kept: bool) -> None:
    def stopped() -> None:
        with claimed("toy", "tune", Path("out")) as folder:
            if kept:
                (folder / "file").touch()
            raise type(stop)(*stop.args)

    with pytest.raises(type(stop)) as raised:
        stopped()
    (note,) = raised.value.__notes__
    assert note == ("what there is until then is in out" if kept else "nothing is kept")
    assert Path("out").exists() == kept


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "words, number, code, said",
    [
        pytest.param(["profile"], signal.SIGTERM, 143, "stopped by SIGTERM; nothing is kept", marks=pytest.mark.torch),
        (["tune"], signal.SIGTERM, 143, "stopped by SIGTERM; nothing is kept"),
        (["ablate"], signal.SIGINT, 130, "interrupted; nothing is kept"),
        (["check"], signal.SIGTERM, 143, "stopped by SIGTERM"),
    ],
)
def test_a_signal_is_answered(
    words: list[str], number: int, code: int, said: str, here: Path, capsys: Any, monkeypatch: Any
) -> None:
    def slow(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("runner_core.cli.measure.open_data", slow)
    monkeypatch.setattr("runner_core.cli.check.data_folder", slow)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["toy", *words]) == code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == f"runner: {said}\n"
    assert not (here / "runs").exists()


def test_a_moment_that_no_training_has_is_refused_before_the_data_are_read(here: Path, capsys: Any) -> None:
    for at in ("7", "-0.1", "nan"):
        assert main(["toy", "profile", f"--at={at}"]) == 2
        told = capsys.readouterr()
        assert f"--at {at}: " in told.err
        assert "from 0 (its beginning) to 1 (its end)" in told.err
        assert not told.out
    assert not list(here.iterdir())


def test_a_limit_that_nothing_keeps_to_says_what_to_do(here: Path, capsys: Any, monkeypatch: Any) -> None:
    def begin(self: Tuning) -> None:
        failed = TrialFailed("takes 1.0 GB, more than --memory-gb allows", memory=True)
        raise BadInput(f"the settings as they are cannot be measured: {failed}") from failed

    monkeypatch.setattr(Tuning, "begin", begin)
    assert main(["toy", "tune", "--memory-gb", "0.01", "--out", "a/b"]) == 2
    assert "more than --memory-gb allows: raise it, or lower train.batch_size" in capsys.readouterr().err
    assert not (here / "a").exists()


@pytest.mark.torch
@pytest.mark.parametrize("tool", ["profile", "tune", "ablate"])
def test_a_batch_that_no_memory_holds_is_refused_by_the_plan(tool: str, here: Path, capsys: Any) -> None:
    """The loader's own number would not suffice."""
    batch = ["--train.batch_size", str(10**9), "--validate.batch_size", str(10**9)]
    assert main(["toy", tool, "--minutes", "0.1", *batch, "--out", "a/b"]) == 2
    told = capsys.readouterr().err
    assert "this training takes about" in told
    assert "activations of a step" in told
    assert "set train.batch_size to" in told
    assert not (here / "a").exists()


@pytest.mark.torch
def test_names_that_are_no_text_are_written(here: Path, capsys: Any) -> None:
    """Latin-1; and, in a locale without UTF-8, all that are not ASCII."""
    data = Path(os.fsdecode(b"Gr\xf6\xdfe"))
    assert main(["toy", "phantom", str(data)]) == 0
    assert main(["toy", "check", "--data", str(data), "--out", "checked"]) == 0
    assert json.loads(Path("checked/check.json").read_text("utf-8"))["data"] == str(data.absolute())
    short = ["--train.epochs", "1", "--train.steps-per-epoch", "2", "--health.mode", "warn"]
    assert main(["toy", "train", "--data", str(data), "--run-dir", "run", *short]) == 0
    assert json.loads(Path("run/summary.json").read_text("utf-8"))["data"] == str(data.absolute())
    for line in Path("run/log.jsonl").read_text("utf-8").splitlines():
        json.loads(line)
    assert main(["toy", "evaluate", "run"]) == 0
    assert "Traceback" not in capsys.readouterr().err
