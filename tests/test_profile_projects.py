"""`runner P profile` of every project: the parts of its steps add up, and it says what limits them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workspace import Runner

pytestmark = pytest.mark.weekly


@pytest.mark.parametrize("project", ["ssmunet", "brainunet", "openkbp", "vesuvius", "dinocell"])
def test_the_parts_of_every_project_s_steps_add_up(runner: Runner, tmp_path: Path, project: str) -> None:
    words = ("--steps", "8", "--minutes", "0.3", "--out", tmp_path / "found")
    done = runner(project, "profile", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "found" / "profile.json").read_text(encoding="utf-8"))
    assert 0.95 < facts["covered"] < 1.05
    computed = sum(facts["parts"][part] for part in ("augment", "forward", "loss", "backward", "optimizer"))
    assert computed > 0.5 * sum(facts["parts"].values()), "a demo on a CPU computes most of its time"
    assert facts["bound"] in done.stdout
    assert facts["work"]["flops"] > 0
    assert {"loss"} < set(facts["losses"])
