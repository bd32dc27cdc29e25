"""40 kills of the campaign of docs/reliability.md: both engines, 1 and 2 processes, 0 and 2 workers, local, stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parent / "kills" / "campaign.py"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("engine", "module", "kills"), [("torch", "torch", 28), ("keras", "tensorflow", 12)])
def test_killed_trainings_end_as_undisturbed_ones(engine: str, module: str, kills: int, tmp_path: Path) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    out = tmp_path / "kills.jsonl"
    words = [engine, "--kills", str(kills), "--seed", "15", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
        capture_output=True,
        check=False,
    )
    trials = [json.loads(line) for line in out.read_text().splitlines()]
    assert done.returncode == 0, done.stderr + str([trial for trial in trials if trial["wrong"]])
    assert sum(len(trial["kills"]) for trial in trials) >= kills
    assert len({str(trial["cell"]) for trial in trials}) == (8 if engine == "torch" else 4)
