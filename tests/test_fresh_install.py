"""One project in a fresh environment, as its users install it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from workspace import ROOT


def run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")} | environment
    return subprocess.run(list(map(str, words)), cwd=cwd, env=env, text=True, capture_output=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The committed and uncommitted files that git would track, in a folder of their own."""
    if shutil.which("uv") is None or not (ROOT / ".git").exists():
        pytest.skip("needs uv and a git checkout")
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.split("\0")
    folder = tmp_path / "clone"
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment and runner's caches of this test alone; uv's own downloads are shared."""
    uv_cache = os.environ.get("UV_CACHE_DIR") or run("uv", "cache", "dir", cwd=ROOT).stdout.strip()
    return {
        "UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "UV_CACHE_DIR": uv_cache,
    }


NEUTRAL = """
import importlib, pkgutil, runner_core, sys
for module in pkgutil.walk_packages(runner_core.__path__, "runner_core."):
    if not module.name.startswith("runner_core.engines."):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_the_core_alone_needs_no_framework(clone: Path, tmp_path: Path, home: dict[str, str]) -> None:
    done = run("uv", "sync", "--locked", "--package", "runner-core", "--no-default-groups", cwd=clone, **home)
    assert done.returncode == 0, done.stderr
    done = run(tmp_path / "environment" / "bin" / "python", "-c", NEUTRAL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(tmp_path / "environment" / "bin" / "runner", "list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


ALONE = {"brainunet": ("tensorflow", "keras"), "openkbp": ("torch", "monai")}
"""Project → what belongs to other projects."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("project", ALONE)
def test_a_project_alone_trains_without_the_frameworks_of_others(
    project: str, clone: Path, tmp_path: Path, home: dict[str, str]
) -> None:
    done = run("uv", "sync", "--locked", "--package", f"runner-{project}", "--no-default-groups", cwd=clone, **home)
    assert done.returncode == 0, done.stderr
    python = tmp_path / "environment" / "bin" / "python"
    code = f"import importlib.util as u; print([n for n in {ALONE[project]} if u.find_spec(n)])"
    assert run(python, "-c", code, cwd=tmp_path).stdout.strip() == "[]"

    few = "--train.epochs 1 --train.steps-per-epoch 20 --health.mode warn".split()
    runner = tmp_path / "environment" / "bin" / "runner"
    done = run(runner, project, "train", "--run-dir", tmp_path / "run", *few, cwd=tmp_path, **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"
