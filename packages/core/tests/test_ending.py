"""How a training ends: a disk that takes no more is never exit 0, and an interruption says what is true."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from runner_core.cli import main

pytestmark = pytest.mark.torch
SHORT = ["toy", "train", "--run-dir", "run", "--train.steps-per-epoch", "3", "--train.epochs"]


def no_space(*args: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def summary(here: Path) -> dict[str, Any]:
    return json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))


def report(here: Path) -> str:
    return (here / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "number, why", [(errno.ENOSPC, "no space left to save"), (errno.EIO, "cannot be written into")]
)
def test_a_disk_that_fails_at_step_3_of_12(
    number: int, why: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later checkpoints are lost: exit 2, status failed, and what is kept is named. With room, the run goes on."""
    from runner_core.engines.torch.checkpoint import SafetensorsFormat

    write = SafetensorsFormat.write

    def full(self: Any, folder: Path, state: Any) -> None:
        if state.values["loop"]["step"] > 3:
            raise OSError(number, "it takes no more")
        write(self, folder, state)

    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsFormat, "write", full)
        assert main([*SHORT, "4"]) == 2
    said = capsys.readouterr()
    assert said.out.count("WARNING: checkpoint not saved") == 3
    assert "runner: the end of this training is not saved" in said.err
    assert why in said.err
    assert "kept: the checkpoint of step 3\n" in said.err
    assert "`runner toy train --resume run`" in said.err
    found = summary(here)
    assert (found["status"], found["steps"], found["best_step"]) == ("failed", 12, 3)
    assert "kept: the checkpoint of step 3" in found["reason"]
    assert "checkpoint not saved" in {finding["rule"] for finding in found["health"]}
    assert "failed" in report(here)

    assert main(["toy", "train", "--resume", "run"]) == 0
    assert (summary(here)["status"], summary(here)["steps"], summary(here)["unsaved"]) == ("done", 12, None)


