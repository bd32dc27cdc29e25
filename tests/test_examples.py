"""The packages under examples/, built and installed as a stranger's are, and used through the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TOY = ROOT / "packages/core/tests/toy/project"
RIVAL = """
from runner_core import hookimpl
from runner_core.data.cache.prepared import PreparedCache


@hookimpl
def runner_cache(config):
    return PreparedCache(config.cache)
"""
OPEN = """
import os, signal, sys
from pathlib import Path
import zarr_cache
from runner_core.plugins.manager import Plugins
from runner_core.contract.setup import Setup
from runner_core.data.pipeline import RecordPipeline

last, append = int(sys.argv[2]), zarr_cache.ZarrWriter.append

def doomed(self, array):
    global last
    append(self, array)
    last -= 1
    if not last:
        os.kill(os.getpid(), signal.SIGKILL)

zarr_cache.ZarrWriter.append = doomed
plugins = Plugins.load("toy")
kind = plugins.project()
config = kind.presets["demo"]()
setup = Setup(kind(config), config, "demo", None, plugins)
records = setup.project.records(Path(sys.argv[1]))
print(len(setup.cache(records).open(RecordPipeline.of(setup), records, print).keys), "records")
"""
"""Builds and opens the cache as `train` does: no framework is imported, which takes longer than all the rest.
Its arguments: the data, and after how many arrays it kills itself (0: never)."""
WITHOUT_TIMES = ("--train.deterministic", "--train.epochs", "2", "--train.steps-per-epoch", "5")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both examples installed, without their dependencies, which are there."""
    pytest.importorskip("zarr")
    if shutil.which("uv") is None:
        pytest.skip("uv is not there")
    return install(tmp_path_factory.mktemp("installed"), *(EXAMPLES / name for name in ("webhook", "zarr-cache")))


