"""The checks of a change: what .ci/affected.py chooses, and that the GitHub workflow runs parts of .ci/run."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from workspace import ROOT

CI = ROOT / ".ci"
PROJECTS = sorted(p.parent.name for p in ROOT.glob("packages/*/pyproject.toml") if p.parent.name != "core")
PRINTED = ("packages", "workspace")
"""Names that affected.py prints for GitHub."""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("affected", CI / "affected.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AFFECTED = load()
EVERY = AFFECTED.matrix()


def test_every_package_is_tested_and_the_core_with_each_engine() -> None:
    assert {job["package"] for job in EVERY} == {"core", *PROJECTS}
    assert {job["extra"] for job in EVERY if job["package"] == "core"} == {"torch", "keras"}


EVERYTHING = (EVERY, "all")


@pytest.mark.parametrize(
    "path",
    [
        "packages/core/src/runner_core/training/loop.py",
        "packages/core/README.md",
        "uv.lock",
        "pyproject.toml",
        "conftest.py",
        ".python-version",
        ".github/workflows/ci.yml",
        ".ci/run",
        "packages/gone/src/runner_gone/__init__.py",
        "something new",
    ],
)
def test_what_concerns_everything(path: str) -> None:
    assert AFFECTED.affected(["docs/use.md", path], EVERY) == EVERYTHING


@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_is_tested_alone_when_only_it_changes(project: str) -> None:
    paths = [f"packages/{project}/pyproject.toml", f"packages/{project}/src/runner_{project}/project.py", "README.md"]
    assert AFFECTED.affected(paths, EVERY) == ([{"package": project, "extra": ""}], "tests")


def test_several_projects() -> None:
    packages, workspace = AFFECTED.affected([f"packages/{name}/README.md" for name in PROJECTS], EVERY)
    assert [job["package"] for job in packages] == PROJECTS
    assert workspace == "tests"


def test_documentation_needs_lint_and_docs_only() -> None:
    assert AFFECTED.affected(["docs/how-it-works/cache.md", "README.md", "mkdocs.yml"], EVERY) == ([], "")


@pytest.mark.parametrize("path", ["tests/test_resume.py", "examples/zarr-cache/README.md", "benchmarks/cache.py"])
def test_what_crosses_packages(path: str) -> None:
    assert AFFECTED.affected([path], EVERY) == ([], "tests")


def test_an_empty_change_needs_nothing_and_an_unknown_one_everything() -> None:
    assert AFFECTED.affected([], EVERY) == ([], "")
    assert AFFECTED.affected(None, EVERY) == EVERYTHING


@pytest.fixture
def history(tmp_path: Path) -> Any:
    """commit(path, …) → the new commit's name, in a repository of this test."""

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, text=True, capture_output=True, check=True)
        return done.stdout.strip()

    def commit(*paths: str) -> str:
        for path in paths:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{path}\n" * 20)
        git("add", "--all")
        git("commit", "-q", "--allow-empty", "-m", "a commit")
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    commit.git = git  # type: ignore[attr-defined]
    return commit


def test_the_paths_of_a_push(history: Any, tmp_path: Path) -> None:
    before = history("one.py")
    history("docs/a page.md", "docs/ü.md")
    history("packages/x/y.py")
    assert AFFECTED.changed(before, tmp_path) == ["docs/a page.md", "docs/ü.md", "packages/x/y.py"]
    assert AFFECTED.changed("HEAD", tmp_path) == []


def test_a_moved_file_changes_both_places(history: Any, tmp_path: Path) -> None:
    before = history("packages/x/y.py")
    (tmp_path / "packages/z").mkdir()
    (tmp_path / "packages/x/y.py").rename(tmp_path / "packages/z/y.py")
    history()
    assert AFFECTED.changed(before, tmp_path) == ["packages/x/y.py", "packages/z/y.py"]


def test_a_branch_does_not_answer_for_what_main_did_meanwhile(history: Any, tmp_path: Path) -> None:
    history("one.py")
    history.git("checkout", "-q", "-b", "branch")
    history("mine.py")
    history.git("checkout", "-q", "main")
    main = history("theirs.py")
    history.git("checkout", "-q", "branch")
    assert AFFECTED.changed(main, tmp_path) == ["mine.py"]


@pytest.mark.parametrize("base", ["", "0" * 40, "1234567890" * 4, "--output=x"])
def test_where_git_cannot_compare_it_says_so(base: str, history: Any, tmp_path: Path) -> None:
    """A first commit, one that a forced push left behind, nonsense."""
    history("one.py")
    assert AFFECTED.changed(base, tmp_path) is None
    assert [p.name for p in tmp_path.iterdir() if p.name != ".git"] == ["one.py"]


def test_histories_without_a_common_commit(history: Any, tmp_path: Path) -> None:
    old = history("one.py")
    history.git("checkout", "-q", "--orphan", "anew")
    history("two.py")
    assert AFFECTED.changed(old, tmp_path) is None


