"""More epochs for a finished run of schedule wsd: nothing is lost by a refusal, nor by a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from runner_core.cli import main
from runner_core.contract import CheckpointFormat, State
from runner_core.output.runfolder import RunFolder
from runner_core.training.checkpoints import Checkpoints
from runner_core.training.extending import set_apart


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.torch
def test_a_refused_extension_leaves_the_run_as_it_was(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy

    words = "--train.epochs 5 --train.steps-per-epoch 2 --train.schedule wsd --train.warmup 0.3 --train.device cpu"
    assert main(["toy", "train", "--run-dir", "run", *words.split()]) == 0
    before = content(Path("run"))
    assert "checkpoints/step-00000010/manifest.json" in before
    capsys.readouterr()
    resume = ["toy", "train", "--resume", "run"]
    longer = [*resume, "--train.epochs", "10"]

    assert main([*longer, "--train.learning-rate", "0.1"]) == 2
    assert "train.learning_rate" in capsys.readouterr().err
    assert content(Path("run")) == before

    assert main([*resume, "--train.epochs", "20"]) == 2, "its warm-up would last 12 steps"
    assert "You may only add epochs" in capsys.readouterr().err
    assert content(Path("run")) == before

    learning = Toy.learning
    with monkeypatch.context() as own:
        own.setattr(Toy, "learning", lambda self: replace(learning(self), schedule=lambda progress: 1.0))
        assert main(longer) == 2
    assert "no schedule of the project's own" in capsys.readouterr().err
    assert content(Path("run")) == before

    assert main(resume) == 0
    assert RunFolder(Path("run")).saved_steps()[-1] == 10
    assert main(longer) == 0
    assert RunFolder(Path("run")).saved_steps()[-1] == 20
    apart = content(Path("run/epochs-5"))
    assert apart["scores.csv"] == before["scores.csv"]
    assert apart["checkpoints/step-00000010/manifest.json"] == before["checkpoints/step-00000010/manifest.json"]


class Numbers:
    """A checkpoint format of one file."""

    def write(self, folder: Path, state: State) -> None:
        (folder / "numbers").write_text(str(state.values["number"]), encoding="utf-8")

    def read(self, folder: Path, device: str) -> State:
        return State({"number": int((folder / "numbers").read_text(encoding="utf-8"))}, {})


STEPS = (4, 8, 9, 10)


def finished(folder: Path) -> tuple[RunFolder, Checkpoints]:
    """Return a run of 5 epochs (its config.yaml says 10 already) with pictures of some steps and of its result."""
    run = RunFolder(folder)
    checkpoints = Checkpoints(run.checkpoints, cast(CheckpointFormat, Numbers()), project="toy", keep=9)
    for step in STEPS:
        checkpoints.save(State({"number": step}, {}), step, 1, None, is_best=step == 8)
    run.config_file.write_text("train: {epochs: 10}\n", encoding="utf-8")
    run.jsonl.write_text("the whole log\n", encoding="utf-8")
    (run.path / "scores.json").write_text("of step 10\n", encoding="utf-8")
    run.figures.mkdir()
    for name in ("seen-00000008", "seen-00000010", "001-p0_a"):
        (run.figures / f"{name}.png").write_bytes(name.encode())
    return run, checkpoints


class Kill(BaseException):
    """The process ends; after it, no call works."""


def test_a_kill_at_any_moment_loses_nothing_and_the_next_start_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, checkpoints = finished(tmp_path / "whole")
    original = content(run.path)
    set_apart(checkpoints, run, 5, 8)
    ended, kept = content(run.path), content(run.path / "epochs-5")
    assert kept.pop("config.yaml") == b"train:\n  epochs: 5\n"
    gone = {name for name in original if any(part in name for part in ("checkpoints/step-00000004", "config.yaml"))}
    assert kept == {name: data for name, data in original.items() if name not in gone}, "the best one, of step 8, too"
    of_its_own = {name for name in ended if not name.startswith("epochs-5/")}
    later = ("00000009", "00000010", "p0_a", "scores")
    assert {name for name in original if any(part in name for part in later)} == original.keys() - of_its_own

    for at in count(1):
        run, checkpoints = finished(tmp_path / str(at))
        calls = 0

        def dying(call: Callable[..., Any], at: int = at) -> Callable[..., Any]:
            def called(*args: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls >= at:
                    raise Kill
                return call(*args, **more)

            return called

        with monkeypatch.context() as patch:
            for name in ("link", "replace", "mkdir", "fsync", "unlink"):
                patch.setattr(f"os.{name}", dying(getattr(__import__("os"), name)))
            patch.setattr(shutil, "copy2", dying(shutil.copy2))
            patch.setattr(shutil, "rmtree", dying(shutil.rmtree))
            try:
                set_apart(checkpoints, run, 5, 8)
                break
            except Kill:
                pass
        left, apart = content(run.path), content(run.path / "epochs-5")
        assert all(data in (left.get(name), apart.get(name)) for name, data in original.items()), at
        if checkpoints.after(8):
            set_apart(checkpoints, run, 5, 8)
        checkpoints.start(8, 8)
        again = content(run.path)
        assert again == ended, at
        shutil.rmtree(run.path)
    assert at > 20


def test_a_second_run_of_the_same_length_is_kept_beside_the_first(tmp_path: Path) -> None:
    run, checkpoints = finished(tmp_path)
    assert set_apart(checkpoints, run, 5, 8).name == "epochs-5"
    checkpoints.save(State({"number": 11}, {}), 10, 1, None, is_best=False)
    assert set_apart(checkpoints, run, 5, 8).name == "epochs-5-2"
