"""Fixtures of the core's tests: the toy project and extension, found through entry points as if installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TOY = Path(__file__).parent / "toy"
PROJECT, EXTENSION = TOY / "project", TOY / "extension"

Runner = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: trains with the torch engine; skipped where torch is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="torch is not installed (the extra runner-core[torch])"))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The toy project is installed in this process; caches go into a folder of this test."""
    monkeypatch.syspath_prepend(str(PROJECT))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))  # for spawned workers
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))


@pytest.fixture
def here(toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working one: `main` of the command line runs in this process, with the toy."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def toy_extension(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy extension is installed too."""
    monkeypatch.syspath_prepend(str(EXTENSION))


@pytest.fixture
def s3(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The test module's `server` (`tests/s3server.py`), sound and quick again; its clients hardly wait."""
    from runner_core.data.stream import client

    monkeypatch.setattr(client, "_FIRST_WAIT", 0.01)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    server.heal()
    server.requests.clear()
    server.most_at_once, server.latency = 0, 0.0
    return server


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for the session, so that the toy phantom is prepared once."""
    return tmp_path_factory.mktemp("cache-home")


def command(*words: str | Path) -> list[str]:
    """The installed console script with these words."""
    return [str(Path(sys.executable).with_name("runner")), *map(str, words)]


def environment(cache_home: Path, *installed: Path, **more: str) -> dict[str, str]:
    """Variables of a subprocess in which the plugins in the folders `installed` are found."""
    found = os.pathsep.join(map(str, installed or (PROJECT,)))
    fixed = {"PYTHONPATH": found, "XDG_CACHE_HOME": str(cache_home), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, **more}


@pytest.fixture
def variables(cache_home: Path) -> dict[str, str]:
    """Variables of a subprocess in which the toy project is installed."""
    return environment(cache_home)


@pytest.fixture
def runner(tmp_path: Path, cache_home: Path, request: pytest.FixtureRequest) -> Runner:
    """`runner("toy", "train")` runs the command line in an empty folder; `installed` names plugin folders. `fresh`, or
    with variables that Python reads when it starts: as the console script, in a process that imports everything."""

    def run(
        *words: str | Path, installed: tuple[Path, ...] = (), fresh: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        env = environment(cache_home, *installed, **more)
        if not fresh and not any(name.startswith("PYTHON") for name in more):
            return request.getfixturevalue("forked").run([*map(str, words)], tmp_path, env, 480)
        return subprocess.run(
            command(*words), cwd=tmp_path, env=env, text=True, capture_output=True, timeout=480, check=False
        )

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, cache_home: Path) -> Path:
    """Folder of a finished toy run on its phantom, preset demo. Do not change it: copy it."""
    pytest.importorskip("torch", reason="torch is not installed (the extra runner-core[torch])")
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = subprocess.run(
        command("toy", "train", "--run-dir", folder),
        env=environment(cache_home),
        text=True,
        capture_output=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stdout").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def crossvalidated(tmp_path_factory: pytest.TempPathFactory, cache_home: Path) -> Path:
    """Folder of a short cross-validation of the toy on its phantom, three folds. Do not change it: copy it."""
    pytest.importorskip("torch", reason="torch is not installed (the extra runner-core[torch])")
    folder = tmp_path_factory.mktemp("crossvalidated") / "cv"
    quick = ("--epochs", "1", "--train.steps-per-epoch", "2", "--train.threads", "1")
    words = command("toy", "crossval", "--folds", "3", "--out", folder, *quick)
    env = environment(cache_home)
    done = subprocess.run(words, env=env, text=True, capture_output=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def launch(tmp_path: Path, cache_home: Path) -> Callable[..., subprocess.Popen[str]]:
    """Like `runner`, but return the running process; its output goes into the file `out`."""

    def start(*words: str | Path, installed: tuple[Path, ...] = ()) -> subprocess.Popen[str]:
        env = environment(cache_home, *installed)
        with (tmp_path / "out").open("a", encoding="utf-8") as out:
            return subprocess.Popen(command(*words), cwd=tmp_path, env=env, text=True, stdout=out, stderr=out)

    return start