def test_the_output_is_what_github_reads(capsys: pytest.CaptureFixture[str]) -> None:
    AFFECTED.main([])
    printed = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert tuple(printed) == PRINTED
    assert (json.loads(printed["packages"]), printed["workspace"]) == EVERYTHING
    AFFECTED.main(["--list"])
    assert capsys.readouterr().out.split("\n")[:-1] == [f"{j['package']} {j['extra']}".strip() for j in EVERY]


WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_workflow_runs_every_part_of_the_script_and_nothing_of_its_own() -> None:
    parts = re.findall(r"^(\w+)\(\) \{", (CI / "run").read_text(), re.MULTILINE)
    called = set()
    for name in ("lint", "docs", "package", "workspace", "weekly", "containers"):
        for command in commands(JOBS[name]):
            assert command.startswith("bash .ci/run "), command
            part = command.split()[2].strip('"')
            called |= {part} if part in parts else set(next(iter(lists(JOBS[name]))))
    assert called == set(parts) - {"finish", "step", "scheduler", "screen", "debian"}


def lists(job: dict[str, Any]) -> list[list[str]]:
    return [value for value in job["strategy"]["matrix"].values() if isinstance(value, list)]


def test_expressions_name_what_there_is() -> None:
    """Expressions name outputs of jobs that are waited for, and keys of the matrix; actionlint checks the same."""
    keys = {f"of.{key}" for job in EVERY for key in job}
    for name, job in JOBS.items():
        needs = job.get("needs", [])
        needs = [needs] if isinstance(needs, str) else needs
        assert set(needs) <= set(JOBS)
        known = {f"needs.{other}.outputs.{key}" for other in needs for key in JOBS[other].get("outputs", {})}
        known |= {f"matrix.{key}" for key in {*job.get("strategy", {}).get("matrix", {}), *keys}}
        known |= {f"steps.{s['id']}.outputs.{key}" for s in job["steps"] if "id" in s for key in PRINTED}
        text = yaml.safe_dump(job, width=10**6)
        used = set(re.findall(r"\b(?:needs|matrix|steps)\.[\w.-]*\w", re.sub(r"needs\.\*\.result", "", text)))
        assert used <= known, name


def test_jobs_end_in_time_may_only_read_and_are_all_waited_for() -> None:
    assert WORKFLOW["permissions"] == {}
    for job in JOBS.values():
        assert job["timeout-minutes"] <= 60
        assert job.get("permissions", {}) in ({}, {"contents": "read"})
    assert set(JOBS["passed"]["needs"]) == set(JOBS) - {"passed"}


def test_a_release_is_built_without_rights_and_only_its_upload_has_one() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert release["permissions"] == {}
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert build["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert not any("checkout" in step.get("uses", "") for step in publish["steps"]), "it uploads what was built"
    *_, rehearsal, upload = publish["steps"]
    assert "--dry-run" in rehearsal["run"]
    assert upload["if"] == "github.event_name == 'push'"


def test_all_versions_are_one() -> None:
    files = [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]
    versions = {tomllib.loads(file.read_text())["project"]["version"] for file in files}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert versions == {cited["version"]}
    template = ROOT / "packages/core/src/runner_core/cli/new/template/pyproject.toml"
    plugins = [file for file in files if file.parent not in (ROOT, ROOT / "packages" / "core")]
    for file in [*plugins, template]:
        text = file.read_text(encoding="utf-8")
        bounds = re.findall(r'"runner-core(?:\[(?:torch|keras|stream,torch)\])?(>=.*?)"', text)
        assert bounds == [f">={cited['version']}"], file
    assert cited["license"] == "Apache-2.0"


def test_the_script_is_sound_bash() -> None:
    done = subprocess.run(["bash", "-n", str(CI / "run")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ONCE = """
import pytest

@pytest.mark.parametrize("case", ["a", "b"])
def test_sound(case): pass

@pytest.mark.everywhere
def test_installed(): pass

def test_skipped(): pytest.skip("not here")

@pytest.mark.xfail(strict=False)
def test_known(): raise OSError

@pytest.mark.slow
def test_slow(): pass
"""


def test_what_passed_alone_is_left_out_of_the_workspace(tmp_path: Path) -> None:
    """Only that: what was skipped, slow, known to fail or depends on what is installed has its turn."""
    tests, passed = tmp_path / "repository", tmp_path / "elsewhere" / "passed"
    tests.mkdir()
    passed.parent.mkdir()
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tests)
    (tests / "test_once.py").write_text(ONCE)
    used = set(re.findall(r'"(--write-passed=|--leave-out=)\$passed"', (ROOT / ".ci" / "run").read_text()))
    assert used == {"--write-passed=", "--leave-out="}, "without =, pytest looks for its settings beside the file"

    def outcomes(*words: str) -> dict[str, int]:
        command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", *words]
        done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-1]
        return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|skipped|xfailed)", last)}

    assert outcomes(f"--write-passed={passed}") == {"passed": 3, "skipped": 1, "xfailed": 1}
    names = passed.read_text().splitlines()
    assert names == [f"test_once.py::{name}" for name in ("test_sound[a]", "test_sound[b]", "test_installed")]
    assert outcomes("-m", "not weekly", f"--leave-out={passed}") == {"passed": 2, "skipped": 1, "xfailed": 1}
