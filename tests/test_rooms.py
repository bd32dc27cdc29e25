"""The rooms of every project: the same modules with the same functions; and no circle of imports, nor in the core."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp
import pytest
from workspace import ROOT


def table(first_column: str) -> dict[str, set[str]]:
    """Return the rows of a table in docs/contributing.md: first cell → the names in backticks of its last cell."""
    text = (ROOT / "docs" / "contributing.md").read_text().split("## The rooms of a project")[1]
    rows = [line.strip("| ").split("|") for line in text.split(f"| {first_column} |")[1].splitlines()[2:]]
    ends = next((i for i, row in enumerate(rows) if len(row) < 2), len(rows))
    return {row[0].strip(" `"): set(re.findall(r"`(\w+)`", row[-1])) for row in rows[:ends]}


ROOMS, FURTHER = table("room"), table("project")
SOURCES = {project: ROOT / "packages" / project / "src" / f"runner_{project}" for project in FURTHER}


def modules(source: Path) -> set[str]:
    """Return the names of a project's top-level modules and packages."""
    files = {path.stem for path in source.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in source.glob("*/__init__.py")}


def defined(source: Path) -> set[str]:
    """Return the names of the functions and classes at the top level of a module."""
    body = ast.parse(source.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def circles(package: str) -> list[list[str]]:
    """Return the strongly connected components of two modules or more; imports for types and in functions count."""
    graph = grimp.build_graph(package, cache_dir=None)
    reached = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {tuple(sorted({a, *(b for b in reached[a] if a in reached[b])})) for a in graph.modules}
    return sorted(list(circle) for circle in found if len(circle) > 1)


@pytest.mark.parametrize("project", SOURCES)
def test_a_project_has_the_rooms_that_all_have_and_its_own(project: str) -> None:
    unknown = modules(SOURCES[project]) - set(ROOMS) - FURTHER[project]
    assert not unknown, f"{project}: {sorted(unknown)}: use a room of docs/contributing.md, or list them there"


@pytest.mark.parametrize("project", SOURCES)
def test_a_list_of_further_rooms_names_only_what_there_is(project: str) -> None:
    assert FURTHER[project] <= modules(SOURCES[project]) - set(ROOMS)


@pytest.mark.parametrize("project", SOURCES)
def test_the_same_functions_are_in_the_same_rooms(project: str) -> None:
    for room, functions in ROOMS.items():
        file = SOURCES[project] / f"{room}.py"
        if file.is_file():
            assert functions <= defined(file), f"{project}.{room} lacks {sorted(functions - defined(file))}"


@pytest.mark.parametrize("package", ["core", *SOURCES])
def test_no_package_imports_in_a_circle(package: str) -> None:
    assert not circles(f"runner_{package}")
