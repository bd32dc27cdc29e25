"""Which parts of the checks a change needs, for the GitHub workflow: `python3 .ci/affected.py [BASE]`.

Prints `packages`, the matrix of packages to test alone, as JSON, and `workspace`, the tests to run in the environment
that holds everything, for $GITHUB_OUTPUT. BASE is the commit to compare with; without one, or where git cannot compare
(a first commit, a forced push), everything is checked. Lint and docs are cheap and always run.

`python3 .ci/affected.py --list` prints all packages for .ci/run, one a line. Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NOTHING = (
    *("docs/", "mkdocs.yml", "README.md", "CHANGELOG.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md"),
    ".gitignore",
)
"""Paths that only lint and docs look at; a name that ends with / is a folder."""

ACROSS = ("tests/", "examples/", "benchmarks/")
"""Paths that concern the tests across packages alone."""


def matrix(root: Path = ROOT) -> list[dict[str, str]]:
    """Every package, the core once with each engine: `{"package": folder's name, "extra": "" or the engine's}`."""
    found = []
    for package in sorted(file.parent.name for file in root.glob("packages/*/pyproject.toml")):
        engines = root.glob(f"packages/{package}/src/runner_core/engines/*/__init__.py") if package == "core" else ()
        extras = sorted(file.parent.name for file in engines) or [""]
        found += [{"package": package, "extra": extra} for extra in extras]
    return found


def changed(base: str, root: Path = ROOT) -> list[str] | None:
    """Paths that differ between HEAD and where it left `base`; None where git cannot tell."""
    if not base.strip("0"):
        return None
    git = ["git", "diff", "--name-only", "--no-renames", "-z", "--end-of-options", f"{base}...HEAD", "--"]
    done = subprocess.run(git, cwd=root, capture_output=True, text=True, check=False)
    return [path for path in done.stdout.split("\0") if path] if done.returncode == 0 else None


def within(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def affected(paths: list[str] | None, every: list[dict[str, str]]) -> tuple[list[dict[str, str]], str]:
    """Return the packages to test alone, and what to run in the workspace: "all", "tests" (across packages) or "".

    A project's change concerns that project and the tests across packages. Whatever is not known to be harmless
    concerns everything: the core, the lock, the root's pyproject.toml, the workflow and .ci among it.
    """
    projects = {job["package"] for job in every} - {"core"}
    touched = set()
    workspace = ""
    for path in paths if paths is not None else [""]:
        folder = path.split("/")[1] if path.startswith("packages/") else ""
        if folder in projects:
            touched.add(folder)
            workspace = "tests"
        elif within(path, ACROSS):
            workspace = "tests"
        elif not within(path, NOTHING):
            return every, "all"
    return [job for job in every if job["package"] in touched], workspace


def main(words: list[str]) -> None:
    every = matrix()
    if words == ["--list"]:
        print("\n".join(" ".join(filter(None, job.values())) for job in every))
        return
    packages, workspace = affected(changed(words[0]) if words else None, every)
    print(f"packages={json.dumps(packages)}\nworkspace={workspace}")


if __name__ == "__main__":
    main(sys.argv[1:])
