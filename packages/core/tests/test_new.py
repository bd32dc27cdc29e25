"""`runner new`: names, refusals, and what is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from runner_core.base.errors import BadInput
from runner_core.cli import new as module
from runner_core.cli.new import PLACEHOLDER, TASKS, TEMPLATE, TEMPLATE_IMAGE, write_project
from runner_core.plugins.discovery import Plugin

Runner = Callable[..., subprocess.CompletedProcess[str]]
LONG = "a_name_as_long_as_names_may_be_forty_abc"


def text_of(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_what_is_written_is_a_package_of_that_name(framework: str, task: str, tmp_path: Path) -> None:
    folder = write_project("cells", framework, tmp_path, task)
    files = text_of(folder)
    assert folder == tmp_path / "runner-cells"
    assert list(tmp_path.iterdir()) == [folder], "nothing is left beside it"
    own = () if task == "segmentation" else ("labels", "objective")
    assert set(files) == {
        *(".github/workflows/ci.yml", ".gitignore", ".python-version", "README.md", "pyproject.toml"),
        *(
            f"src/runner_cells/{n}.py"
            for n in ("__init__", "config", "files", "images", "network", "phantom", "project", *own)
        ),
        *("tests/test_cells.py", "tests/test_images.py", "tests/test_network.py"),
    }
    for path, text in files.items():
        assert not re.search(f"{PLACEHOLDER}|newtask|labelcolumn|labelexample", text, re.IGNORECASE), path
        assert {"torch": "keras", "keras": "torch"}[framework] not in text, path
    assert f'framework, Config = "cells", "{framework}", Settings' in files["src/runner_cells/project.py"]
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert (project["name"], project["entry-points"]) == (
        "runner-cells",
        {"runner.projects": {"cells": "runner_cells"}},
    )
    assert any(word.startswith(f"runner-core[{framework}]>=") for word in project["dependencies"])
    ours = set(distribution("runner-core").metadata["Requires-Python"].split(","))
    assert set(project["requires-python"].split(",")) == ours, "what the core cannot run on cannot be resolved"
    assert yaml.safe_load(files[".github/workflows/ci.yml"])["jobs"]


def test_the_project_module_is_short_and_the_others_too() -> None:
    for template in (TEMPLATE, TEMPLATE_IMAGE):
        lines = {p.name: len(p.read_text("utf-8").splitlines()) for p in template.rglob("*.py")}
        assert lines.pop("project.py") <= 165
        assert max(lines.values()) <= 100, lines


@pytest.mark.parametrize("name", ["x", LONG])
@pytest.mark.parametrize("framework", ["torch", "keras"])
@pytest.mark.parametrize("task", TASKS)
def test_it_is_clean_by_its_own_rules_whatever_its_name(name: str, framework: str, task: str, tmp_path: Path) -> None:
    ruff = pytest.importorskip("ruff", reason="ruff is not installed").find_ruff_bin()
    folder = write_project(name, framework, tmp_path, task)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


REFUSED = {
    "Cells": "small letters",
    "my-cells": "small letters",
    "1cell": "small letters",
    "cells_": "small letters",
    "a__b": "small letters",
    "zellkörper": "small letters",
    "": "small letters",
    "../cells": "small letters",
    LONG + "d": "at most 40 small letters",
    "class": "word of Python",
    "match": "word of Python",
    "list": "command of runner",
    "new": "command of runner",
    "train": "command of runner",
    "core": "hide the Python package runner_core",
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_cannot_be_used_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=REFUSED[name]):
        write_project(name, "torch", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_name_of_an_installed_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin("cells", "project", "their-cells", "1", None)  # type: ignore[arg-type]
    monkeypatch.setattr(module.discovery, "projects", lambda: {"cells": plugin})
    with pytest.raises(BadInput, match="installed already, by their-cells"):
        write_project("cells", "torch", tmp_path)


def test_what_is_there_already_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "runner-cells").mkdir()
    write_project("cells", "torch", tmp_path)  # an empty folder is no loss
    before = text_of(tmp_path)
    with pytest.raises(BadInput, match="runner-cells exists and is not an empty folder"):
        write_project("cells", "keras", tmp_path)
    assert text_of(tmp_path) == before
    (tmp_path / "runner-file").write_text("mine")
    with pytest.raises(BadInput, match="runner-file exists and is not an empty folder"):
        write_project("file", "torch", tmp_path)
    with pytest.raises(BadInput, match="cannot be written"):
        write_project("cells", "torch", tmp_path / "runner-file")


def test_the_phantom_has_every_class_and_is_another_with_other_grey_values(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    folder = write_project("cells", "torch", tmp_path)
    config = folder / "src" / "runner_cells" / "config.py"
    code = """
import numpy as np
from runner_cells.phantom import draw
from runner_cells.project import Segmentation
print(Segmentation.dataset.phantom_version, *np.unique(draw(120, 120, np.random.default_rng(0))[1]))
"""

    def drawn(classes: str) -> list[str]:
        text = config.read_text("utf-8")
        begin, end = text.index("CLASSES ="), text.index("\n\n\n@dataclass")
        config.write_text(f"{text[:begin]}CLASSES = {classes}{text[end:]}", "utf-8")
        words = [sys.executable, "-B", "-c", code]
        env = os.environ | {"PYTHONPATH": str(folder / "src")}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()

    two, three = drawn('{"background": 0, "cell": 255}'), drawn('{"background": 0, "cell": 128, "nucleus": 255}')
    assert (two[1:], three[1:]) == (["0", "1"], ["0", "1", "2"])
    turned = drawn('{"background": 255, "cell": 0}')
    assert turned[1:] == ["0", "1"]
    assert len({two[0], three[0], turned[0]}) == 3, "what is kept of one would be read as another"


def test_the_untouched_example_checks_clean(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    folder = write_project("cells", "torch", tmp_path)
    code = """
