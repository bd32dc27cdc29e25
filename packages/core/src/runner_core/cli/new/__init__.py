"""`runner new NAME`: write a small package that segments or labels images, as a start for your own project.

The folder `template` beside this file is such a package, named `newproject`, that segments in torch; it is not part of
runner_core, and nothing imports it. The files in `template_image` replace those of the same name for the tasks that say
something of a whole image. In the copy, `newproject` becomes NAME and `NewTask` the task. Of files that differ by
framework or task, one is copied, without its suffix: `network_torch.py` or `network_keras.py` becomes `network.py`. A
leading `dot-` becomes a dot.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_full_folder
from runner_core.base.location import shell_word
from runner_core.base.writing import whole_folder
from runner_core.cli.arguments import Parser
from runner_core.plugins import discovery

TEMPLATE = Path(__file__).with_name("template")
TEMPLATE_IMAGE = Path(__file__).with_name("template_image")
PLACEHOLDER = "newproject"
FRAMEWORKS = ("torch", "keras")
TASKS = ("segmentation", "classification", "regression")
_LABELS = {"classification": ("class", "ring"), "regression": ("value", "12.5")}
"""The column of labels.csv and a value in it, for README.md."""
_LONGEST = 40
_NO_SOURCES = """env:
  UV_NO_SOURCES: "1" # [tool.uv.sources] names a folder of your computer: here runner-core comes from the index

