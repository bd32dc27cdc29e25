"""GPU paths without a GPU: each torch project's steps on the pretended accelerator. docs/how-it-works/gpu-paths.md."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner_core.engines.known_bad import Run, known_bad
from runner_core.plugins.manager import Plugins
from workspace import ROOT

sys.path.insert(0, str(ROOT / "packages" / "core" / "tests" / "pretend"))
import pretend

PAGE = ROOT / "docs" / "how-it-works" / "gpu-paths.md"
PRESETS = ROOT / "docs" / "presets.md"


def documented_waits() -> dict[str, dict[str, int]]:
    """What makes the host wait in a step, by project, as the page says."""
    table = PAGE.read_text(encoding="utf-8").split("| project | waits in a step |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        project, text = (cell.strip() for cell in line.strip("|").split("|"))
        found[project] = {what: int(count) for count, what in re.findall(r"(\d+) × ([^,]+)", text)}
    return found


LAYOUTS = {
    "brainunet": {"default", "light", "small", "demo"},  # faster on an H100; benchmarks.md, ablations.md: on a CPU too
    "vesuvius": {"default", "large", "nnunet", "resenc-m", "resenc-l", "resenc-xl", "small", "demo"},
}
"""Presets with channels last, by project: measured on a CPU, or for the known fault that docs/presets.md names."""


@pytest.mark.parametrize("project", ["brainunet", "dinocell", "openkbp", "ssmunet", "vesuvius"])
def test_presets_choose_a_layout_or_compile_only_where_a_reason_is_known(project: str) -> None:
    made = {name: make() for name, make in Plugins.load(project).project().presets.items()}
    assert {name for name, config in made.items() if config.train.channels_last == "on"} == LAYOUTS.get(project, set())
    assert {config.train.compile for config in made.values()} == {"auto"}


def test_the_locked_pytorch_is_slow_on_a_gpu_without_the_layout_of_vesuvius_presets() -> None:
    locked = {one["name"]: one["version"] for one in tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]}
    versions = {"torch": locked["torch"], "cudnn": locked["nvidia-cudnn-cu12"]}
    run = Run(device="cuda", compute="bfloat16", layers=frozenset({"Conv3d"}), loaded=versions)
    slow = [row for row in known_bad(run) if "166122" in row.issue]
    assert slow, "its presets need another reason for channels_last: docs/presets.md"
    assert not any(row.meets(replace(run, channels_last=True)) for row in slow)


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


CARDS = (8, 12, 16, 24, 32, 40, 48, 80, 141)
"""Memory of common GPUs, in GiB; their makers write GB."""
ROOM = 0.8
"""Largest share of a card that a plan may take: libraries' work space and fragments are in no plan."""


def documented_memory() -> dict[tuple[str, str], tuple[float, float, int]]:
    """GB of activations, GB at most and the card, by project and preset, as the page says."""
    table = PRESETS.read_text(encoding="utf-8").split("| on a GPU, planned |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, activations, most, card = (cell.strip() for cell in line.strip("|").split("|"))
        project, preset = re.findall(r"[\w-]+", names)[0], names.split("`")[1]
        found[project, preset] = (float(activations.split()[0]), float(most.split()[0]), int(card.split()[0]))
    return found


def test_the_texts_of_presets_name_the_gpu_that_their_plan_needs() -> None:
    told = documented_memory()
    assert told
    for (project, preset), (_, most, card) in told.items():
        assert card == next(size for size in CARDS if most * 1e9 <= ROOM * size * 2**30), (project, preset)
    for project in ("brainunet", "dinocell", "openkbp", "ssmunet", "vesuvius"):
        for preset, make in Plugins.load(project).project().presets.items():
            for card in re.findall(r"GPU of (\d+) GB", make.__doc__ or ""):
                assert told[project, preset][2] == int(card), f"{project} {preset}: its text and docs/presets.md differ"


@pytest.mark.weekly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(pretend.missing()), reason=pretend.missing())
@pytest.mark.parametrize(("project", "preset"), documented_memory())
def test_the_page_has_the_plan_of_a_preset(project: str, preset: str, tmp_path: Path) -> None:
    found = plan_of(project, preset, tmp_path)
    assert found["precision"] == "bfloat16"
    activations, most, _ = documented_memory()[project, preset]
    assert found["activations"] / 1e9 == pytest.approx(activations, rel=0.02)
    assert found["device"] / 1e9 == pytest.approx(most, rel=0.02)


@pytest.mark.slow
@pytest.mark.skipif(bool(pretend.missing()), reason=pretend.missing())
def test_a_plan_without_values_is_the_one_of_a_step_that_is_computed(tmp_path: Path) -> None:
    fake, real = plan_of("vesuvius", "demo", tmp_path), plan_of("vesuvius", "demo", tmp_path, "computed")
    assert fake["how"] == real["how"] == "measured"
    # The computed step's tensors are freed by two threads, in an order that differs: 94.0 or 101.8 MB.
    assert fake["device"] == pytest.approx(real["device"], rel=0.09)


def plan_of(project: str, preset: str, folder: Path, *words: str) -> dict[str, Any]:
    """What the script tells about a preset."""
    script = Path(__file__).with_name("plan_presets.py")
    command = [sys.executable, script, project, preset, folder, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
