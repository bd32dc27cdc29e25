"""Paths for the tests that cross packages."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
PROJECTS = [
    folder
    for folder in PACKAGES
    if "runner.projects" in tomllib.loads((folder / "pyproject.toml").read_text())["project"].get("entry-points", {})
]
"""The packages that are projects; the others are the core and extensions."""
SHARED = Path(os.environ.get("RUNNER_TEST_DATA", ROOT.parent / "shared" / "data"))


def documented_keys() -> set[str]:
    """The keys of summary.json that docs/use.md explains."""
    table = (ROOT / "docs" / "use.md").read_text().split("| key of `summary.json` |")[1].split("\n\n")[0]
    return set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))


Runner = Callable[..., subprocess.CompletedProcess[str]]