def test_a_checkpoint_that_is_lost_in_between_is_on_record(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is whole at its end, but its best may have been the one that was lost."""
    from runner_core.engines.torch.checkpoint import SafetensorsFormat

    write = SafetensorsFormat.write

    def full(self: Any, folder: Path, state: Any) -> None:
        if state.values["loop"]["step"] == 3:
            no_space()
        write(self, folder, state)

    monkeypatch.setattr(SafetensorsFormat, "write", full)
    assert main([*SHORT, "2"]) == 0
    (finding,) = [f for f in summary(here)["health"] if f["rule"] == "checkpoint not saved"]
    assert "step 3" in finding["message"]


@pytest.mark.parametrize(
    "what, missing",
    [
        ("runner_core.output.sinks._Lines._empty", ["log.jsonl", "train.log"]),
        ("runner_core.training.evaluation.write_png", ["figures"]),
        ("runner_core.training.evaluation.replace_csv", ["scores.csv"]),
        ("runner_core.output.report.replace_text", ["report.html"]),
    ],
)
def test_results_that_the_disk_does_not_take(
    what: str, missing: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(what, no_space)
        assert main([*SHORT, "1"]) == 2
    said = capsys.readouterr()
    names = [f"run/{name}" for name in missing]
    assert f"could not be written whole: {', '.join(names)}" in said.err
    assert "kept: the trained network, in 1 checkpoint up to step 3" in said.err
    assert "validation (best checkpoint" in said.out, "what is known is shown"
    assert (summary(here)["status"], summary(here)["unwritten"]) == ("failed", names)
    if missing != ["report.html"]:
        assert f"not written</b> {names[0]}" in report(here)
    assert main(["toy", "train", "--resume", "run"]) == 0
    assert (summary(here)["status"], summary(here)["unwritten"]) == ("done", [])
    assert (here / "run" / "scores.csv").exists()


def test_what_was_said_on_a_full_disk_comes_into_the_log_when_there_is_room(tmp_path: Path) -> None:
    from runner_core.output.display import Display

    log = tmp_path / "folder" / "train.log"  # there is no such folder yet
    display = Display(log)
    display.say("one")
    assert display.unkept == log
    log.parent.mkdir()
    display.say("two")
    assert display.unkept is None
    assert [line.split("  ")[1] for line in log.read_text(encoding="utf-8").splitlines()] == ["one", "two"]


def test_a_summary_that_said_done_says_failed_where_the_scores_find_no_room(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner_core.output.runfolder import RunFolder

    write = RunFolder.write_summary

    def full(self: RunFolder, found: Any) -> None:
        if "scores" in found:
            no_space()
        write(self, found)

    monkeypatch.setattr(RunFolder, "write_summary", full)
    assert main([*SHORT, "1"]) == 2
    assert summary(here)["status"] == "failed"


def interrupt(*args: Any, **more: Any) -> Any:
    raise KeyboardInterrupt


NOTHING = "nothing was trained, no run folder is left"


@pytest.mark.parametrize(
    "where, said, status",
    [
        ("runner_core.cli.train.banner", f"interrupted; the set-up was not finished: {NOTHING}", None),
        (
            "runner_core.cli.train.open_data",
            f"interrupted; the preparation of the data was not finished: {NOTHING}",
            None,
        ),
        (
            "runner_core.data.cache.build.Builder.build",
            f"the preparation of the data was not finished: {NOTHING}",
            None,
        ),
        ("runner_core.training.assembly.loaders", f"interrupted; the set-up was not finished: {NOTHING}", None),
        (
            "runner_core.training.loop.Loop._validate",
            "no checkpoint was saved yet: nothing of this training is kept",
            "stopped",
        ),
        (
            "runner_core.cli.train_scoring.evaluate",
            "the training is saved, its scores are not: `runner toy evaluate run`",
            "done",
        ),
        (
            "runner_core.cli.train_end._report",
            "training and scores are saved: `runner toy report run` writes its report",
            "done",
        ),
    ],
)
def test_an_interruption_says_what_is_left(
    where: str,
    said: str,
    status: str | None,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(where, interrupt)
    assert main([*SHORT, "2"]) == 130
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert "interrupted" not in told.out
    assert (here / "run").exists() == (status is not None)
    if status:
        assert summary(here)["status"] == status


@pytest.mark.parametrize("removed", [7, 10, 11])
def test_a_start_whose_removal_was_cut_can_be_started_again(
    removed: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal ends the removal of an interrupted start: the scheduler's one line still starts the run."""
    left = removed

    def cut(remove: Any) -> Any:
        def removing(*args: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return remove(*args, **more)

        return removing

    from runner_core.cli import train_end

    discard = train_end._discard

    def discarded(folder: Any) -> None:
        (folder.figures / "some.png").touch()
        with monkeypatch.context() as cutting:
            cutting.setattr(Path, "unlink", cut(Path.unlink))
            cutting.setattr(train_end.shutil, "rmtree", cut(train_end.shutil.rmtree))
            discard(folder)

    with monkeypatch.context() as patch:
        patch.setattr("runner_core.training.assembly.loaders", interrupt)
        patch.setattr(train_end, "_discard", discarded)
        assert main([*SHORT, "1"]) == 130
    assert left == 0
    assert (here / "run").exists()
    assert main([*SHORT, "1", "--resume", "auto"]) == 0
    assert summary(here)["status"] == "done"


def test_a_second_interruption_in_training_names_the_checkpoint_to_go_on_from(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.training.loop import Loop

    log = Loop._log

    def stopped(self: Loop) -> Any:
        return interrupt() if self.state.step > 3 else log(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_log", stopped)
        assert main([*SHORT, "2"]) == 130
    said = "the training is kept up to the checkpoint of step 3: `runner toy train --resume run` goes on from there"
    assert capsys.readouterr().err == f"runner: interrupted; {said}\n"
    assert (summary(here)["status"], summary(here)["reason"]) == ("stopped", said)

    before = (here / "run" / "summary.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("runner_core.cli.train.open_data", interrupt)
        assert main(["toy", "train", "--resume", "run"]) == 130
    assert "nothing was trained, the run is as it was" in capsys.readouterr().err
    assert (here / "run" / "summary.json").read_bytes() == before
    assert main(["toy", "train", "--resume", "run"]) == 0


def test_workers_end_although_closing_the_checkpoints_fails(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner_core.training.assembly import Loaders
    from runner_core.training.keeping import Keeper

    closed = []
    close = Loaders.close

    def noted(self: Loaders) -> None:
        closed.append(self)
        close(self)

    def fails(self: Keeper) -> None:
        raise ZeroDivisionError("closing the checkpoints")

    monkeypatch.setattr(Loaders, "close", noted)
    monkeypatch.setattr(Keeper, "close", fails)
    assert main([*SHORT, "2"]) == 1
    assert len(closed) == 1
