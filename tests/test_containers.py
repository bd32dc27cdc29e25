"""The recipes for Docker and Apptainer install a project by one script, with the lines that the README gives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from workspace import ROOT

CONTAINERS = ROOT / "containers"
INSTALL = CONTAINERS / "install.sh"


def install(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script in `folder`, with a uv that writes down its words and makes an environment."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "uv").write_text('#!/bin/sh\necho "$@" >>"$LOG"\n')
    (tools / "uv").chmod(0o755)
    (folder / "packages" / "brainunet" / "src").mkdir(parents=True, exist_ok=True)
    (folder / "packages" / "openkbp" / "src").mkdir(parents=True, exist_ok=True)
    target = folder / "target"
    (target / "lib").mkdir(parents=True, exist_ok=True)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "LOG": str(folder / "log")}
    command = ["sh", str(INSTALL), *words, str(target)]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "words,asked",
    [
        (("brainunet", "cpu"), "./packages/core ./packages/brainunet --torch-backend cpu"),
        (("openkbp", "cpu"), "./packages/core ./packages/openkbp --overrides packages/openkbp/cpu.txt tensorflow-cpu"),
        (("brainunet", "cuda"), "sync -q --locked --no-default-groups --no-editable --package runner-brainunet"),
    ],
)
def test_the_script_asks_for_the_project_and_its_framework(words: tuple[str, str], asked: str, tmp_path: Path) -> None:
    done = install(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert asked in (tmp_path / "log").read_text()


def test_the_lines_without_cuda_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    script = INSTALL.read_text()
    for options in ("--torch-backend cpu", "--overrides packages/openkbp/cpu.txt"):
        assert options in readme
        assert options in script


@pytest.mark.parametrize("words", [("brainnet", "cpu"), ("brainunet", "gpu")])
def test_unknown_words_are_refused(words: tuple[str, str], tmp_path: Path) -> None:
    done = install(tmp_path, *words)
    assert done.returncode == 2
    assert done.stdout.strip()


def test_everything_that_the_build_copies_is_let_through() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in kept), kept
    assert {"pyproject.toml", "uv.lock", "README.md", "packages", "containers/install.sh"} <= set(kept)


def test_both_recipes_call_the_script_with_the_same_uv() -> None:
    recipes = [(CONTAINERS / name).read_text() for name in ("Dockerfile", "runner.def")]
    assert all("sh containers/install.sh" in recipe for recipe in recipes)
    assert len({version for recipe in recipes for version in re.findall(r"uv==([\d.]+)", recipe)}) == 1
