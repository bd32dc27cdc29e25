"""The command line in subprocesses: the main flows, and every bad input a user can give it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

Runner = Callable[..., subprocess.CompletedProcess[str]]
Launch = Callable[..., subprocess.Popen[str]]
PROJECT, EXTENSION = (Path(__file__).parent / "toy" / name for name in ("project", "extension"))
SUMMARY = {
    *("project", "preset", "data", "status", "epochs", "steps", "metrics", "samples_per_second", "data_wait_share"),
    *("peak_memory_bytes", "wall_seconds", "versions", "scores", "baseline", "health"),
}


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, one message with these parts on stderr, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("runner: ") <= 1 or "╭" in done.stderr


@pytest.mark.torch
def test_the_first_lines_are_short_and_the_log_has_every_setting(trained: Path) -> None:
    said, log = (trained / "stdout").read_text(encoding="utf-8"), (trained / "train.log").read_text(encoding="utf-8")
    (line,) = (line for line in said.splitlines() if line.startswith("differs from the preset default in: "))
    listed = re.findall(r"  setting ([\w.]+ \S+ \(default \S+\))", log)
    assert len(line) < 150
    assert listed[0] in line
    assert line.count(" (default ") < len(listed)
    assert "setting " not in said


# ---------------------------------------------------------------- what is installed


def test_the_overview_names_what_is_installed_and_what_to_type(runner: Runner) -> None:
    for words in ([], ["--help"], ["-h"]):
        done = runner(*words)
        assert done.returncode == 0
        for part in ("toy", "Bright discs in noise", "runner list", "runner doctor", " train --data DIR"):
            assert part in done.stdout


def test_the_overview_imports_nothing_heavy(runner: Runner) -> None:
    for words in ([], ["--help"], ["list"], ["toy"], ["toy", "--help"]):
        done = runner(*words, PYTHONPROFILEIMPORTTIME="1")
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "runner_core.plugins.discovery" in imported
        assert not imported & {"numpy", "rich", "yaml", "tyro", "pluggy", "torch", "argparse", "toy_project"}


@pytest.mark.torch
def test_a_kept_phantom_that_is_refused_names_the_way_out(runner: Runner, tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "phantoms" / "toy" / "version-1"
    kept.mkdir(parents=True)
    words, hint = ("--cache.dir", "cache"), f"the generated phantom kept in {kept}: if `phantom` was changed, raise"
    refused(runner("toy", "check", *words), "no toy data here", hint)
    for group in "abc":
        (kept / f"{group}_a.npy").write_bytes(b"of an older version")
    refused(runner("toy", "train", *words), "a_a.npy: not a whole .npy file", hint)
    named = runner("toy", "train", "--data", kept, *words)
    refused(named, "a_a.npy: not a whole .npy file")
    assert hint not in named.stderr, "it is somebody's data"


def test_a_word_that_is_no_command_gets_a_hint(runner: Runner) -> None:
    refused(runner("tooy", "train"), "no project or command 'tooy'", "did you mean 'toy'")
    refused(runner("kidneys", "train"), "installed projects: ", "runner new kidneys` writes one of your own")
    refused(runner("./kid neys", "train"), "installed projects: ", "runner new NAME` writes one of your own")
    refused(runner("toy", "trian"), "did you mean 'train'")
    refused(runner("--nonsense"), "unknown option")
    refused(runner("--versio"), "did you mean '--version'")
    for word in ("train", "trian"):
        refused(runner(word), f"no project or command {word!r}; did you mean `runner PROJECT train`?")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("doctor --jsn", "--json"),
        ("list --hoks", "--hooks"),
        ("cache lst", "list"),
        ("cache prune --older-then-days 3", "--older-than-days"),
        ("new cells --framework kears", "keras"),
        ("new cells --framwork=keras", "--framework"),
        ("compare a b --ot=c", "--out"),
        ("toy report run --debgu", "--debug"),
        ("toy train --epohcs 3", "--epochs"),
    ],
)
def test_a_mistyped_option_or_choice_gets_a_hint(runner: Runner, words: str, meant: str) -> None:
    refused(runner(*words.split()), f"; did you mean '{meant}'?")


def test_debug_shows_the_traceback(runner: Runner) -> None:
    done = runner("toy", "config", "--data", "missing", "--debug")
    assert "Traceback" in done.stderr
    assert "BadInput: missing" in done.stderr


def test_version(runner: Runner) -> None:
    assert runner("--version").stdout.startswith("runner 0.")


@pytest.mark.parametrize(
    "words, unbuffered, code, said",
    [
        ("list 2>err | true", "1", 0, ""),
        ("list 2>err | true", "", 0, ""),
        ("list 2>err >/dev/full", "1", 2, "No space left on device"),
        ("list 2>err >/dev/full", "", 2, "No space left on device"),
        ("list 2>err >&-", "", 2, "the standard output is closed"),
        ("list --json 2>err >&-", "", 2, "the standard output is closed"),
        ("list >out 2>&-", "", 0, ""),
        ("config >out 2>&-", "", 2, ""),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, words: str, unbuffered: str, code: int, said: str) -> None:
    """A pipe that nobody reads is no error."""
    console = Path(sys.executable).with_name("runner")
    script = f"{console} {words}; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{code}\n"
    lines = (tmp_path / "err").read_text().splitlines() if "2>err" in words else []
    assert len(lines) == bool(said)
    assert said in "".join(lines)


# ---------------------------------------------------------------- settings


def test_config_prints_settings_that_config_accepts(runner: Runner, tmp_path: Path) -> None:
    first = runner("toy", "config", "--preset", "default", "--train.batch-size", "5")
    (tmp_path / "s.yaml").write_text(first.stdout, encoding="utf-8")
    again = runner("toy", "config", "--config", "s.yaml")
    assert yaml.safe_load(again.stdout) == yaml.safe_load(first.stdout)
    assert yaml.safe_load(again.stdout)["preset"] == "default"  # although it is for the phantom
    assert yaml.safe_load(first.stdout)["train"]["batch_size"] == 5


def test_flags_win_over_the_file_and_the_file_over_the_preset(runner: Runner, tmp_path: Path) -> None:
    text = "preset: default\ntrain: {epochs: 7, batch_size: 6}\n"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    done = yaml.safe_load(runner("toy", "config", "--config", "s.yaml", "--train.epochs", "9").stdout)
    assert (done["train"]["epochs"], done["train"]["batch_size"]) == (9, 6)
    assert done["model"]["width"] == 8  # of the preset that the file names; demo has 4


def test_help_lists_every_setting_with_its_default(runner: Runner) -> None:
    done = runner("toy", "train", "--help-all")
    assert done.returncode == 0
    for part in (
        "--train.batch-size INT ≥1",
        "--train.clip {None}|FLOAT >0",
        "(default: 8)",
        "--model.width",
        "Channels of the hidden layers",
        "--resume",
    ):
        assert part in done.stdout, part


def test_help_shows_the_common_settings_and_counts_the_others(runner: Runner) -> None:
    short, whole = (runner("toy", "train", words).stdout for words in ("--help", "--help-all"))
    of = {shown: set(re.findall(r"│ (--[a-z][\w.-]+)", shown)) for shown in (short, whole)}
    assert of[short] < of[whole]
    for common in ("--resume", "--data.split", "--train.learning-rate", "--precision.mode"):
        assert common in of[short]
    settings = len({flag for flag in of[whole] - of[short] if "." in flag})
    assert f"{settings} more settings: --help-all shows them." in " ".join(short.split())
    assert "--lr = --train.learning-rate" in " ".join(short.split())


def test_help_for_a_trained_network_shows_what_it_takes(runner: Runner) -> None:
    shown = runner("toy", "evaluate", "--help").stdout
    assert "--train.device" in shown
    assert "--train.epochs" not in shown
    assert "--lr" not in shown


def test_help_of_the_phantom_shows_what_it_takes(runner: Runner) -> None:
    shown = runner("toy", "phantom", "--help").stdout
    assert "--seed INT" in shown
    assert "another phantom of the same kind" in shown
    for word in ("--train", "--data.split", "--preset", "--lr", "--help-all", "settings below"):
        assert word not in shown, word


def test_the_usual_words_stand_for_settings(runner: Runner) -> None:
    words = ["--epochs", "3", "--lr=0.5", "--batch_size", "4", "--device", "cpu"]
    train = yaml.safe_load(runner("toy", "config", *words).stdout)["train"]
    assert (train["epochs"], train["learning_rate"], train["batch_size"], train["device"]) == (3, 0.5, 4, "cpu")


def test_help_says_whose_defaults_it_shows(runner: Runner, tmp_path: Path) -> None:
    def shown(*words: str) -> str:
        said = runner("toy", "train", *words, "--help").stdout
        return " ".join(said.split("settings below are those of ")[1].split("╭")[0].split())

    assert shown() == "the preset demo (with --data it is default; --preset NAME shows another's)."
    assert shown("--data", ".").startswith("the preset default (without --data it is demo")
    assert shown("--preset", "default") == "the preset default."
    (tmp_path / "s.yaml").write_text("train: {epochs: 7}", encoding="utf-8")
    assert shown("--config", "s.yaml") == "the preset demo and of s.yaml."


@pytest.mark.parametrize(
    "words, parts",
    [
        (["--train.bach-size", "4"], ["--train.bach-size", "--train.batch-size"]),
        (["--train.batch-size", "many"], ["--train.batch-size", "many"]),
        (["--train.batch-size", "0"], ["train.batch_size must be at least 1"]),
        (["--train.steps-per-epoch", "0"], ["train.steps_per_epoch must be at least 1"]),
        (["--validate.batch-size", "-2"], ["validate.batch_size must be at least 1"]),
        (["--train.learning-rate", "nan"], ["train.learning_rate must be a finite number"]),
        (["--train.clip", "inf"], ["train.clip must be a finite number"]),
        (["--precision.mode", "float8"], ["float8", "bfloat16"]),
        (["--preset", "dmeo"], ["did you mean 'demo'"]),
        (["--preset"], ["--preset"]),
        (["--extension", "nope"], ["no extension 'nope'"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["--data", "missing"], ["missing: there is no such folder"]),
    ],
)
def test_bad_flags_are_refused_with_one_message(words: list[str], parts: list[str], runner: Runner) -> None:
    refused(runner("toy", "config", *words), *parts)


@pytest.mark.parametrize(
    "text, parts",
    [
        ("train: {bach_size: 4}", ["s.yaml", "train.bach_size", "did you mean 'batch_size'"]),
        ("trian: {}", ["s.yaml", "trian", "did you mean 'train'"]),
        ("train: {batch_size: many}", ["s.yaml: train.batch_size must be a whole number, not 'many'"]),
        ("project: brainunet", ["s.yaml: these settings are of project 'brainunet', not 'toy'"]),
        ("train: [", ["s.yaml, line 1, column 9: not valid YAML"]),
    ],
)
def test_a_bad_file_is_refused_by_name_and_key(text: str, parts: list[str], runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    refused(runner("toy", "train", "--config", "s.yaml"), *parts)
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- train


def test_training_on_the_phantom_says_so_and_leaves_a_whole_run(trained: Path) -> None:
    said = (trained / "stdout").read_text(encoding="utf-8")
    for part in ("generated phantom", "train.epochs 3 (default 20)", "model.width 4 (default 8)", "baseline", "dice"):
        assert part in said, part
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) >= SUMMARY
    assert (summary["project"], summary["preset"], summary["data"], summary["status"]) == (
        "toy",
        "demo",
        "phantom",
        "done",
    )
    assert summary["scores"]["dice"] > summary["baseline"]["dice"]
    assert set(summary["metrics"]) >= {"loss", "bce"}
    events = [json.loads(line)["event"] for line in (trained / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert set(events) >= {"start", "train", "validation", "checkpoint", "end", "figure"}
    config = yaml.safe_load((trained / "config.yaml").read_text(encoding="utf-8"))
    assert (config["project"], config["preset"], config["source"]) == ("toy", "demo", "phantom")
    assert config["plugins"] == {"core": summary["versions"]["plugins"]["core"], "project toy": "toy 0.1"}
    for name in ("train.log", "report.html", "scores.csv"):
        assert (trained / name).stat().st_size > 0
    assert len(list((trained / "figures").glob("*.png"))) == 2


def test_a_run_repeats_from_its_config(trained: Path, runner: Runner) -> None:
    done = runner("toy", "config", "--config", trained / "config.yaml")
    saved = yaml.safe_load((trained / "config.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(done.stdout) == {k: v for k, v in saved.items() if k in yaml.safe_load(done.stdout)}


def test_a_run_folder_in_use_or_full_is_refused(trained: Path, runner: Runner, tmp_path: Path) -> None:
    refused(runner("toy", "train", "--run-dir", trained), str(trained), "not empty", "--resume")
    copy = shutil.copytree(trained, tmp_path / "run")
    hold = (
        "import sys, time, pathlib, runner_core.output.runfolder as r\n"
        "with r.RunFolder(pathlib.Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, copy], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    refused(runner("toy", "train", "--resume", copy), str(copy), "another runner is training")
    holder.kill()
    holder.wait()
    holder.stdout.close()


@pytest.mark.torch
def test_unwritable_and_missing_folders_are_named(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    refused(runner("toy", "train", "--run-dir", "file/run"), "file/run", "--run-dir")
    refused(runner("toy", "train", "--run-dir", "/proc/run"), "/proc/run", "--run-dir")
    refused(runner("toy", "train", "--cache.dir", "file/cache"), "file/cache", "--cache.dir")
    (tmp_path / "empty").mkdir()
    refused(runner("toy", "train", "--data", "empty"), "empty: no toy data here")
    assert not list((tmp_path / "runs").glob("toy/*")), "a refused run leaves no folder behind"


@pytest.mark.torch
def test_a_seed_names_the_phantom_and_trainings_keep_theirs(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.cli import main

    def written(folder: str, *words: str) -> dict[str, bytes]:
        assert main(["toy", "phantom", folder, *words]) == 0
        assert ("changes no phantom" in capsys.readouterr().out) == ("--train.seed" in words)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    monkeypatch.chdir(tmp_path)
    kept, other = written("kept", "--train.seed", "7"), written("other", "--seed", "7")
    assert kept == written("zero", "--seed", "0")
    assert kept.keys() == other.keys()
    assert all(kept[name] != other[name] for name in kept)
    assert main(["toy", "phantom", "negative", "--seed", "-1"]) == 2
    assert "the phantom's seed is -1: give 0 or more" in capsys.readouterr().err


@pytest.mark.torch
def test_data_is_refused_before_training_with_every_faulty_record(runner: Runner, tmp_path: Path) -> None:
    assert runner("toy", "phantom", "data").returncode == 0
    refused(runner("toy", "phantom", "data"), "data", "not an empty folder")
    for key in ("p1_a", "p3_b"):
        path = tmp_path / "data" / f"{key}.npy"
        path.write_bytes(path.read_bytes()[:200])
    refused(runner("toy", "train", "--data", "data", "--run-dir", "run"), "p1_a.npy", "p3_b.npy")
    assert not (tmp_path / "run").exists()
    assert runner("toy", "check", "--data", "data").returncode == 2


@pytest.mark.torch
def test_data_on_a_device_that_is_none_is_refused(runner: Runner) -> None:
    done = runner("toy", "train", "--cache.mode", "device", "--train.device", "cpu")
    refused(done, "this run computes on the CPU: use memory")


@pytest.mark.torch
def test_interrupted_before_training_leaves_no_run_behind(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "slow"
    shutil.copytree(PROJECT, script)
    source = (script / "toy_project.py").read_text(encoding="utf-8")
    slow = source.replace("def records(self, root", "def _records(self, root")
    slow = slow.replace(
        "    def inputs(self",
        "    def records(self, root):\n        import time\n        time.sleep(60)\n\n    def inputs(self",
        1,
    )
    (script / "toy_project.py").write_text(slow, encoding="utf-8")
    process = launch("toy", "train", "--run-dir", "run", "--data", ".", installed=(script,))
    limit = time.monotonic() + 300
    while not (tmp_path / "run" / "train.log").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not (tmp_path / "run").exists()


def test_a_terminal_without_the_signs_gets_others(runner: Runner) -> None:
    done = runner("toy", "train", "--help", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_resume_of_a_run_of_another_project_is_refused(trained: Path, runner: Runner, tmp_path: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    text = (copy / "config.yaml").read_text(encoding="utf-8").replace("project: toy", "project: other")
    (copy / "config.yaml").write_text(text, encoding="utf-8")
    for words in (
        ["train", "--resume", copy],
        ["evaluate", copy],
        ["predict", copy, "x", "--out", "y"],
        ["report", copy],
    ):
        refused(runner("toy", *words), "is a run of project 'other', not of 'toy'")


def test_resume_refuses_other_settings_and_leaves_the_run_as_it_was(
    trained: Path, runner: Runner, tmp_path: Path
) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    before = files_of(copy)
    refused(runner("toy", "train", "--resume", copy, "--model.width", "5"), "model.width", "4", "5")
    refused(runner("toy", "train", "--resume", copy, "--preset", "default"), "preset 'demo'")
    refused(runner("toy", "train", "--resume", tmp_path / "nothing"), "no such run folder")
    assert files_of(copy) == before
    refused(runner("toy", "train", "--resume", copy, "--data", "."), "no toy data here")
    assert files_of(copy) == before


def files_of(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return the content of each file, and the time of its last change."""
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 300
    levels = ("checkpoints/step-*", "*/checkpoints/step-*", "*/*/checkpoints/step-*")  # ** enters folders that vanish
    while not any(list(folder.glob(level)) for level in levels):
        assert process.poll() is None, "the run ended before it saved a checkpoint"
        assert time.monotonic() < limit
        time.sleep(0.01)