"""
"""Part of ci.yml if runner-core was installed from a folder."""


def new(arguments: Sequence[str]) -> int:
    """Run `runner new NAME [--task TASK] [--framework torch|keras] [--into DIR]`."""
    parser = Parser(prog="runner new", description="Write a package with a project that trains.")
    parser.add_argument("name", metavar="NAME", help="name of the project, as typed after `runner`; for example cells")
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="segmentation",
        help="what is wanted of an image: a class for each pixel (default), one class, or one number",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch", help="default: torch")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="DIR", help="folder to write runner-NAME into (NAME in packages/)"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    chosen = parser.parse_args(list(arguments))
    folder = write_project(chosen.name, chosen.framework, chosen.into, chosen.task)
    print(f"{folder}: a project in {chosen.framework} that runs as it is. Next:")
    print(f"  cd {shell_word(folder.resolve())}\n  uv run runner {chosen.name} train\n  uv run pytest")
    print("README.md there says how to make it your own")
    return 0


def write_project(name: str, framework: str, into: Path, task: str = "segmentation") -> Path:
    """Write the package runner-NAME into `into`, whole or not at all, and return its folder.

    Raises BadInput for a name that cannot be used, and if the folder is in use already.
    """
    _refuse(name)
    folder, core = into / f"runner-{name}", _core_beside(into / name)
    if core and core.name == "core":  # packages/NAME beside packages/core: where `.ci/run alone NAME` looks for it
        folder = into / name
    if folder.is_symlink() and not folder.exists():
        raise BadInput(f"{folder} is a broken link; remove it, or choose another place with --into")
    refuse_full_folder(folder, "choose another name, or another place with --into")
    sources = _sources(folder)
    without = _NO_SOURCES if "path = " in sources else ""
    try:
        with whole_folder(folder) as temporary:
            for place, file in _template(task).items():
                if target := _place(place, name, framework, task):
                    (temporary / target).parent.mkdir(parents=True, exist_ok=True)
                    text = _filled(file.read_text("utf-8"), name, framework, task)
                    text = text.replace("# SOURCES\n", sources).replace("# NO SOURCES\n", without)
                    (temporary / target).write_text(text, "utf-8")
            (temporary / ".python-version").write_text("{}.{}\n".format(*sys.version_info), "utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror or error}; choose a place with --into") from error
    return folder


def _refuse(name: str) -> None:
    """Raise BadInput if `name` cannot be a project's name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > _LONGEST:
        raise BadInput(
            f"{name!r} cannot be a project's name: use at most {_LONGEST} small letters, digits and single _ between "
            "them, and begin with a letter"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise BadInput(f"{name!r} is a word of Python itself: choose another name")
    from runner_core.cli import PROJECT_COMMANDS

    if name in (*discovery.COMMANDS, *PROJECT_COMMANDS, "help"):
        raise BadInput(f"{name!r} is a command of runner: choose another name")
    if plugin := discovery.projects().get(name):
        raise BadInput(f"the project {name!r} is installed already, by {plugin.distribution}: choose another name")
    if find_spec(f"runner_{name}"):
        raise BadInput(f"the project would hide the Python package runner_{name}, which exists: choose another name")


def _template(task: str) -> dict[str, Path]:
    """Return the template's files by their path in it."""
    folders = [TEMPLATE] if task == "segmentation" else [TEMPLATE, TEMPLATE_IMAGE]
    files = {p.relative_to(folder).as_posix(): p for folder in folders for p in folder.rglob("*") if p.is_file()}
    return dict(sorted(files.items()))


def _place(path: str, name: str, framework: str, task: str) -> str | None:
    """Return the target path of a template file; None if it is of another framework or task, or a tool's own."""
    if any(f"_{other}." in path or f"_{other}_" in path for other in {*FRAMEWORKS, *TASKS} - {framework, task}):
        return None
    if any(part in path for part in ("__pycache__", "_cache/")):
        return None
    for own in (framework, task):
        path = path.replace(f"_{own}.", ".").replace(f"_{own}_", "_")
    return path.replace("dot-", ".").replace(PLACEHOLDER, name)


def _filled(text: str, name: str, framework: str, task: str) -> str:
    """Return the template's text with the framework, the task and the name filled in."""
    if framework != "torch":
        text = text.replace("torch", framework)
    column, example = _LABELS.get(task, ("", ""))
    for placeholder, own in (("labelcolumn", column), ("labelexample", example), ("newtask", task)):
        text = text.replace(placeholder, own)
    return text.replace("NewTask", task.capitalize()).replace(PLACEHOLDER, name)


def _sources(folder: Path) -> str:
    """Return the section of pyproject.toml that tells uv where to find runner-core, if no index has it; else ""."""
    if _core_beside(folder):
        return "\n[tool.uv.sources]\nrunner-core = { workspace = true }\n"
    try:
        direct = json.loads(distribution("runner-core").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        direct = {}
    url = direct.get("url", "")
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        where = {"path": path} | ({"editable": True} if direct.get("dir_info", {}).get("editable") else {})
    elif "vcs_info" in direct and direct["vcs_info"]["vcs"] == "git":
        where = {"git": url, "rev": direct["vcs_info"]["commit_id"]}
        where |= {"subdirectory": direct["subdirectory"]} if "subdirectory" in direct else {}
    else:
        return ""
    fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in where.items())
    return f"""
# runner-core was installed from here when this file was written, not from an index. Others cannot reach a folder of
# your computer: give them an address that they can, or leave the section out once an index has runner-core.
[tool.uv.sources]
runner-core = {{ {fields} }}
"""


def _core_beside(folder: Path) -> Path | None:
    """Return the folder of runner-core if `folder` will be a member of its uv workspace, else None.

    uv refuses the whole workspace if a member takes the core from anywhere else.
    """
    folder = folder.resolve()
    for root in folder.parents:
        if workspace := _table(root, "tool", "uv", "workspace"):
            if not _matches(folder.relative_to(root), workspace):
                return None
            members = (path.parent for path in _members(root, workspace))
            return next((m for m in members if _table(m, "project").get("name") == "runner-core"), None)
    return None


def _members(root: Path, workspace: dict[str, Any]) -> Iterator[Path]:
    """Yield pyproject.toml of each member."""
    for pattern in workspace.get("members", []):
        yield from (
            p for p in root.glob(f"{pattern}/pyproject.toml") if _matches(p.parent.relative_to(root), workspace)
        )


def _matches(path: Path, workspace: dict[str, Any]) -> bool:
    """Return whether a folder of the workspace is a member."""

    def match(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
        if not pattern:
            return not parts
        if pattern[0] == "**":
            return any(match(parts[n:], pattern[1:]) for n in range(len(parts) + 1))
        return bool(parts) and fnmatchcase(parts[0], pattern[0]) and match(parts[1:], pattern[1:])

    inside, outside = (
        any(match(path.parts, Path(pattern).parts) for pattern in workspace.get(kind, []))
        for kind in ("members", "exclude")
    )
    return inside and not outside


def _table(folder: Path, *names: str) -> dict[str, Any]:
    """Return a table of the folder's pyproject.toml; empty if there is none."""
    try:
        found: Any = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    for name in names:
        found = found.get(name, {})
    return found
