"""Threads that wait for each other sleep soon, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

CODE = "import os, runner_core.engines.torch; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "found"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_how_long_they_spin(given, found):
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", CODE], env=env | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
