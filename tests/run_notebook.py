"""Runs a notebook's cells in this process, without Jupyter: `python run_notebook.py NOTEBOOK SETTINGS`.

SETTINGS (JSON) replaces the cell that is tagged `parameters`. The last line is JSON: for each code cell what a notebook
would show below it (HTML, or text), or null.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any


def run(path: Path, settings: dict[str, Any]) -> list[str | None]:
    names: dict[str, Any] = {"__name__": "__main__"}
    return [shown(cell, names, settings) for cell in code_cells(path)]


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any], names: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """Run a cell, and return what its last line shows if that is an expression."""
    if "parameters" in cell["metadata"].get("tags", ()):
        names["settings"] = settings
        return None
    body = ast.parse("".join(cell["source"])).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


if __name__ == "__main__":
    results = run(Path(sys.argv[1]), json.loads(sys.argv[2]))
    print(json.dumps(results))