LONG = ["--train.epochs", "12", "--train.steps-per-epoch", "10", "--train.deterministic"]


def deterministic_log(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k != "timing"} for line in lines if line["event"] != "speed"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_run_resumed_is_the_run_never_killed(launch: Launch, tmp_path: Path) -> None:
    assert launch("toy", "train", "--run-dir", "whole", *LONG).wait(300) == 0
    killed = launch("toy", "train", "--run-dir", "killed", *LONG)
    wait_for_checkpoint(tmp_path / "killed", killed)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed" / "summary.json").exists()
    said = tmp_path / "out"
    assert launch("toy", "train", "--resume", "killed").wait(300) == 0, said.read_text(encoding="utf-8")
    assert "going on from the checkpoint of step" in said.read_text(encoding="utf-8")
    assert deterministic_log(tmp_path / "killed") == deterministic_log(tmp_path / "whole")
    last = "checkpoints/step-00000120/model.safetensors"
    assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "killed" / last).read_bytes()


@pytest.mark.torch
@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_run_after_saving_and_it_says_how_to_go_on(
    number: signal.Signals, code: int, launch: Launch, tmp_path: Path
) -> None:
    process = launch("toy", "train", "--train.epochs", "4000", "--train.steps-per-epoch", "10")
    wait_for_checkpoint(tmp_path / "runs", process)
    process.send_signal(number)
    assert process.wait(60) == code
    (run,) = tmp_path.glob("runs/toy/*")
    said = (tmp_path / "out").read_text(encoding="utf-8")
    assert f"runner toy train --resume runs/toy/{run.name}" in said
    assert "Traceback" not in said
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "stopped"
    assert summary["steps"] > 0


