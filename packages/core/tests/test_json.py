"""`--json`: stdout is one JSON document, with the keys that docs/reference/json.md names; the rest is on stderr."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Runner = Callable[..., CompletedProcess[str]]
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "json.md"
MAY_LACK = {"files", "scores.further", "scores.unseen"}


def documented(command: str) -> set[str]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))


def matches(command: str, found: dict[str, Any]) -> None:
    wanted = documented(command)
    nested = {key.partition(".")[0] for key in wanted if "." in key}
    keys = {*found, *(f"{outer}.{key}" for outer in nested for key in found[outer])}
    assert wanted - MAY_LACK <= keys <= wanted


def result(done: CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_installed_and_the_machine(runner: Runner) -> None:
    found = result(runner("list", "--json"))
    matches("list", found)
    assert "toy" in [plugin["name"] for plugin in found["projects"]]
    hooks = result(runner("list", "--hooks", "toy", "--json"))["projects"]["toy"]["hooks"]
    assert hooks["project"] == {"offered_by": ["project toy"], "first_wins": True, "contested": []}
    found = result(runner("doctor", "--json"))
    matches("doctor", found)
    assert found["ram_bytes"] > found["free_ram_bytes"] > 0


@pytest.mark.torch
def test_check(runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "check", "--out", "checked", "--json")
    matches("check", found := result(done))
    assert "report: checked/report.html" in done.stderr
    assert json.loads((tmp_path / "checked" / "check.json").read_text()) == {
        k: found[k] for k in found if k != "folder"
    }


@pytest.mark.torch
def test_evaluate_and_compare(runner: Runner, trained: Path, tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(trained, tmp_path / name)
    done = runner("toy", "evaluate", "a", "--json")
    matches("evaluate", found := result(done))
    assert found["scores"]["means"] == json.loads((tmp_path / found["folder"] / "scores.json").read_text())["means"]
    assert "worst first" in done.stderr
    matches("compare", found := result(runner("compare", "a", "b", "--json")))
    assert found["settings"] == {}
    assert [run["folder"] for run in found["runs"]] == ["a", "b"]


@pytest.mark.torch
def test_caches(runner: Runner, trained: Path, cache_home: Path, tmp_path: Path) -> None:
    shutil.copytree(cache_home / "runner", tmp_path / "cache")
    matches("cache list and cache verify", found := result(runner("cache", "list", "--dir", "cache", "--json")))
    listed = next(entry for entry in found["caches"] if entry["project"] == "toy")
    assert (listed["problem"], listed["in_use"]) == (None, False)
    file = max((tmp_path / listed["folder"]).rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = runner("cache", "verify", "--dir", "cache", "--json")
    assert damaged.returncode == 2
    found = json.loads(damaged.stdout)
    assert [file.name in entry["problem"] for entry in found["caches"] if entry["problem"]] == [True]


@pytest.mark.torch
def test_a_refusal_leaves_stdout_empty(runner: Runner) -> None:
    done = runner("toy", "check", "--data", "nowhere", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere: there is no such folder" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_profile_tune_and_ablate(runner: Runner) -> None:
    matches("profile", result(runner("toy", "profile", "--steps", "2", "--json")))
    matches("tune", result(runner("toy", "tune", "--minutes", "0.1", "--json")))
    matches("ablate", result(runner("toy", "ablate", "--minutes", "0.05", "--only", "cache", "--json")))
