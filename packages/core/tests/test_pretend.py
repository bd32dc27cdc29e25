"""The torch engine on an accelerator that lives on the CPU: the checks are in pretend/engine.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parent / "pretend"
sys.path.insert(0, str(FOLDER))
import pretend  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(1800)  # compiled once per machine, about 25 s of processor time
@pytest.mark.skipif(bool(pretend.missing()), reason=pretend.missing())
def test_the_engine_on_an_accelerator() -> None:
    done = subprocess.run([sys.executable, FOLDER / "engine.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout.splitlines()[-1])
    assert len(wrong) == 16
    assert not any(wrong.values()), "\n".join(f"{name}: {text}" for name, text in wrong.items() if text)