def test_resume_alone_takes_the_latest_run(trained: Path, runner: Runner, tmp_path: Path) -> None:
    refused(runner("toy", "train", "--resume"), "no run of toy")
    shutil.copytree(trained, tmp_path / "runs" / "toy" / "one")
    done = runner("toy", "train", "--resume", "--train.workers", "0")
    assert done.returncode == 0, done.stderr
    assert "continuing runs/toy/one" in done.stdout


@pytest.mark.torch
def test_an_unexpected_error_names_the_file_with_its_traceback(runner: Runner, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(PROJECT, broken)
    source = (broken / "toy_project.py").read_text(encoding="utf-8")
    (broken / "toy_project.py").write_text(source.replace("loss = F.", "loss = F.no_such_"), encoding="utf-8")
    done = runner("toy", "train", "--run-dir", "run", installed=(broken,))
    assert done.returncode == 1
    assert "unexpected AttributeError" in done.stderr
    assert "Traceback" not in done.stderr
    assert "run/train.log" in done.stderr
    assert "no_such_binary" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["status"] == "failed"


@pytest.mark.torch
def test_an_unhealthy_run_exits_with_3(runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "train", "--run-dir", "run", "--train.learning-rate", "1e30", "--train.warmup", "0")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "NaN or infinite" in done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "unhealthy"
    assert "NaN or infinite" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.everywhere
@pytest.mark.torch
def test_a_tracker_that_cannot_work_is_refused_before_the_data_are_read(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    secret = runner("toy", "train", "--data", "data", "--run-dir", "run", "--log.mlflow", "https://token@example.org")
    refused(secret, "log.mlflow holds", "MLFLOW_TRACKING_TOKEN")
    assert "no toy data here" not in secret.stderr
    if not find_spec("mlflow"):
        missing = runner("toy", "train", "--data", "data", "--run-dir", "run", "--log.mlflow", "https://example.org")
        refused(missing, "`uv pip install 'mlflow-skinny>=")
        assert "no toy data here" not in missing.stderr
    words = ("--log.tensorboard",) if find_spec("tensorboard") else ()
    refused(runner("toy", "train", "--data", "data", "--run-dir", "run", *words), "no toy data here")
    assert not (tmp_path / "run").exists(), "a refused run leaves nothing"


@pytest.mark.torch
def test_an_extension_replaces_the_cache_and_adds_a_tracker(runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "train", "--run-dir", "run", installed=(PROJECT, EXTENSION))
    assert done.returncode == 0, done.stderr
    assert "the toy cache is in use" in done.stdout
    counts = json.loads((tmp_path / "run" / "counts.json").read_text(encoding="utf-8"))
    assert counts["start"] == counts["end"] == 1
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert config["plugins"]["extension toyext"] == "toy-extension 0.1"
    missing = runner("toy", "evaluate", "run")
    refused(missing, "trained with the extension 'toyext', which is not installed: install it", "--no-extension toyext")
    assert runner("toy", "evaluate", "run", "--no-extension", "toyext").returncode == 0


@pytest.mark.torch
def test_a_device_that_is_not_there_is_refused_before_any_record_is_prepared(runner: Runner, tmp_path: Path) -> None:
    for asked in ("cuda:999", "gpu"):
        done = runner("toy", "train", "--run-dir", "run", "--device", asked)
        refused(done, "train.device")
        assert "cache (" not in done.stdout
        assert not (tmp_path / "run").exists()
    for command in (("toy", "tune"), ("toy", "ablate"), ("verify-resume", "toy")):
        refused(runner(*command, "--device", "cuda:999"), "train.device cuda:999")
        assert not (tmp_path / "runs").exists()


def test_what_to_type_next_can_be_typed(runner: Runner) -> None:
    done = runner("toy", "phantom", "my data")
    assert done.stdout.endswith("next: runner toy train --data 'my data' --preset demo\n")


# ---------------------------------------------------------------- check


def test_check_lists_every_faulty_record_the_split_and_the_cost(runner: Runner, tmp_path: Path) -> None:
    runner("toy", "phantom", "data")
    good = runner("toy", "check", "--data", "data")
    assert good.returncode == 0
    for part in (
        "10 records in 5 groups",
        "preset default splits them so:\ntrain: 8 records of 4 groups",
        "validation: 2 records of 1 group: ",
        "cache (",
    ):
        assert part in good.stdout, part
    assert "preset demo splits them so:" in runner("toy", "check", "--data", "data", "--preset", "demo").stdout
    np.save(tmp_path / "data" / "p0_a_mask.npy", np.zeros((4, 24, 24), np.uint8))
    warned = runner("toy", "check", "--data", "data")
    assert warned.returncode == 0
    assert "warning  p0_a" in warned.stdout
    np.save(tmp_path / "data" / "p0_b_mask.npy", np.zeros((3, 24, 24), np.uint8))
    (tmp_path / "data" / "p2_a.npy").write_bytes(b"not numpy")
    bad = runner("toy", "check", "--data", "data")
    assert bad.returncode == 2
    assert "error    p0_b" in bad.stdout
    assert "error    p2_a" in bad.stdout
    assert "2 faulty records, 2 errors, 1 warning, 0 notes" in bad.stdout


# ---------------------------------------------------------------- evaluate, predict, export, report


def test_evaluate_scores_with_the_worst_first(trained: Path, runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "evaluate", trained, "--split", "all", "--out", "scores")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "scores" / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    errors = [float(row["error"]) for row in rows]
    assert errors == sorted(errors, reverse=True)
    assert list((tmp_path / "scores").glob("*.png"))
    refused(runner("toy", "evaluate", trained, "--split", "validaton"), "did you mean 'validation'")
    refused(runner("toy", "evaluate", trained, "--split", "test"), "no test records")
    refused(runner("toy", "evaluate", trained, "--model.width", "9"), "model.width")
    refused(runner("toy", "evaluate"), "name the run first")


def test_predict_does_what_it_can_and_names_the_rest(trained: Path, runner: Runner, tmp_path: Path) -> None:
    runner("toy", "phantom", "data")
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    (tmp_path / "data" / "p1_a_mask.npy").unlink()  # labels are not needed
    words = ["data/p1_a.npy", "broken.npy", "missing.npy", "data/p2_b.npy"]
    checkpoint = next(trained.glob("checkpoints/step-*"))
    done = runner("toy", "predict", checkpoint, *words, "--out", "out", "--scaled")
    assert done.returncode == 2
    assert "broken.npy" in done.stderr
    assert "warning: not predicted: missing.npy: there is no such file" in done.stderr
    assert done.stderr.count("runner: ") == 1
    assert "runner: 2 inputs could not be predicted (see above)" in done.stderr
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        f"{key}_{what}.npy" for key in ("p1_a", "p2_b") for what in ("mask", "probability")
    }
    assert np.load(tmp_path / "out" / "p1_a_mask.npy").shape == (4, 24, 24)


def test_parts_of_predict_share_the_inputs(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records one by one; those that the project predicts in blocks are divided by the project, every part of each."""
    from runner_core import BlockWork, InBlocks
    from runner_core.cli import main
    from toy_project import Toy  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    assert main(["toy", "phantom", "data"]) == 0
    keys = sorted(path.stem for path in Path("data").glob("p*.npy") if not path.stem.endswith("_mask"))
    asked: list[tuple[str, tuple[int, int], bool]] = []
    networks: set[str] = set()

    def blocks(work: BlockWork) -> list[Path]:
        networks.add(work.named)
        asked.append((work.record.key, work.part, callable(work.networks[0])))
        return [work.out / "large"]

    combining = Toy.combining

    def declared(self: Any) -> Any:
        return replace(combining(self), in_blocks=InBlocks(lambda record: record.key == keys[0], blocks))

    monkeypatch.setattr(Toy, "combining", declared)
    for part in ("1/2", "2/2"):
        inputs = [f"data/{key}.npy" for key in keys]
        assert main(["toy", "predict", str(trained), *inputs, "--out", f"out{part[0]}", "--part", part]) == 0
    found = [{path.name.removesuffix("_mask.npy") for path in Path(f"out{n}").glob("*_mask.npy")} for n in (1, 2)]
    assert found == [set(keys[1::2]), set(keys[2::2])]
    assert asked == [(keys[0], (1, 2), True), (keys[0], (2, 2), True)]
    manifests = [json.loads(path.read_text()) for path in trained.rglob("manifest.json")]
    named = {f"{trained.name}/step-{found['step']:08d} ({found['checksum']})" for found in manifests}
    assert len(networks) == 1
    assert networks <= named
    capsys.readouterr()
    assert main(["toy", "predict", str(trained), inputs[0], "--out", "out3", "--part", "3/2"]) == 2
    assert "--part is '3/2'; write i/n" in capsys.readouterr().err


@pytest.mark.parametrize("written", [None, "p1_a_mask.npy", ["p1_a_mask.npy"]])
def test_write_says_which_files_it_wrote(
    written: Any,
    toy: None,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from runner_core.cli import main
    from toy_project import Toy  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Toy, "write", lambda self, record, prediction, out: written)
    assert main(["toy", "phantom", "data"]) == 0
    assert main(["toy", "predict", str(trained), "data/p1_a.npy", "--out", "out"]) == 2
    assert f"project toy: `write` must return the files that it wrote, a list of Path, not {written!r}" in (
        capsys.readouterr().err
    )


def test_predict_collects_where_the_project_does(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.cli import main
    from toy_project import Toy, declare  # type: ignore[import-not-found]

    def collect(self: Any, files: Sequence[Path], out: Path) -> list[Path]:
        assert all(file.parent == Path("out") for file in files)
        np.save(out / "all.npy", np.stack([np.load(file) for file in files]), allow_pickle=False)
        return [out / "all.npy"]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Toy, "judging", declare(Toy, "judging", collect=collect))
    assert main(["toy", "phantom", "data"]) == 0
    inputs = ["data/p1_a.npy", "data/gone.npy", "data/p2_a.npy"]
    assert main(["toy", "predict", str(trained), *inputs, "--out", "out"]) == 2
    assert [file.name for file in Path("out").iterdir()] == ["all.npy"]
    assert len(np.load("out/all.npy")) == 2
    assert f"written: {Path('out/all.npy')}" in capsys.readouterr().out


def test_an_image_that_looks_like_a_mask_is_left_out_and_named_twice_unless_the_user_names_it(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core import PairFiles
    from runner_core.cli import main
    from toy_project import Toy  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    pairs = PairFiles(lambda path: True, lambda path: path.stem)
    monkeypatch.setattr(Toy, "dataset", replace(Toy.dataset, pairs=pairs))
    assert main(["toy", "phantom", "data"]) == 0
    odd = tmp_path / "data" / "p1_a.npy"
    np.save(odd, (np.load(odd) > 0).astype(np.float32), allow_pickle=False)
    assert main(["toy", "predict", str(trained), "data", "--out", "out"]) == 0
    printed = capsys.readouterr()
    assert f"note: left out: {odd} holds only a few whole numbers" in printed.out
    assert "note: 1 file of 10 left out as masks (see above)" in printed.err
    assert not [*Path("out").glob("p1_a*")]
    assert main(["toy", "predict", str(trained), "data", str(odd), "--out", "both"]) == 0
    assert "left out" not in "".join(capsys.readouterr())
    assert [*Path("both").glob("p1_a*")]


def test_predict_and_evaluate_say_what_a_project_remarks(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core import Finding
    from runner_core.cli import main
    from toy_project import Toy, declare  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    remarks = [Finding("seen", "warning", "look at it")]
    declared = declare(Toy, "checks", prediction=lambda self, record, prediction: remarks)
    monkeypatch.setattr(Toy, "checks", declared)
    run = shutil.copytree(trained, tmp_path / "copy")
    assert main(["toy", "phantom", "data"]) == 0
    assert main(["toy", "predict", str(run), "data/p1_a.npy", "--out", "out"]) == 0
    assert "warning: p1_a: look at it" in capsys.readouterr().out
    assert main(["toy", "evaluate", str(run)]) == 0
    assert capsys.readouterr().out.count("look at it") == 2
    assert "look at it" in (run / "report.html").read_text(encoding="utf-8")


def test_predict_writes_the_tables_of_labels_if_asked(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core import Label
    from runner_core.cli import main
    from toy_project import Toy, declare  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "predict", str(trained), "data/p1_a.npy", "--out", "out"]
    capsys.readouterr()
    assert main([*words, "--label-tables"]) == 2
    assert "--label-tables: toy names no labels" in capsys.readouterr().err
    assert not Path("out").exists()
    monkeypatch.setattr(Toy, "pictures", declare(Toy, "pictures", labels=(Label(1, "square", (9, 8, 7)),)))
    assert main(words) == 0
    assert not list(Path("out").glob("labels*"))
    assert main([*words, "--label-tables"]) == 0
    assert '   9    8    7        1  1  1    "square"' in Path("out/labels_itksnap.txt").read_text()
    assert "1 square 9 8 7 255" in Path("out/labels_slicer.ctbl").read_text()


def test_the_network_is_there_when_records_are_looked_for(
    toy: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statistics may say which: those of the channels that it was trained with, say."""
    from runner_core.cli import main
    from toy_project import Toy  # type: ignore[import-not-found]

    called: list[str] = []

    def told(name: str) -> None:
        plain = getattr(Toy, name)
        monkeypatch.setattr(Toy, name, lambda self, given: called.append(name) or plain(self, given))

    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained, tmp_path / "copy")
    assert main(["toy", "phantom", "data"]) == 0
    for name in ("model", "records"):
        told(name)
    assert main(["toy", "predict", str(run), "data", "--out", "out"]) == 0
    assert main(["toy", "evaluate", str(run)]) == 0
    assert called == ["model", "records"] * 2


def test_predictions_never_overwrite_each_other_or_the_inputs(trained: Path, runner: Runner, tmp_path: Path) -> None:
    runner("toy", "phantom", "data")
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    before = (tmp_path / "data" / "p1_a_mask.npy").read_bytes()
    refused(runner("toy", "predict", trained, "data/p1_a.npy", "--out", "data"), "output folder")
    assert (tmp_path / "data" / "p1_a_mask.npy").read_bytes() == before
    done = runner("toy", "predict", trained, "data/p1_a.npy", "other/p1_a.npy", "--out", "out")
    assert done.returncode == 2
    assert "other/p1_a.npy has the same name as" in done.stderr
    refused(runner("toy", "predict", trained, "--out", "out"), "name the files")


def test_export_writes_the_network(trained: Path, runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "export", trained, "--out", "net")
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "net").iterdir())
    refused(runner("toy", "export", trained, "--out", "net"), "not an empty folder")


