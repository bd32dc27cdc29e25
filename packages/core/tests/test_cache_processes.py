"""Several processes and one cache: one builds, one is killed, the others wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from runner_core.data.cache import manage
from runner_core.data.cache.folder import TEMPORARY

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from rows_toy import write_volumes

TOY = str(Path(__file__).parent / "data_toy")

SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {toy!r})
import numpy as np, xxhash
from rows_toy import RowsToy
from runner_core.data.cache import default_cache
from runner_core.config import CacheConfig, RunConfig
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline

if __name__ == "__main__":
    root, free, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config = RunConfig(cache=CacheConfig(dir=root / "cache", workers=workers))
    project = RowsToy(config, root / "log", free=free)
    pipeline = RecordPipeline(project, NoCrop())
    said = []

    def say(text):
        said.append(text)
        (root / f"said-{{os.getpid()}}").write_text(text)

    store = default_cache(project, config).open(pipeline, project.records(root / "data"), say)
    content = xxhash.xxh3_128()
    for name in ("image", "mask"):
        for i in range(len(store.keys)):
            content.update(np.ascontiguousarray(store.arrays[name].read(i)))
    print(json.dumps([content.hexdigest(), said]))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that opens the cache of tmp_path/data.

    It stands still after `free` decodes until the file tmp_path/hold is gone.
    """
    (tmp_path / "hold").touch()
    write_volumes(tmp_path / "data", [3] * 8)
    script = tmp_path / "open.py"
    script.write_text(SCRIPT.format(toy=TOY))
    started = []

    def run(free=10**6, workers=2):
        command = [sys.executable, str(script), str(tmp_path), str(free), str(workers)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def decoded(path):
    """(key, pid) of every decode so far."""
    log = path / "log"
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def waits(path, process):
    """Whether the process has said that another one is building the cache."""
    said = path / f"said-{process.pid}"
    return said.exists() and "waiting for it" in said.read_text()


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_two_processes_build_once(tmp_path, start):
    first = start(free=2)
    wait_until(lambda: len(decoded(tmp_path)) > 2)  # the plan's sample, and building has begun
    second = start()
    wait_until(lambda: waits(tmp_path, second))
    (tmp_path / "hold").unlink()
    results = [json.loads(p.communicate(timeout=300)[0]) for p in (first, second)]
    assert results[0][0] == results[1][0]
    assert any("another process is building this cache" in s for s in results[1][1])
    assert results[0][1] == []
    keys = [key for key, pid in decoded(tmp_path) if pid != second.pid]  # the second planned, by one sample
    assert len(keys) == 8 + 1
    assert len(decoded(tmp_path)) <= 8 + 2 + 1  # and compared one with what the first had built
    assert len(manage.entries(tmp_path / "cache")) == 1
    assert manage.verify(tmp_path / "cache") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_builder_killed_half_way_leaves_nothing_to_the_next(tmp_path, start, workers):
    builder = start(4, workers)
    wait_until(lambda: len(decoded(tmp_path)) > 4)
    children = psutil.Process(builder.pid).children(recursive=True)
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert not alive
    assert list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    assert manage.entries(tmp_path / "cache") == []  # half a cache is none

    content, said = json.loads(start(workers=workers).communicate(timeout=300)[0])
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    assert manage.verify(tmp_path / "cache") == []
    assert said == []  # it had nothing to wait for
    assert content == json.loads(start().communicate(timeout=300)[0])[0]


def test_a_waiting_process_takes_over_from_a_killed_builder(tmp_path, start):
    first = start(free=2)
    wait_until(lambda: len(decoded(tmp_path)) > 2)
    second = start()
    wait_until(lambda: waits(tmp_path, second))
    os.kill(first.pid, signal.SIGKILL)
    content, said = json.loads(second.communicate(timeout=300)[0])
    assert any("waiting for it" in s for s in said)
    assert len(content) == 32
    assert manage.verify(tmp_path / "cache") == []


def test_prune_removes_what_a_killed_builder_left_but_not_a_living_one_s(tmp_path, start):
    builder = start(free=2)
    wait_until(lambda: len(decoded(tmp_path)) > 2)
    manage.prune(tmp_path / "cache", everything=True)
    assert list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    workers = psutil.Process(builder.pid).children(recursive=True)
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    assert not psutil.wait_procs(workers, timeout=300)[1]
    manage.prune(tmp_path / "cache", everything=True)
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))


def test_a_killed_worker_is_an_error_and_nothing_is_left(tmp_path, start):
    builder = start(free=1)
    wait_until(lambda: len({pid for _, pid in decoded(tmp_path)} - {builder.pid}) == 2)
    worker = next(pid for _, pid in decoded(tmp_path) if pid != builder.pid)
    os.kill(worker, signal.SIGKILL)
    (tmp_path / "hold").unlink()
    builder.communicate(timeout=300)
    assert builder.returncode != 0
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
