"""`runner completion`: what the shells themselves complete with the scripts, and that no framework is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Runner = Callable[..., CompletedProcess[str]]
TOY = Path(__file__).parent / "toy" / "project"

BASH = """
eval "$(runner completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'runner completion fish | source; complete -C "$argv"'


def shell(cache_home: Path, folder: Path, *words: str) -> list[str]:
    """The lines that a shell prints; `runner` is the one under test, and the toy is installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(TOY), "XDG_CACHE_HOME": str(cache_home)}
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, timeout=60, check=False)
    assert not done.stderr
    return done.stdout.splitlines()


def answer(done: CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["older", "my run"]):
        run = tmp_path / "runs" / "toy" / name
        (run / "checkpoints").mkdir(parents=True)
        (run / "config.yaml").touch()
        os.utime(run / "config.yaml", (number, number))
    (tmp_path / "scans").mkdir()
    (tmp_path / "settings.yaml").touch()
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash(cache_home: Path, folder: Path) -> None:
    def completed(*words: str) -> list[str]:
        return shell(cache_home, folder, "bash", "--norc", "-c", BASH, "bash", "runner", *words)

    assert completed("toy", "train", "--preset", "=", "d") == ["default", "demo"]
    newest, older, *folders = completed("toy", "evaluate", "")
    assert (newest, older, set(folders)) == ("runs/toy/my run", "runs/toy/older", {"runs", "scans"})
    assert completed("toy", "train", "--config", "se") == ["settings.yaml"]


@pytest.mark.skipif(shutil.which("bash") is None or shutil.which("uv") is None, reason="bash or uv is not installed")
def test_bash_with_uv_run(cache_home: Path, folder: Path) -> None:
    """uv's own completion, if it is loaded before, still completes uv's words."""
    own = "_uv() { COMPREPLY=(sync); }; complete -F _uv uv\n"

    def completed(*words: str, before: str = own) -> list[str]:
        return shell(cache_home, folder, "bash", "--norc", "-c", before + BASH, "bash", "uv", *words)

    assert completed("run", "--offline", "runner", "toy", "train", "--preset", "=", "d") == ["default", "demo"]
    assert completed("run", "runner", "toy", "train", "--config", "se") == ["settings.yaml"]
    assert completed("s") == ["sync"]
    assert completed("s", before="") == [""]
    assert not (folder / ".venv").exists()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(cache_home: Path, folder: Path) -> None:
    def completed(line: str) -> list[str]:
        return shell(cache_home, folder, "fish", "--no-config", "-c", FISH, line)

    assert completed("runner toy train --preset=d") == ["--preset=default", "--preset=demo"]
    assert "--epochs\tshort for --train.epochs" in completed("runner toy train --e")
    assert completed("runner toy train --data sc") == ["scans/"]
    if shutil.which("uv") is not None:
        assert "evaluate" in [line.partition("\t")[0] for line in completed("uv run --offline runner toy ev")]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_the_script_for_zsh_can_be_read(cache_home: Path, folder: Path) -> None:
    shell(cache_home, folder, "zsh", "-f", "-c", 'compdef() { }; eval "$(runner completion zsh)"')


def test_commands_values_and_flags(runner: Runner, folder: Path) -> None:
    def completed(*words: str) -> list[str]:
        return answer(runner("completion", "words", *words))

    assert {"toy", "doctor", "completion", "--version"} < set(completed(""))
    assert completed("toy", "ev") == ["none", "evaluate"]
    assert completed("toy", "train", "--precision.mode", "b") == ["none", "bfloat16"]
    assert completed("toy", "train", "--precision", "fl") == ["none", "float32", "float16"]
    assert completed("compare", "runs/toy/o") == ["folders", "runs/toy/older"]
    assert completed("verify-resume", "toy", "--kil") == ["none", "--kills"]
    assert completed("cache", "") == ["none", "list", "verify", "prune"]
    assert completed("new", "mine", "--framework", "") == ["none", "torch", "keras"]
    assert "--hooks" in completed("list", "--")
    assert completed("nothing", "") == []
    refused = runner("completion", "bsh")
    assert (refused.returncode, "did you mean 'bash'" in refused.stderr) == (2, True)


def test_no_framework_is_imported_and_no_project_for_a_value(runner: Runner) -> None:
    frameworks = {"torch", "tensorflow", "keras", "jax"}
    for words, project in ((["--"], True), (["--data", ""], False)):
        done = runner("completion", "words", "toy", "train", *words, PYTHONPROFILEIMPORTTIME="1")
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert not imported & frameworks
        assert ("runner_core.plugins.manager" in imported) is project
