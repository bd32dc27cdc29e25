"""The workspace: names and layout as promised, light start-up, permissive licences, no registry named."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from runner_core.plugins.discovery import how_to_install
from workspace import PACKAGES, PROJECTS, ROOT, Runner


def test_every_package_has_the_promised_names() -> None:
    assert PACKAGES
    for folder in PACKAGES:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert project["name"] == f"runner-{folder.name}"
        assert (folder / "src" / f"runner_{folder.name}" / "__init__.py").is_file()
        assert (folder / "README.md").read_text().strip()
        assert (folder / "tests").is_dir()


def test_every_project_is_held_to_the_contract_and_says_what_its_metrics_should_be() -> None:
    for folder in PROJECTS:
        test = (folder / "tests" / "test_contract.py").read_text()
        assert f'class TestContract(ProjectContract):\n    project = "{folder.name}"' in test
        assert "plain_metrics=" in (folder / "src" / f"runner_{folder.name}" / "project.py").read_text()


def test_the_root_depends_on_every_member() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(root["project"]["dependencies"]) == {f"runner-{folder.name}" for folder in PACKAGES}


def test_the_list_names_every_project_and_extension(runner: Runner) -> None:
    done = runner("list", fresh=True)
    assert done.returncode == 0, done.stderr
    for folder in PACKAGES:
        if folder.name != "core":
            assert folder.name in done.stdout


def test_the_readme_names_every_project_and_how_to_install_it_alone() -> None:
    readme = (ROOT / "README.md").read_text()
    for folder in PACKAGES:
        assert folder.name == "core" or f"(packages/{folder.name}/README.md)" in readme
    for folder in PROJECTS:
        assert f"`uv sync --package runner-{folder.name}`" in readme
        without_cuda = re.findall("`(.*?)`", how_to_install(folder.name))[-1]
        assert f"uv venv && {without_cuda}\n" in (folder / "README.md").read_text(), "as the program says it"


@pytest.mark.parametrize("words", [[], ["--help"], ["list"]], ids=["runner", "help", "list"])
def test_nothing_heavy_is_imported_to_say_what_there_is(words: list[str]) -> None:
    """≤ 100 ms is measured in benchmarks/startup.py; here is what makes it so."""
    code = (
        "import sys, json\nfrom runner_core.cli import main\n"
        f"sys.argv = ['runner', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    heavy = {"torch", "tensorflow", "keras", "jax", "numpy", "monai", "tyro", "rich", "yaml", "pluggy", "matplotlib"}
    assert not loaded & heavy


def _runtime_closure(name: str) -> set[str]:
    from packaging.requirements import Requirement

    names: set[str] = set()
    queue = [(name, "")]
    while queue:
        current, extra = queue.pop()
        for text in importlib.metadata.requires(current) or []:
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            if need.name not in names:
                names.add(need.name)
                queue += [(need.name, e) for e in need.extras or [""]]
    return names


COPYLEFT = ("AGPL", "GPL-2", "GPL-3", "GPLV2", "GPLV3", "GENERAL PUBLIC LICENSE", "CC-BY-NC", "CC BY-NC")


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_the_licences_of_the_base_install_are_permissive(folder: Path) -> None:
    bad = {}
    for name in _runtime_closure(f"runner-{folder.name}"):
        try:
            meta = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a dependency of another platform
        if "runner-" in name:
            continue
        said = [meta.get("License-Expression") or "", (meta.get("License") or "").splitlines()[:1] or ""]
        said += [c for c in meta.get_all("Classifier") or [] if c.startswith("License")]
        text = " ".join(map(str, said)).upper()
        if any(word in text for word in COPYLEFT):
            bad[name] = text
    assert not bad
