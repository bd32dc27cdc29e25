"""A project that `runner new` wrote, as a stranger has it: its own environment, its own tests, a training."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from runner_core.cli.new import write_project
from workspace import ROOT


def installed(framework: str, tmp_path: Path, task: str) -> tuple[Path, Callable[..., str]]:
    """Return a new project, and a function that types a command in its own environment."""
    if shutil.which("uv") is None:
        pytest.skip("needs uv")
    folder = write_project("cells", framework, tmp_path, task)
    pyproject = folder / "pyproject.toml"
    same = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]
    text = pyproject.read_text("utf-8")
    assert f'path = "{ROOT / "packages" / "core"}"' in text, "the core is this checkout's"
    # the frameworks' versions that this workspace uses: they are in uv's cache already
    limits = "".join(f"{key} = {json.dumps(same[key])}\n" for key in ("constraint-dependencies", "environments"))
    pyproject.write_text(text.replace("[tool.uv]\n", f"[tool.uv]\n{limits}"), "utf-8")

    taken = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")
    env = {k: v for k, v in os.environ.items() if k not in taken}

    def do(*words: str) -> str:
        done = subprocess.run(["uv", "run", *words], cwd=folder, env=env, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return folder, do


@pytest.mark.weekly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "framework, task, score", [("torch", "classification", "accuracy"), ("keras", "regression", "error")]
)
def test_a_project_for_whole_images_trains_on_a_folder_with_a_table(
    framework: str, task: str, score: str, tmp_path: Path
) -> None:
    folder, do = installed(framework, tmp_path, task)
    assert "failed" not in do("pytest", "-q")
    do("runner", "cells", "phantom", "data")
    checked = do("runner", "cells", "check", "--data", "data", "--cache.dir", "cache")
    assert "0 faulty records, 0 errors" in checked
    do("runner", "cells", "train", "--data", "data", "--preset", "demo", "--run-dir", "run", "--cache.dir", "cache")
    summary = json.loads((folder / "run" / "summary.json").read_text("utf-8"))
    assert summary["status"] == "done"
    trained, baseline = summary["scores"][score], summary["baseline"][score]
    assert (trained > 0.8 > baseline + 0.3) if score == "accuracy" else (trained < baseline / 2)
    do("runner", "cells", "predict", "run", "data/images", "--out", "found")
    rows = list(csv.DictReader((folder / "found" / "predictions.csv").open(encoding="utf-8")))
    assert {row["image"] for row in rows} == {path.name for path in (folder / "data" / "images").iterdir()}
    do("runner", "cells", "export", "run", "--out", "network")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "framework", [pytest.param("torch", marks=pytest.mark.slow), pytest.param("keras", marks=pytest.mark.weekly)]
)
def test_a_new_project_installs_passes_its_tests_and_beats_its_baseline(framework: str, tmp_path: Path) -> None:
    folder, do = installed(framework, tmp_path, "segmentation")
    do("ruff", "check")
    do("ruff", "format", "--check")
    passed = re.search(r"(\d+) passed", do("pytest", "-q"))
    assert passed, "its tests ran"
    assert int(passed[1]) > 20, passed[0]

    do("runner", "cells", "train", "--run-dir", "run", "--cache.dir", "cache")
    summary = json.loads((folder / "run" / "summary.json").read_text("utf-8"))
    assert summary["status"] == "done"
    assert not summary["health"]
    assert summary["scores"]["dice_object"] > 0.8 > summary["baseline"]["dice_object"] + 0.1

    do("runner", "cells", "phantom", "data")
    checked = do("runner", "cells", "check", "--data", "data", "--cache.dir", "cache")
    assert "0 faulty records, 0 errors, 0 warnings, 0 notes" in checked
    do("runner", "cells", "evaluate", "run", "--data", "data")
    do("runner", "cells", "predict", "run", "data/images", "--out", "masks")
    do("runner", "cells", "export", "run", "--out", "network")
    names = {path.stem for path in (folder / "data" / "images").iterdir()}
    assert {path.stem for path in (folder / "masks").glob("*.png")} == names
