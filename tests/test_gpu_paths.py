"""GPU paths without a GPU: each torch project's steps on the pretended accelerator. docs/how-it-works/gpu-paths.md."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runner_core.plugins.manager import Plugins
from workspace import ROOT

sys.path.insert(0, str(ROOT / "packages" / "core" / "tests" / "pretend"))
import pretend

PAGE = ROOT / "docs" / "how-it-works" / "gpu-paths.md"


def documented_waits() -> dict[str, dict[str, int]]:
    """What makes the host wait in a step, by project, as the page says."""
    table = PAGE.read_text(encoding="utf-8").split("| project | waits in a step |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        project, text = (cell.strip() for cell in line.strip("|").split("|"))
        found[project] = {what: int(count) for count, what in re.findall(r"(\d+) × ([^,]+)", text)}
    return found


LAYOUTS = {
    "brainunet": {"small", "demo"},  # benchmarks.md, ablations.md: faster on a CPU
    "vesuvius": {"default", "large", "nnunet", "resenc-m", "resenc-l", "resenc-xl", "small", "demo"},
}
"""Presets with channels last, by project: measured on a CPU, or for the reason that vesuvius' `default` names."""


@pytest.mark.parametrize("project", ["brainunet", "dinocell", "openkbp", "ssmunet", "vesuvius"])
def test_presets_choose_a_layout_or_compile_only_where_a_reason_is_known(project: str) -> None:
    made = {name: make() for name, make in Plugins.load(project).project().presets.items()}
    assert {name for name, config in made.items() if config.train.channels_last == "on"} == LAYOUTS.get(project, set())
    assert {config.train.compile for config in made.values()} == {"auto"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(pretend.missing()), reason=pretend.missing())
@pytest.mark.parametrize("project", ["brainunet", "dinocell", "ssmunet", "vesuvius"])
def test_a_project_trains_on_an_accelerator(project: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("rehearse.py")
    done = subprocess.run([sys.executable, script, project, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["precision"] == "bfloat16"
    assert set(found["seen"]) == {"torch.bfloat16"}, "a layer with matrix products computes in another precision"
    assert math.isfinite(found["loss"])
    assert not found["validated"], "validation gave no number"
    assert found["devices"] == ["pretend:0"]
    assert found["waits"] == documented_waits()[project], "the page has other numbers"
    assert found["written"]
    assert found["memory"]
    assert found["unsafe_frees"] == 0
