"""Real projects, of both engines, killed with kill -9 in steps, in a validation and while saving, and resumed, equal
those that nobody disturbed, bit for bit: by `runner verify-resume`.

What that compares, and that it finds what differs: packages/core/tests/test_resuming.py. At a chosen moment, and for
every project, the contract test kills too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = (
    "--times 1 --kills 3 --train.steps-per-epoch 16 --log.every 5 --checkpoint.every-steps 7 --train.ema 0.9"
).split()
CASES = {
    "ssmunet, dropout in chunks": [
        *["ssmunet", "--data.patch", "16", "--data.bin", "8", "--train.batch-size", "4", "--model.filters", "4"],
        *["--model.layers", "2", "--model.dropout", "0.1", "--model.chunk", "200"],
    ],
    "brainunet, 2 workers": ["brainunet", "--train.batch-size", "4", "--train.workers", "2"],
    "vesuvius, warps, topology": [
        *["vesuvius", "--data.patch", "32", "32", "32", "--model.base", "4"],
        *["--augment.affine", "1", "--augment.elastic", "1", "--augment.blur", "1"],
        *["--augment.noise-share", "1", "--augment.rotate90"],
        *["--loss.topology.weight", "0.1", "--loss.topology-every", "4", "--loss.topology-crop", "12"],
    ],
    "dinocell, streamed, two workers": [
        *["dinocell", "--train.workers", "2", "--cache.max-gb", "0.004", "--train.batch-size", "8"],
        *["--data.window", "32", "--data.windows", "8", "--augment.global-size", "16", "--augment.local-size", "8"],
        *["--model.channels", "subset", "--model.drop-path", "0.1"],
        *["--log.snapshots-every", "4"],
        *["--train.recipe", "dinov2-exact", "--model.registers", "2", "--gram.weight", "1", "--gram.start", "0.3"],
        *["--gram.every", "0.2", "--metadata.suppress", "plate", "--train.optimizer", "muon"],
    ],
    "openkbp, blocks": ["openkbp", "--train.steps-per-execution", "4", "--data.size", "32", "--augment.rotate", "20"],
}

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "2")
"""More than the one that tests in parallel have: sums over several threads must come out the same too."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_never_killed(tmp_path: Path, cache_home: Path, case: str) -> None:
    out, (project, *more) = tmp_path / "out", CASES[case]
    runner = str(Path(sys.executable).with_name("runner"))
    command = [runner, "verify-resume", project, *SETTINGS, *more, "--seed", str(len(case)), "--out", str(out)]
    env = {**os.environ, **THREADS, "XDG_CACHE_HOME": str(cache_home)}
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((out / "verify-resume.json").read_text())
    assert facts["equal"]
    assert facts["steps"] == 32
    assert facts["kills"], "the run was over before it could be killed"
