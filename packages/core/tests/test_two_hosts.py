"""Two processes on two hosts (network namespaces) that train together: a cut link, a wrong interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "toy" / "project"
HOSTS = {"runner-a": "10.213.7.1", "runner-b": "10.213.7.2"}
WORDS = ["toy", "train", "--resume", "auto", "--run-dir", "run", "--train.device", "cpu", "--train.batch-size", "4",
         "--train.steps-per-epoch", "10", "--train.schedule", "constant", "--train.patience-seconds", "6"]  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two network namespaces, joined by a link; each has one more interface that leads nowhere."""
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ip("link", "add", "to-b", "netns", "runner-a", "type", "veth", "peer", "name", "to-a", "netns", "runner-b")
    except (OSError, subprocess.CalledProcessError):
        remove()
        pytest.skip("this process may not make network namespaces (it needs root and the program `ip`)")
    for (name, address), link in zip(HOSTS.items(), ("to-b", "to-a"), strict=True):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
        for device in ("lo", link):
            ip("-n", name, "link", "set", device, "up")
    yield
    remove()


def remove() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture
def both(hosts: None, tmp_path: Path, cache_home: Path) -> Iterator[Callable[..., list[subprocess.Popen[str]]]]:
    """Start one process on each host, as Kubeflow does; their output goes to out-0 and out-1."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> list[subprocess.Popen[str]]:
        code = "import sys; from runner_core.cli import main; sys.exit(main())"
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": HOSTS["runner-a"], "MASTER_PORT": "29512", "OMP_NUM_THREADS": "1",
                  "PYTHONPATH": str(PROJECT), "XDG_CACHE_HOME": str(cache_home)} | environment  # fmt: skip
        processes = []
        for number, (name, link) in enumerate(zip(HOSTS, ("to-b", "to-a"), strict=True)):
            own = {"GLOO_SOCKET_IFNAME": link} | os.environ | shared | {"RANK": str(number)}
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, "-c", code, *WORDS, *words],
                    cwd=tmp_path, env=own, text=True, stderr=subprocess.STDOUT,
                    stdout=(tmp_path / f"out-{number}").open("w"),
                )
            )  # fmt: skip
        started.extend(processes)
        return processes

    yield start
    for process in started:
        process.kill()
        process.wait()


def said(folder: Path) -> list[str]:
    return [(folder / f"out-{number}").read_text(encoding="utf-8") for number in range(2)]


def test_a_cut_link_ends_both_and_the_run_goes_on_later(
    both: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    processes = both("--epochs", "4000")
    limit = time.monotonic() + 240
    while not list((tmp_path / "run").glob("checkpoints/step-*")) and time.monotonic() < limit:
        assert [process.poll() for process in processes] == [None, None], said(tmp_path)
        time.sleep(0.05)
    ip("-n", "runner-a", "link", "set", "to-b", "down")
    assert [process.wait(60) for process in processes] == [75, 75], said(tmp_path)
    for number, text in enumerate(said(tmp_path)):
        assert f"runner: nothing was heard from process {1 - number} (" in text, text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "nothing was heard from process" in summary["reason"]

    ip("-n", "runner-a", "link", "set", "to-b", "up")
    done = len(list((tmp_path / "run").glob("checkpoints/step-*")))
    processes = both("--epochs", "4000")
    while "step " not in said(tmp_path)[0].partition("going on from the checkpoint of")[2].partition("\n")[2]:
        assert [process.poll() for process in processes] == [None, None], said(tmp_path)
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert done
    os.kill(processes[1].pid, 15)
    assert [process.wait(60) for process in processes] == [143, 143], said(tmp_path)


def test_a_wrong_interface_is_said_on_both_sides(
    both: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    processes = both("--epochs", "1", GLOO_SOCKET_IFNAME="lo")
    assert [process.wait(90) for process in processes] == [2, 2], said(tmp_path)
    for text in said(tmp_path):
        assert text.count("runner: the 2 processes met, but process") == 1, text
        for word in ("to-b 10.213.7.1", "to-a 10.213.7.2", "GLOO_SOCKET_IFNAME=eth0", "now: GLOO_SOCKET_IFNAME=lo"):
            assert word in text, text


def test_a_process_that_does_not_come_is_named(
    both: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    first, second = both("--epochs", "1")
    second.kill()
    assert first.wait(90) == 75, said(tmp_path)
    text = said(tmp_path)[0]
    assert "within 6 s (train.patience_seconds)" in text
    assert "process 1" in text or "could not meet the others" in text
    assert not (tmp_path / "run").exists()
