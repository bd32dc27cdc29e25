"""Strangers can install the core without any framework, and the wheels with plain pip.

Each package's own tests in a fresh environment, from the lock and from wheels with the newest frameworks, are parts of
.ci/run (`bash .ci/run alone brainunet`, `… newest brainunet`); .ci/installed.py looks at the environment there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from workspace import ROOT

PACKAGES = sorted(p.parent for p in ROOT.glob("packages/*/pyproject.toml"))
SKIPPED = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")


def run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in SKIPPED} | environment
    return subprocess.run(list(map(str, words)), cwd=cwd, env=env, text=True, capture_output=True, check=False)


def tracked(*places: str) -> list[str]:
    """The committed and uncommitted files below these places that git would track."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *places]
    return [name for name in run(*words, cwd=ROOT).stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git would track, in a folder of their own."""
    if shutil.which("uv") is None or not (ROOT / ".git").exists():
        pytest.skip("needs uv and a git checkout")
    folder = tmp_path_factory.mktemp("install") / "clone"
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def dist(clone: Path) -> Path:
    """The folder of the wheels, each built from its source distribution."""
    done = run("uv", "build", "--all-packages", "--out-dir", clone / "dist", cwd=clone)
    assert done.returncode == 0, done.stderr
    return clone / "dist"


NEUTRAL = """
import importlib, pkgutil, runner_core, sys
for module in pkgutil.walk_packages(runner_core.__path__, "runner_core."):
    if not module.name.startswith(("runner_core.engines.", "runner_core.testing")):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_the_core_alone_needs_no_framework(clone: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    words = ["uv", "sync", "--locked", "--package", "runner-core", "--no-default-groups"]
    done = run(*words, cwd=clone, UV_PROJECT_ENVIRONMENT=str(environment))
    assert done.returncode == 0, done.stderr
    done = run(environment / "bin" / "python", "-c", NEUTRAL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(environment / "bin" / "runner", "list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_a_wheel_holds_the_package_its_licence_and_nothing_else(package: Path, dist: Path) -> None:
    (wheel,) = dist.glob(f"runner_{package.name}-*-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        names = [name for name in content.namelist() if ".dist-info/" not in name]
        (info,) = {name.split("/")[0] for name in content.namelist()} - {f"runner_{package.name}"}
        about = message_from_bytes(content.read(f"{info}/METADATA"))
        entries = content.read(f"{info}/entry_points.txt").decode()
    source = f"packages/{package.name}/src/"
    assert sorted(names) == sorted(name.removeprefix(source) for name in tracked(source))
    assert about["Name"] == f"runner-{package.name}"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Summary"]
    assert about["Requires-Python"]
    assert re.search(r"^# runner-", about.get_payload(), re.MULTILINE), "README"
    groups = {"[console_scripts]"} if package.name == "core" else {"[runner.projects]", "[runner.extensions]"}
    assert groups & set(entries.splitlines())


@pytest.mark.slow
def test_plain_pip_installs_the_wheels(dist: Path, tmp_path: Path) -> None:
    """The core with its dependencies; the projects without theirs, which would be 7 GB once more."""
    done = run(sys.executable, "-m", "venv", tmp_path / "environment", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pip = [tmp_path / "environment" / "bin" / "python", "-m", "pip", "install", "-q", "--find-links", dist]
    done = run(*pip, "runner-core", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    projects = [package.name for package in PACKAGES if package.name != "core"]
    done = run(*pip, "--no-deps", *(f"runner-{name}" for name in projects), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(tmp_path / "environment" / "bin" / "runner", "list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in projects)
