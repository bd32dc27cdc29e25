"""The README's project and extension are what they say: installed as written, they run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
CHECK = """
from pathlib import Path
from runner_core.testing import CHECKS, contract
# what needs processes of its own takes long, and has nothing to do with what the README says
quick = [c for c in CHECKS if "killed" not in c.__name__ and "workers" not in c.__name__]
contract.CHECKS = quick
skipped = contract.check_project("mean", Path("check"))
print(len(quick) - len(skipped))
"""
Runner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder in which the README's modules are installed."""
    for text in re.findall(r"```python\n(# \w+\.py:.*?)```", README, re.DOTALL):
        name = text.split(".py", 1)[0].removeprefix("# ")
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        info = tmp_path / f"{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n", encoding="utf-8")
        (group,) = re.findall(rf'\[project.entry-points."(.*)"\]\n{name} = "{name}"', README)
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.torch
def test_the_project_keeps_the_contract_and_trains_with_the_extension(
    written: Path, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "check").mkdir()
    checked = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=written, capture_output=True, text=True, timeout=480, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert int(checked.stdout) >= 10
    done = runner("mean", "train", "--run-dir", "run", installed=(written,))
    assert done.returncode == 0, done.stderr
    assert "the largest loss was" in (tmp_path / "run" / "worst.txt").read_text(encoding="utf-8")
