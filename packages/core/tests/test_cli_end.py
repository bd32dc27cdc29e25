"""How a training ends when the disk is full or records cannot be scored, and what evaluate calls validation then."""

from __future__ import annotations

import errno
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from runner_core import BadInput
from runner_core.base.errors import OutOfSpace
from runner_core.base.writing import replace_json, replace_text, whole_file
from runner_core.cli import _Terminated, main
from runner_core.cli.crash import describe
from runner_core.plugins.discovery import place_of

Runner = Callable[..., subprocess.CompletedProcess[str]]
SHORT = ["toy", "train", "--run-dir", "run", "--train.epochs", "1", "--train.steps-per-epoch", "2"]


def full(own: Callable[..., Any], *names: str) -> Any:
    """`own`, which writes a file, on a disk that has no room for these files."""

    def replace(path: Path, *content: Any) -> Any:
        if path.name in names:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(path, *content)

    return replace


@pytest.mark.torch
def test_a_full_disk_at_the_end_costs_no_table(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner_core.output.runfolder.replace_json", full(replace_json, "summary.json"))
    monkeypatch.setattr("runner_core.output.report.replace_text", full(replace_text, "report.html"))
    assert main(SHORT) == 2
    said = capsys.readouterr().out
    assert "run/summary.json cannot be written: No space left on device" in said
    assert "run/report.html cannot be written: No space left on device" in said
    assert "whole records" in said
    assert list((here / "run" / "checkpoints").glob("step-*"))


@pytest.mark.torch
def test_a_full_disk_that_takes_no_checkpoint_says_what_is_there(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said to be kept that is not, and no file is said twice to be missing."""

    def no_room(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("runner_core.engines.torch.checkpoint.SafetensorsFormat.write", no_room)
    monkeypatch.setattr("runner_core.output.runfolder.replace_json", full(replace_json, "summary.json"))
    monkeypatch.setattr("runner_core.output.report.replace_text", full(replace_text, "report.html"))
    assert main(SHORT) == 2
    said = capsys.readouterr()
    assert "free some space there. There is no earlier checkpoint\n" in said.out
    assert not any(untrue in said.out + said.err for untrue in ("is kept", "goes on", "checkpoint.keep"))
    assert said.out.count("summary.json cannot be written") == 1
    last = said.err.splitlines()[-1]
    there = "config.yaml, contents.json, log.jsonl, split.yaml, starts.jsonl, train.log"
    assert last == f"run lacks report.html, summary.json; it has {there}"


@pytest.mark.torch
def test_a_full_disk_at_the_start_is_bad_input(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for function, name in (
        ("plugins.settings.replace_text", "config.yaml"),
        ("training.seen.whole_file", "split.yaml"),
    ):
        with monkeypatch.context() as patch:
            own: Any = replace_text if function.endswith("replace_text") else whole_file
            patch.setattr(f"runner_core.{function}", full(own, name))
            assert main(SHORT) == 2
        assert f"run/{name} cannot be written: No space left on device" in capsys.readouterr().err
        assert not (here / "run").exists()


@pytest.mark.torch
def test_errors_while_scoring_are_said_and_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy  # type: ignore[import-not-found]

    def unreadable(self: Any, cropped: Any) -> Any:
        raise BadInput(f"{cropped.record.key}: no baseline")

    monkeypatch.setattr(Toy, "baseline", unreadable)
    assert main(SHORT) == 0
    errors = json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))["scoring_errors"]
    assert len(errors) == 2
    said = capsys.readouterr().out
    assert all(f"not scored: {error}" in said for error in errors)


@pytest.mark.torch
def test_a_training_that_was_in_vain_is_not_called_healthy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--train.learning-rate", "1e-9"]) == 0
    (finding,) = [f for f in read_summary(here)["health"] if f["rule"] == "trivial baseline"]
    assert "no better than the trivial baseline" in finding["message"]
    assert f"WARNING: trivial baseline: {finding['message']}" in capsys.readouterr().out
    assert "the trained network scores error" in (here / "run" / "report.html").read_text(encoding="utf-8")
    assert '"trivial baseline"' in (here / "run" / "log.jsonl").read_text(encoding="utf-8")


def read_summary(here: Path) -> Any:
    return json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.torch
@pytest.mark.parametrize(
    "interruption, code", [(KeyboardInterrupt(), 130), (_Terminated(143), 143), (_Terminated(140), 140)]
)
def test_an_interruption_while_scoring_is_on_record(
    interruption: BaseException,
    code: int,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*args: Any, **more: Any) -> Any:
        raise interruption

    monkeypatch.setattr("runner_core.cli.train_scoring.evaluate", interrupted)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(SHORT))
    assert ended.value.code == code
    summary = json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "done"
    assert summary["metrics"]
    assert summary["reason"] == "scoring did not finish; `runner toy evaluate run` scores the records"
    assert summary["scoring_errors"] == [summary["reason"]]
    assert "the training is saved, its scores are not" in capsys.readouterr().err
    assert "scoring did not finish" in (here / "run" / "report.html").read_text(encoding="utf-8")


def test_a_full_disk_in_any_command_is_bad_input(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dump(config: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "settings.yaml")

    monkeypatch.setattr("runner_core.cli.small.dump", dump)
    assert main(["toy", "config"]) == 2
    assert "the disk is full: settings.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 29.8 GiB for an array"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10800000000 bytes"),
    ],
)
def test_a_full_memory_in_any_command_is_bad_input(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def dump(config: Any) -> str:
        raise error

    monkeypatch.setattr("runner_core.cli.small.dump", dump)
    assert main(["toy", "config"]) == 2
    assert f"there is not enough memory ({error})" in capsys.readouterr().err


@pytest.mark.torch
def test_a_training_of_which_nothing_could_be_saved_says_why(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(self: Any, *args: Any) -> Any:
        raise OutOfSpace("no space left to save the checkpoint")

    monkeypatch.setattr("runner_core.training.checkpoints.Checkpoints.save", save)
    assert main(SHORT) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "runner: nothing of this training could be kept: no space left to save the checkpoint"
    assert json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))["status"] == "failed"
    end = json.loads((here / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert (end["event"], end["status"]) == ("end", "failed")


@pytest.mark.torch
def test_without_validation_train_and_check_say_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (SHORT, ["toy", "check"]):
        assert main([*words, "--data.split", "none"]) == 0
        assert "Nothing validated" in (here / "run" / "report.html").read_text(encoding="utf-8")
        said = capsys.readouterr().out
        assert "NOTE: there are no validation records" in said
        assert "no record is scored" in said


def test_without_validation_a_project_may_score_what_is_trained_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    monkeypatch.setattr(Toy, "judging", declare(Toy, "judging", scored=lambda self, splits: splits["train"][:3]))
    assert main(["toy", "check", "--data.split", "none"]) == 0
    said = capsys.readouterr().out
    assert "3 of the 3 records scored at the end are training records" in said
    assert "no record is scored" not in said


def test_steps_at_once_are_not_for_torch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main([*SHORT, "--train.steps-per-execution", "2"]) == 2
    assert "train.steps_per_execution is for Keras" in capsys.readouterr().err
    assert not (here / "run").exists()


def test_a_keras_backend_that_is_none_is_bad_input(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy

    monkeypatch.setattr(Toy, "framework", "keras")
    monkeypatch.setenv("KERAS_BACKEND", "foo")
    assert main(SHORT) == 2
    assert "KERAS_BACKEND is foo: set it to tensorflow (the default) or jax" in capsys.readouterr().err
    assert not (here / "run").exists()


@pytest.mark.parametrize("hook", ["runner_engine", "runner_checkpoint"])
def test_a_framework_that_is_missing_is_bad_input(hook: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
from types import SimpleNamespace
from runner_core.config import RunConfig
from runner_core.plugins.defaults import {hook}
{hook}(SimpleNamespace(name="toy", framework="torch"), RunConfig())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BadInput: project toy needs torch, which is not installed" in done.stderr


def test_the_folder_of_caches_has_another_name_outside_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "--cache.dir", "x"]) == 2
    assert "name the folder with --dir here" in capsys.readouterr().err


def test_a_folder_without_permission_is_bad_input(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*args: Any) -> Any:  # the tests may run as root, whom permissions do not stop
        raise PermissionError(errno.EACCES, "Permission denied", "run/report.html")

    monkeypatch.setattr("runner_core.cli.small.dump", forbidden)
    assert main(["toy", "config"]) == 2
    assert "run/report.html: Permission denied; change its permissions" in capsys.readouterr().err


@pytest.mark.torch
def test_an_error_in_a_projects_code_names_the_place(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import toy_project

    monkeypatch.setattr(np, "clip", np.concatenate)  # which takes no such arguments
    assert main(SHORT) == 1
    said = capsys.readouterr().err
    assert "unexpected TypeError" in said
    line = next(n for n, text in enumerate(inspect.getsource(toy_project).splitlines(), 1) if "np.clip(decoded" in text)
    assert f"in project/toy_project.py, line {line}, `prepare`, which is not runner's own code" in said
    assert place_of(KeyError("never raised")) is None


def test_a_traceback_that_no_file_takes_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", nowhere)
    message = describe(ValueError("what went wrong"))
    assert "unexpected ValueError: what went wrong" in message
    assert "No space left on device" in message


def test_evaluate_uses_the_split_of_the_training(trained: Path, runner: Runner, tmp_path: Path) -> None:
    sides = yaml.safe_load((trained / "split.yaml").read_text(encoding="utf-8"))
    assert {len(sides["train"]), len(sides["validation"])} == {12, 3}  # records and their groups
    runner("toy", "phantom", "data")
    for name in ("a.npy", "a_mask.npy"):  # groups that are new since: a split computed anew would be another
        for group in ("n1", "n2", "n3"):
            shutil.copy(tmp_path / "data" / f"p0_{name}", tmp_path / "data" / f"{group}_{name}")
    words = ["toy", "evaluate", trained, "--data", "data"]
    done = runner(*words, "--split", "validation", "--out", "scores")
    assert done.returncode == 0, done.stderr
    assert "3 records came after training" in done.stdout
    assert "trained on" not in done.stdout
    rows = json.loads((tmp_path / "scores" / "scores.json").read_text(encoding="utf-8"))["records"]
    assert {row["group"] for row in rows} | {row["record"] for row in rows} == set(sides["validation"])

    done = runner(*words, "--out", "all")
    assert "8 of these 13 records (or others of their groups) were trained on" in done.stdout
    rows = json.loads((tmp_path / "all" / "scores.json").read_text(encoding="utf-8"))["records"]
    assert {row["record"] for row in rows if row["trained_on"]} <= set(sides["train"])

    done = runner("toy", "evaluate", trained, "--data.split", "group:p0")
    assert done.returncode == 2
    assert "data.split: the run has 'auto', you asked for 'group:p0'" in done.stderr
    again = runner("toy", "check", "--data", "data", "--data.split", trained / "split.yaml")
    assert again.returncode == 0, again.stdout  # the file is of the kind that data.split takes
