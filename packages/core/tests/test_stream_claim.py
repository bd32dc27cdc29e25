"""A record that several want is fetched by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from runner_core.data.stream.fetch import claimed

HOLD = """
import sys
from pathlib import Path
from runner_core.data.stream.fetch import claimed

with claimed(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""
ONE, OTHER = "0123456789abcdef" * 2, "0123456789abcdee" * 2


@pytest.fixture
def holder(tmp_path):
    words = [sys.executable, "-c", HOLD, tmp_path / "lock", ONE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def claim(file, name, done):
    with claimed(file, name):
        done.set()


@pytest.mark.parametrize("killed", [False, True])
def test_others_wait_until_it_is_let_go(tmp_path, holder, killed):
    done = threading.Event()
    waiting = threading.Thread(target=claim, args=(tmp_path / "lock", ONE, done))
    waiting.start()
    assert not done.wait(0.2)
    holder.kill() if killed else holder.stdin.close()
    assert done.wait(20)
    waiting.join()
    assert os.listdir(tmp_path) == ["lock"]
    assert not (tmp_path / "lock").stat().st_size


def test_other_names_do_not_wait(tmp_path, holder):
    with claimed(tmp_path / "lock", OTHER[::-1]):
        pass


def test_threads_of_a_process_wait_for_each_other(tmp_path):
    done = threading.Event()
    with claimed(tmp_path / "lock", ONE):
        waiting = threading.Thread(target=claim, args=(tmp_path / "lock", ONE, done))
        waiting.start()
        assert not done.wait(0.2)
    assert done.wait(20)
    waiting.join()
