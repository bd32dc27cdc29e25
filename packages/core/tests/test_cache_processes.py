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
from runner_core.cache import manage
from runner_core.cache.folder import TEMPORARY

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from rows_toy import write_volumes

TOY = str(Path(__file__).parent / "data_toy")

SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, {toy!r})
import numpy as np, xxhash
from rows_toy import RowsToy
from runner_core.cache import default_cache
from runner_core.config import CacheConfig, RunConfig
from runner_core.crop import NoCrop
from runner_core.pipeline import RecordPipeline

if __name__ == "__main__":
    root, pause, workers = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    config = RunConfig(cache=CacheConfig(dir=root / "cache", workers=workers))
    project = RowsToy(config, root / "log", pause)
    pipeline = RecordPipeline(project, NoCrop())
    said = []
    store = default_cache(project, config).open(pipeline, project.records(root / "data"), said.append)
    content = xxhash.xxh3_128()
    for name in ("image", "mask"):
        for i in range(len(store.keys)):
            content.update(np.ascontiguousarray(store.arrays[name].read(i)))
    print(json.dumps([content.hexdigest(), said]))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that opens the cache of tmp_path/data."""
    write_volumes(tmp_path / "data", [3] * 8)
    script = tmp_path / "open.py"
    script.write_text(SCRIPT.format(toy=TOY))
    started = []

    def run(pause, workers=2):
        command = [sys.executable, str(script), str(tmp_path), str(pause), str(workers)]
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


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_two_processes_build_once(tmp_path, start):
    first = start(0.3)
    wait_until(lambda: len(decoded(tmp_path)) > 1)  # the plan's sample, and building has begun
    second = start(0.3)
    results = [json.loads(p.communicate(timeout=60)[0]) for p in (first, second)]
    assert results[0][0] == results[1][0]
    assert any("another process is building this cache" in s for s in results[1][1])
    assert results[0][1] == []
    keys = [key for key, pid in decoded(tmp_path) if pid != second.pid]  # the second planned, by one sample
    assert len(keys) == 8 + 1
    assert len(decoded(tmp_path)) <= 8 + 2
    assert len(manage.entries(tmp_path / "cache")) == 1
    assert manage.verify(tmp_path / "cache") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_builder_killed_half_way_leaves_nothing_to_the_next(tmp_path, start, workers):
    builder = start(0.2, workers)
    wait_until(lambda: len(decoded(tmp_path)) > 4)
    children = psutil.Process(builder.pid).children(recursive=True)
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    assert manage.entries(tmp_path / "cache") == []  # half a cache is none

    content, said = json.loads(start(0.0, workers).communicate(timeout=60)[0])
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    assert manage.verify(tmp_path / "cache") == []
    assert said == []  # it had nothing to wait for
    assert content == json.loads(start(0.0).communicate(timeout=60)[0])[0]


def test_a_waiting_process_takes_over_from_a_killed_builder(tmp_path, start):
    first = start(0.3)
    wait_until(lambda: len(decoded(tmp_path)) > 2)
    second = start(0.0)
    wait_until(lambda: any(pid == second.pid for _, pid in decoded(tmp_path)))  # it planned, and waits
    time.sleep(0.3)
    os.kill(first.pid, signal.SIGKILL)
    content, said = json.loads(second.communicate(timeout=60)[0])
    assert any("waiting for it" in s for s in said)
    assert len(content) == 32
    assert manage.verify(tmp_path / "cache") == []


def test_prune_removes_what_a_killed_builder_left_but_not_a_living_one_s(tmp_path, start):
    builder = start(0.3)
    wait_until(lambda: len(decoded(tmp_path)) > 2)
    manage.prune(tmp_path / "cache", everything=True)
    assert list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    time.sleep(0.5)  # its workers end by themselves
    manage.prune(tmp_path / "cache", everything=True)
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))


def test_a_killed_worker_is_an_error_and_nothing_is_left(tmp_path, start):
    builder = start(0.5)
    wait_until(lambda: len({pid for _, pid in decoded(tmp_path)} - {builder.pid}) == 2)
    worker = next(pid for _, pid in decoded(tmp_path) if pid != builder.pid)
    os.kill(worker, signal.SIGKILL)
    builder.communicate(timeout=60)
    assert builder.returncode != 0
    assert not list((tmp_path / "cache").rglob(f"{TEMPORARY}*"))