def test_a_damaged_checkpoint_is_passed_over_and_one_of_another_project_refused(
    trained: Path, runner: Runner, tmp_path: Path
) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    newest = max(copy.glob("checkpoints/step-*"))
    with (newest / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x5a")
    done = runner("toy", "export", copy, "--out", "net")
    assert done.returncode == 0, done.stderr
    assert newest.name in done.stdout  # named as damaged
    assert "damaged" in done.stdout
    refused(runner("toy", "export", newest, "--out", "net2"), newest.name, "was changed after it was written")


def test_report_is_written_anew(trained: Path, runner: Runner, tmp_path: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    (copy / "report.html").unlink()
    done = runner("toy", "report", copy)
    assert done.returncode == 0, done.stderr
    assert "data:image/png;base64," in (copy / "report.html").read_text(encoding="utf-8")
    assert runner("toy", "report").returncode == 2


# ---------------------------------------------------------------- cache


@pytest.mark.torch
def test_caches_are_listed_verified_and_pruned(runner: Runner, tmp_path: Path) -> None:
    runner("toy", "phantom", "data")
    words = [
        "--data",
        "data",
        "--preset",
        "demo",
        "--train.epochs",
        "1",
        "--train.steps-per-epoch",
        "2",
        "--cache.dir",
        "cache",
    ]
    assert runner("toy", "train", *words).returncode == 0
    assert "1 cache, " in runner("cache", "list", "--dir", "cache").stdout
    assert runner("cache", "verify", "--dir", "cache").returncode == 0
    largest = max((p for p in (tmp_path / "cache").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[100] ^= 1
    largest.write_bytes(data)
    damaged = runner("cache", "verify", "--dir", "cache")
    assert damaged.returncode == 2
    assert "DAMAGED" in damaged.stdout
    assert "1 cache removed" in runner("cache", "prune", "--all", "--dir", "cache").stdout
    assert "0 caches" in runner("cache", "list", "--dir", "cache").stdout
    for command in ("list", "verify", "prune"):
        refused(runner("cache", command, "--dir", "nowhere"), "nowhere: there is no such folder")
