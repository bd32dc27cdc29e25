"""docs/write-a-project.md, followed to the letter: its code put where it says, its commands typed in its order."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from workspace import ROOT

PAGE = (ROOT / "docs" / "write-a-project.md").read_text(encoding="utf-8").split("\n## 2. ")[1]
"""From the second step on: tests/test_new.py is the first."""
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def put(code: str, project: Path) -> None:
    """Replace what a block of code defines, in the file that its first line names; what is new goes to the end."""
    head, body = code.split("\n", 1)
    place, _, where = head.removeprefix("# ").partition(", ")
    file = project / place
    assert file.is_file(), f"{head}: there is no such file in a new project"
    if where == "the whole file":
        file.write_text(body, encoding="utf-8")
        return
    body = textwrap.dedent(body)
    for node in ast.parse(body).body:
        lines = file.read_text(encoding="utf-8").splitlines()
        (scope,) = [n for n in [ast.parse("\n".join(lines))] if not where] or [
            n for n in ast.parse("\n".join(lines)).body if isinstance(n, ast.ClassDef) and f"in class {n.name}" == where
        ]
        new = ast.get_source_segment(body, node)
        assert new is not None
        indented = textwrap.indent(new, "    " if where else "").splitlines()
        old = [n for n in scope.body if name_of(n) == name_of(node)]
        if old:
            lines[old[0].lineno - 1 : old[0].end_lineno] = indented
        elif isinstance(node, ast.ImportFrom):
            last = max(n.end_lineno or 0 for n in scope.body if isinstance(n, (ast.Import, ast.ImportFrom)))
            lines[last:last] = ["", *indented]
        else:
            lines[scope.body[-1].end_lineno :] = [""] * (1 if where else 2) + indented
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def name_of(node: ast.stmt) -> str | None:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return node.name
        case ast.ImportFrom():
            return f"from {node.module}"
        case ast.Assign():
            return ast.unparse(node.targets[0])
        case _:
            return None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_leads_to_a_project_that_passes_its_tests_and_trains(tmp_path: Path) -> None:
    from runner_core.cli.new import write_project

    project = write_project("liver", "torch", tmp_path)
    info = tmp_path / "installed" / "runner_liver-0.1.0.dist-info"  # as if installed, into this environment
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: runner-liver\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[runner.projects]\nliver = runner_liver\n")
    env = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(info.parent), str(project / "src")]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    if shutil.which("uv") is None:
        pytest.skip("needs uv")

    def type_in(command: str) -> str:
        words = command.removeprefix("uv run ")
        done = subprocess.run(words, shell=True, cwd=project, env=env, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    for kind, text in BLOCK.findall(PAGE):
        if kind == "python":
            put(text, project)
        else:
            for command in text.splitlines():
                type_in(command)

    summary = json.loads((project / "runs" / "first" / "summary.json").read_text(encoding="utf-8"))
    assert not summary["health"]
    scores, baseline = summary["scores"], summary["baseline"]
    assert scores["dice_liver"] > baseline["dice_liver"] + 0.03, (scores, baseline)
    assert scores["dice_lesion"] > 0.7 > baseline["dice_lesion"] + 0.3, (scores, baseline)
    assert len(list((project / "masks").rglob("*_seg.tif"))) == 3
    assert list((project / "dist").glob("runner_liver-*.whl"))
    type_in("ruff format --check")