def install(target: Path, *packages: Path) -> Path:
    """`uv pip install` into a folder, without dependencies: they are there."""
    words = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(target), "--python", sys.executable]
    done = subprocess.run([*words, *map(str, packages)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def rival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another extension that gives a cache."""
    folder = tmp_path_factory.mktemp("rival")
    info = folder / "rival-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[runner.extensions]\nrival = rival_cache\n", encoding="utf-8")
    (folder / "rival_cache.py").write_text(RIVAL, encoding="utf-8")
    return folder


class Place:
    """Runs `runner` in an empty folder, with a cache folder of its own."""

    def __init__(self, folder: Path, *plugins: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (TOY, *plugins))),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *words: str | Path, **more: str) -> subprocess.Popen[str]:
        return self._start([str(Path(sys.executable).with_name("runner")), *map(str, words)], more)

    def open_cache(self, data: Path, killed_after: int = 0) -> str:
        process = self._start([sys.executable, "-c", OPEN, str(data), str(killed_after)], {})
        output, _ = process.communicate(timeout=120)
        assert process.returncode == (-signal.SIGKILL if killed_after else 0), output
        return output

    def _start(self, command: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment | more, text=True, stdout=pipe, stderr=subprocess.STDOUT
        )

    def run(self, *words: str | Path, code: int = 0, **more: str) -> str:
        process = self.start(*words, **more)
        output, _ = process.communicate(timeout=180)
        assert process.returncode == code, output
        return output

    def losses(self, run: str) -> list[Any]:
        lines = (self.folder / run / "log.jsonl").read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        return [(e["event"], e["step"], e["loss"]) for e in events if e["event"] in ("train", "validation")]


@pytest.fixture
def place(tmp_path: Path, installed: Path) -> Place:
    return Place(tmp_path, installed)


def test_the_examples_own_tests_pass(installed: Path) -> None:
    tests = [str(EXAMPLES / name / "tests") for name in ("webhook", "zarr-cache")]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(EXAMPLES),
    ]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([*words, *tests], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_run_with_the_zarr_cache_is_the_run_with_the_cores(place: Place) -> None:
    said = place.run("toy", "train", "--run-dir", "zarr", "--train.workers", "2", *WITHOUT_TIMES)
    assert "cache (zarr)" in said
    (cache,) = place.folder.glob("cache/runner/toy/*/*.zarr")
    place.run("toy", "train", "--run-dir", "core", "--no-extension", "zarr-cache", *WITHOUT_TIMES)
    assert list(place.folder.glob("cache/runner/toy/*/*.flat")), "the core builds its own"
    assert place.losses("zarr") == place.losses("core")
    assert len(place.losses("zarr")) >= 4
    # The core's own commands know it, whether or not the extension is there.
    alone = Place(place.folder)
    assert str(cache) in alone.run("cache", "list")
    assert "2 caches read, 0 damaged" in alone.run("cache", "verify")
    chunk = next(path for path in sorted(cache.rglob("c/**/*")) if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"!")
    assert f"DAMAGED {cache}" in alone.run("cache", "verify", code=2)
    (phantom,) = (path for path in place.folder.glob("cache/runner/phantoms/toy/*") if path.is_dir())
    assert "is damaged" in place.open_cache(phantom)
    assert "2 caches read, 0 damaged" in alone.run("cache", "verify")
    alone.run("cache", "prune", "--all")
    assert not list(place.folder.glob("cache/runner/toy/*/*.zarr"))


def test_a_zarr_cache_whose_building_was_killed_is_built_anew(place: Place) -> None:
    place.run("toy", "phantom", "data")
    data = place.folder / "data"
    place.open_cache(data, killed_after=7)
    assert list(place.folder.glob("cache/runner/toy/*/.building-*/array-*")), "it was being built"
    assert not list(place.folder.glob("cache/runner/toy/*/*.zarr"))
    assert place.open_cache(data).endswith("10 records\n")
    assert len(list(place.folder.glob("cache/runner/toy/*/*.zarr"))) == 1
    assert not list(place.folder.glob("cache/runner/toy/*/.building-*"))


def test_faulty_records_are_told_together(place: Place) -> None:
    place.run("toy", "phantom", "data")
    for name in ("p1_a", "p3_b"):
        (place.folder / f"data/{name}.npy").write_bytes(b"no array")
    said = place.run("toy", "train", "--data", "data", *WITHOUT_TIMES, code=2)
    assert "p1_a.npy" in said
    assert "p3_b.npy" in said


@pytest.mark.slow
def test_two_caches_are_refused_until_one_is_chosen_and_a_run_keeps_its_choice(
    tmp_path: Path, installed: Path, rival: Path
) -> None:
    place = Place(tmp_path, installed, rival)
    said = place.run("toy", "train", *WITHOUT_TIMES, code=2)
    assert "the extensions rival and zarr-cache both provide 'cache'" in said
    assert "--extension NAME" in said
    listed = place.run("list", "--hooks", "toy")
    assert "extension rival or extension zarr-cache" in listed
    assert "cache is contested: rival and zarr-cache" in listed
    # One that declines needs no choice.
    assert "cache (memmap)" in place.run("toy", "check", "--cache.mode", "memmap")
    assert "cache (zarr)" in place.run("toy", "check", "--no-extension", "rival")
    said = place.run("toy", "train", "--run-dir", "run", "--extension", "zarr-cache", *WITHOUT_TIMES)
    assert "cache (zarr)" in said
    config = (tmp_path / "run/config.yaml").read_text(encoding="utf-8")
    assert "extension rival: rival 1.0" in config
    assert "extension zarr-cache: runner-zarr-cache 0.1.0" in config
    more = ("toy", "train", "--resume", "run", "--train.epochs", "2")
    assert "cache (zarr)" in place.run(*more), "the choice is kept"
    assert "cache (memmap)" in place.run(*more, "--extension", "rival"), "what is chosen now goes first"
    for words in (["evaluate", "run"], ["report", "run"], ["config"], ["check"]):
        place.run("toy", *words, "--extension", "zarr-cache", "--no-extension", "rival")
    place.run("toy", "phantom", "data")
    place.run("toy", "predict", "run", "data", "--out", "out", "--no-extension", "rival")
    assert "did you mean 'rival'" in place.run("toy", "config", "--extension", "rivel", code=2)
    gone = Place(tmp_path, rival)
    assert "trained with the extension" in gone.run("toy", "evaluate", "run", code=2)
    gone.run("toy", "evaluate", "run", "--no-extension", "zarr-cache", "--no-extension", "webhook")


def test_a_run_tells_the_webhook_how_it_fares(place: Place) -> None:
    texts: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Listener)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/a-secret"
        place.run("toy", "train", "--run-dir", "run", *WITHOUT_TIMES, RUNNER_WEBHOOK=address)
    finally:
        server.shutdown()
        server.server_close()
    assert texts[0] == "toy run: started: 10 steps"
    assert texts[-1].startswith("toy run: done at step 10; best: step ")
    assert not [
        path for path in (place.folder / "run").rglob("*") if path.is_file() and b"a-secret" in path.read_bytes()
    ]


@pytest.mark.slow
def test_the_extension_of_the_page_is_installed_used_and_left_out(tmp_path: Path) -> None:
    """docs/write-an-extension.md: the files that it prints, then its commands (with the toy in place of brainunet)."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not there")
    page = (ROOT / "docs/write-an-extension.md").read_text(encoding="utf-8")
    package = tmp_path / "package"
    package.mkdir()
    files = dict[str, list[str]]()
    for file, text in re.findall(r"^```\w+\n# ([\w.]+)[^\n]*\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        files.setdefault(file, []).append(text)
    found = {name: len(versions) for name, versions in files.items()}
    assert found == {"worst.py": 2, "pyproject.toml": 1, "test_worst.py": 1}
    for file, (text, *_) in files.items():
        (package / file).write_text(text, encoding="utf-8")
    place = Place(tmp_path, install(tmp_path / "installed", package))
    assert re.search(r"worst.*sinks", place.run("list"))
    assert "with extension worst" in place.run("toy", "train", "--run-dir", "with", *WITHOUT_TIMES)
    assert (tmp_path / "with/worst.txt").read_text(encoding="utf-8").startswith("the largest loss was")
    place.run("toy", "train", "--run-dir", "without", "--no-extension", "worst", *WITHOUT_TIMES)
    assert not (tmp_path / "without/worst.txt").exists()
    for folder in (tmp_path / "installed", package):
        (folder / "worst.py").write_text(files["worst.py"][1], encoding="utf-8")
    assert "set worst.after to 1 or more" in place.run("toy", "config", "--worst.of", "gradient_norm", code=2)
    words = ("--worst.of", "gradient_norm", "--worst.after", "2")
    place.run("toy", "train", "--run-dir", "set", *words, *WITHOUT_TIMES)
    assert (tmp_path / "set/worst.txt").read_text(encoding="utf-8").startswith("the largest gradient_norm was")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(package)]
    tested = subprocess.run(words, env=place.environment, capture_output=True, text=True, timeout=120, check=False)
    assert "2 passed" in tested.stdout, tested.stdout