import sys
from pathlib import Path
import numpy as np
from runner_cells.project import Segmentation, Settings
from runner_core.tools.check.facts import Checked
from runner_core.tools.check.facts import Examine
from runner_core.tools.check.rules import set_rules
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline
project, data = Segmentation(Settings()), Path(sys.argv[1])
data.mkdir()
project.phantom(data, np.random.default_rng(0))
records = project.records(data)
found = [Examine(RecordPipeline(project, NoCrop()))((0, record))[1] for record in records]
print(len(records), *[finding.message for own in found for finding in own.findings])
for finding in set_rules(project, Checked(records, found, {"train": range(12), "validation": range(12, 15)})):
    print(finding.message)
"""
    words = [sys.executable, "-B", "-c", code, str(tmp_path / "data")]
    env = os.environ | {"PYTHONPATH": str(folder / "src")}
    assert subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout == "15\n"


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runner-cells").symlink_to("gone")
    with pytest.raises(BadInput, match="runner-cells is a broken link"):
        write_project("cells", "torch", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["runner-cells"]


@pytest.mark.parametrize(
    "workspace, into, core, folder",
    [
        ('members = ["packages/*"]', "packages", "runner-core", "cells"),
        ('members = ["**"]', "packages/deeper", "runner-core", "cells"),
        ('members = ["packages/core", "packages/runner-cells"]', "packages", "runner-core", "runner-cells"),
        ('members = ["packages/*"]', "packages", "another", None),
        ('members = ["packages/*"]', ".", "runner-core", None),
        ('members = ["packages/*"]', "packages/deeper", "runner-core", None),
        ('members = ["packages/*"]\nexclude = ["packages/*cells"]', "packages", "runner-core", None),
    ],
)
def test_in_a_workspace_beside_the_core_it_is_the_workspaces(
    workspace: str, into: str, core: str, folder: str | None, tmp_path: Path
) -> None:
    """`folder`: its name as a member, which is how the core's folder is named; None where it is no member."""
    (tmp_path / "packages" / "core").mkdir(parents=True)
    (tmp_path / into).mkdir(exist_ok=True)
    (tmp_path / "pyproject.toml").write_text(f"[tool.uv.workspace]\n{workspace}\n", encoding="utf-8")
    (tmp_path / "packages" / "core" / "pyproject.toml").write_text(f'[project]\nname = "{core}"\n', encoding="utf-8")
    written = write_project("cells", "torch", tmp_path / into)
    assert written.name == (folder or "runner-cells")
    text = (written / "pyproject.toml").read_text("utf-8")
    source = tomllib.loads(text)["tool"]["uv"].get("sources", {}).get("runner-core")
    assert (source == {"workspace": True}) is bool(folder), source


def test_an_error_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match="No space left on device"):
        write_project("cells", "torch", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "direct, expected",
    [
        (None, None),
        ({"url": "https://example.org/runner_core-0.1.0.whl", "archive_info": {}}, None),
        (
            {"url": "file:///my%20code/core", "dir_info": {"editable": True}},
            {"path": "/my code/core", "editable": True},
        ),
        ({"url": "file:///core", "dir_info": {}}, {"path": "/core"}),
        (
            {
                "url": "https://example.org/r.git",
                "vcs_info": {"vcs": "git", "commit_id": "0a"},
                "subdirectory": "packages/core",
            },
            {"git": "https://example.org/r.git", "rev": "0a", "subdirectory": "packages/core"},
        ),
    ],
)
def test_uv_finds_the_core_where_it_was_installed_from(
    direct: dict[str, object] | None, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if direct is None else json.dumps(direct)
    monkeypatch.setattr(module, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    folder = write_project("cells", "torch", tmp_path)
    written = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    ci = yaml.safe_load((folder / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    here = isinstance(expected, dict) and "path" in expected
    assert ci.get("env") == ({"UV_NO_SOURCES": "1"} if here else None), "no CI reaches a folder of this computer"
    assert written["tool"]["uv"].get("sources", {}).get("runner-core") == expected
    assert written["tool"]["ruff"]["line-length"] == 120


def test_the_command_says_what_to_type_next(runner: Runner, tmp_path: Path) -> None:
    done = runner("new", "cells", "--framework", "keras", "--into", "my code")
    assert done.returncode == 0, done.stderr
    said = [line.strip() for line in done.stdout.splitlines()]
    folder = os.path.realpath(tmp_path / "my code" / "runner-cells")
    assert said[1:4] == [f"cd '{folder}'", "uv run runner cells train", "uv run pytest"]
    third = runner("new", "ages", "--task", "regression")
    assert "a project in torch" in third.stdout
    assert (tmp_path / "runner-ages" / "src" / "runner_ages" / "labels.py").is_file()
    again = runner("new", "cells", "--into", "my code")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("runner: my code/runner-cells exists and is not an empty folder")
    assert "Traceback" not in again.stderr
    assert runner("new", "Cells").returncode == runner("new").returncode == 2
    assert "runner new NAME" in runner().stdout


def test_the_template_is_no_part_of_the_package() -> None:
    assert not [template for template in (TEMPLATE, TEMPLATE_IMAGE) if (template / "__init__.py").exists()]
    code = "import pkgutil, runner_core.cli.new as n; print([m.name for m in pkgutil.walk_packages(n.__path__, 'n.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "what imports all modules of the core must not meet the template"
