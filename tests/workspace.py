"""Where things are, for the tests that cross packages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RUNNER_TEST_DATA", ROOT.parent / "shared" / "data"))

Runner = Callable[..., subprocess.CompletedProcess[str]]
