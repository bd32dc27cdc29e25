"""How a process ends without taking its modules down: as Python ends it, for all that can be seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEAVING = """
import atexit, sys, threading, time
from runner_core.base.interpreter import leave

class Slow:
    def __del__(self):
        print("taken down", file=sys.__stdout__)

kept = Slow()
kept.itself = kept
atexit.register(print, "atexit", file=sys.stdout)
sys.stdout.reconfigure(line_buffering=False)

def end():
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread", file=sys.__stdout__))).start()
    print("called")
    {how}
"""


def ended(how: str, then: str = "leave(end)") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LEAVING.format(how=how) + then], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("return 3", 3, ""),
        ("return None", 0, ""),
        ("sys.stdout = None", 0, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise ValueError('unexpected')", 1, "ValueError: unexpected\n"),
    ],
)
def test_leaving_ends_as_python_does_but_takes_nothing_down(how: str, code: int, said: str) -> None:
    left, usual = ended(how), ended(how, "sys.exit(end())")
    assert left.returncode == usual.returncode == code
    assert left.stdout.split("\n") == ["called", "thread", "atexit", ""]
    assert usual.stdout.split("\n") == ["called", "thread", "atexit", "taken down", ""]
    assert left.stderr.endswith(said)
    assert usual.stderr.endswith(said)


def test_a_profiler_sees_the_end(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LEAVING.format(how="return 0") + "leave(end)")
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-o", str(tmp_path / "found"), str(script)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "taken down" in done.stdout
    assert (tmp_path / "found").stat().st_size
