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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_brainunet_alone_trains_without_tensorflow(clone: Path, tmp_path: Path) -> None:
    home = {"UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if "UV_CACHE_DIR" not in os.environ:  # uv's own downloads are shared; only runner's caches are to be fresh
        home["UV_CACHE_DIR"] = run("uv", "cache", "dir", cwd=ROOT).stdout.strip()
    done = run("uv", "sync", "--locked", "--package", "runner-brainunet", "--no-default-groups", cwd=clone, **home)
    assert done.returncode == 0, done.stderr
    python = tmp_path / "environment" / "bin" / "python"
    found = run(
        python, "-c", "import importlib.util as u; print(u.find_spec('tensorflow'), u.find_spec('keras'))", cwd=tmp_path
    )
    assert found.stdout.split() == ["None", "None"]

    few = "--train.epochs 1 --train.steps-per-epoch 20 --health.mode warn".split()
    runner = tmp_path / "environment" / "bin" / "runner"
    done = run(runner, "brainunet", "train", "--run-dir", tmp_path / "run", *few, cwd=tmp_path, **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"
