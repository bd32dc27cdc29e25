"""The face: what projects and extensions import is there, and they import nothing from inside the core."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import runner_core

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "packages/core/src/runner_core/cli/new/template"


def test_every_name_is_there() -> None:
    assert len(runner_core.__all__) > 100
    assert set(runner_core.__all__) <= set(dir(runner_core))
    for name in runner_core.__all__:
        assert getattr(runner_core, name) is not None, name
    with pytest.raises(ImportError, match="nonsense"):
        from runner_core import nonsense  # type: ignore[attr-defined]  # noqa: F401


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, runner_core; print(sorted(m for m in sys.modules if m.startswith('runner_core.')))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("folder", [TEMPLATE, ROOT / "examples", ROOT / "docs", *sorted(ROOT.glob("packages/*/src/"))])
def test_nobody_reaches_inside(folder: Path) -> None:
    """import-linter holds it for the projects; templates, examples and pages are no modules that it could read."""
    inside = []
    for file in folder.rglob("*"):
        if "runner_core" in file.relative_to(folder).parts or "tests" in file.parts:
            continue
        if file.suffix == ".py":
            sources = [file.read_text(encoding="utf-8")]
        elif file.suffix == ".md":
            sources = re.findall(
                r"^```python[^\n]*\n(.*?)^```", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
            )
        else:
            continue
        inside += [f"{file.relative_to(ROOT)}: {module}" for source in sources for module in _imported(source)]
    assert not inside, "import it from runner_core, and add it to its __init__.pyi if it is not there"


def _imported(source: str) -> list[str]:
    """Modules inside the core that a source imports."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a page's fragment
        return []
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in names if name.startswith("runner_core.") and not name.startswith("runner_core.testing")]
