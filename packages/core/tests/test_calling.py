"""How messages call runner again: as the user did."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runner_core.base.calling import adds_extra

PRINTS = f"#!{sys.executable}\nfrom runner_core.base.calling import runner\nprint(runner())\n"


def test_an_extra_is_added_by_its_own_packages_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ("a>=1", "b!=2.9,>=2; extra == 'two'", "c; (sys_platform == 'linux') and extra == 'two'", "d; extra == 'd'")
    info = tmp_path / "runner_core-9.dist-info"
    info.mkdir()
    lines = ("Metadata-Version: 2.1", "Name: runner-core", "Version: 9", *(f"Requires-Dist: {need}" for need in needs))
    (info / "METADATA").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert adds_extra("two") == "uv pip install 'b!=2.9,>=2' c"
    assert adds_extra("d") == "uv pip install d"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program `my bin/runner` that prints how it was called."""
    script = tmp_path / "my bin" / "runner"
    script.parent.mkdir()
    script.write_text(PRINTS)
    script.chmod(0o755)
    return tmp_path


def said(folder: Path, command: str, path: str = "") -> str:
    here = os.path.dirname(sys.executable)  # has a `runner` of its own, which `uv run pytest` puts onto the PATH
    folders = [path, *(place for place in os.get_exec_path() if place != here)]
    env = {**os.environ, "PATH": os.pathsep.join(filter(None, folders))}
    for name in ("UV_RUN_RECURSION_DEPTH", "VIRTUAL_ENV"):
        env.pop(name, None)
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=env, text=True, capture_output=True, check=True
    ).stdout.strip()


def test_a_path_is_repeated_and_a_program_on_the_path_is_named(folder: Path) -> None:
    assert said(folder, "'my bin/runner' toy train") == "'my bin/runner'"
    bin_folder = str(folder / "my bin")
    assert said(folder, "runner toy train", bin_folder) == "runner"
    assert said(folder, "'my bin/runner'", bin_folder) == "runner"
    assert said(folder, f"{shlex.quote(sys.executable)} 'my bin/runner'") == "'my bin/runner'"
    other = folder / "other" / "runner"
    other.parent.mkdir()
    shutil.copy2(folder / "my bin" / "runner", other)
    assert said(folder, "'my bin/runner'", str(other.parent)) == "'my bin/runner'", "the one on the PATH is another"


def test_processes_that_a_process_starts_repeat_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from runner_core.cli import launch

    (program := tmp_path / "runner").touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "toy", "train"])
    monkeypatch.setattr(launch, "_CODE", "from runner_core.base.calling import runner; print(runner())")
    assert launch.launch(["toy", "train"], 2, 5.0) == 0
    assert capfd.readouterr().out.split() == [str(program)] * 2


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_uv_run_is_repeated_with_its_options(folder: Path) -> None:
    path = str(folder / "my bin")
    # the last `runner` is an argument; the one before it is the program
    for options in ("", "--offline "):
        line = f"uv run {options}--no-project runner"
        assert said(folder, f"{line} runner train --data 'a b'", path) == line
    assert said(folder, "uv run --no-project sh -c 'runner; true'", path) == "runner"
