"""The notebooks of examples/notebooks: they use the face alone, hold no outputs, and run to their pictures."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runner_core
from run_notebook import code_cells
from runner_core.plugins import discovery
from workspace import ROOT

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
LIBRARIES = {"runner_core", "numpy", "nibabel", "tifffile"}
"""What notebooks import: the face, and what their project installs."""
TINY = {"epochs": 1, "train.steps_per_epoch": 2}
FASTER = {"brainunet": {"predict.views": ()}}
DAILY = {"ssmunet", "openkbp"}
"""One of each framework; the others run once a week."""

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_every_project_has_one() -> None:
    own = {name for name, plugin in discovery.projects().items() if plugin.distribution.startswith("runner-")}
    assert {path.stem for path in NOTEBOOKS} == own


@notebooks
def test_it_holds_no_outputs_and_no_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for cell in code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert not [place for place in ("/home/", "/root", "/tmp", "/work", "/Users", "C:\\") if place in text]
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


@notebooks
def test_it_uses_names_of_the_face(path: Path) -> None:
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in code_cells(path)))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= LIBRARIES
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for owner, face in (("runner", runner_core), ("run", runner_core.Run), ("prediction", runner_core.Prediction)):
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner
        }
        assert all(hasattr(face, name) for name in used - {"prediction", "remarks"}), owner
    projects = [ast.literal_eval(call.args[0]) for call in _calls(tree)]
    assert projects == [path.stem] * 3


def _calls(tree: ast.AST) -> list[ast.Call]:
    """Calls of `runner.train` and the like."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call for call in calls if isinstance(call.func.value, ast.Name) and call.func.value.id == "runner"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in DAILY else pytest.mark.weekly) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs_and_ends_with_pictures(path: Path, tmp_path: Path, cache_home: Path) -> None:
    settings = TINY | FASTER.get(path.stem, {})
    done = subprocess.run(
        [sys.executable, ROOT / "tests/run_notebook.py", path, json.dumps(settings)],
        cwd=tmp_path, env={**os.environ, "XDG_CACHE_HOME": str(cache_home)}, text=True, capture_output=True,
        timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    assert "data:image/png;base64," in shown[-1]
    assert "ready to train" in " ".join(filter(None, shown))
