"""Finds installed plugins from metadata and source text alone, without importing a plugin, pluggy or NumPy.

`runner`, `runner --help` and `runner list` show them, and must answer in a tenth of a second. `place_of` finds the
plugin that an error comes from.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, did_you_mean

PROJECTS = "runner.projects"
EXTENSIONS = "runner.extensions"
OWN_COMMANDS = "runner.commands"
"""Entry points PLUGIN.COMMAND: functions that are commands of this project alone, or an extension's for every project.
"""
EXPORTS = "runner.exports"
"""Entry points FORMAT: functions that write a trained network in a format, for `export --to FORMAT`."""
COMMANDS = {
    "list": "runner_core.cli:list_plugins",
    "doctor": "runner_core.cli.doctor:doctor",
    "cache": "runner_core.cli.cache:cache",
    "compare": "runner_core.cli.compare:compare",
    "watch": "runner_core.cli.watch:watch",
    "verify-resume": "runner_core.cli.verify_resume:verify_resume",
    "reproduce": "runner_core.cli.reproduce:reproduce",
    "new": "runner_core.cli.new:new",
    "completion": "runner_core.cli.completion:completion",
}
"""Commands of `runner` itself, and the functions that they call; no project can have one of these names."""


class Plugin(NamedTuple):
    """An installed plugin, not loaded; `kind` is project or extension."""

    name: str
    kind: Literal["project", "extension"]
    distribution: str
    version: str
    entry: EntryPoint

    def summary(self) -> str:
        """Return the one-line summary in its distribution's metadata."""
        metadata = self.entry.dist.metadata if self.entry.dist else None
        return metadata["Summary"] if metadata is not None and "Summary" in metadata else ""

    def facts(self) -> dict[str, object]:
        """Return what is known of it without importing it, for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "package": self.distribution,
            "version": self.version,
            "summary": self.summary(),
            "hooks": self.hooks(),
            "commands": self.commands(),
            "formats": self.formats(),
        }

    def commands(self) -> list[str]:
        """Return the names of the commands that it adds."""
        return [command for owner, command, _ in _commands() if owner == (self.name, self.distribution)]

    def formats(self) -> list[str]:
        """Return the formats that its distribution adds to `export --to`."""
        found = export_formats().items()
        return [name for name, entry in found if entry.dist and entry.dist.name == self.distribution]

    def hooks(self) -> list[str]:
        """Return the names, without `runner_`, of the hooks that its source marks with @hookimpl.

        An empty list means that they cannot be found without importing it.
        """
        try:
            source = _source(self.entry.module)
            body = ast.parse(source.read_bytes()).body if source else []
        except (ImportError, OSError, SyntaxError, ValueError):
            return []
        if self.entry.attr:
            body = _inside(body, self.entry.attr)
        marked = [node.name for node in body if isinstance(node, ast.FunctionDef) and _is_marked(node)]
        return [name.removeprefix("runner_") for name in marked]


def projects() -> dict[str, Plugin]:
    """Return installed projects by name. Raises BadInput when two distributions claim one name."""
    found = _unique(_plugin(e, "project") for e in entry_points(group=PROJECTS))
    for name, plugin in found.items():
        if name in COMMANDS:
            raise BadInput(
                f"the project {name!r} of {plugin.distribution} has the name of a command of runner; "
                f"uninstall {plugin.distribution}, or have it renamed"
            )
    return found


def extensions() -> dict[str, Plugin]:
    """Return installed extensions by name. Raises BadInput when two distributions claim one name."""
    return _unique(_plugin(e, "extension") for e in entry_points(group=EXTENSIONS))


class OwnCommand(NamedTuple):
    """A command that a plugin adds to those that every project has; not loaded."""

    name: str
    entry: EntryPoint
    owner: Plugin
    """The project, or an extension."""

    def summary(self) -> str:
        """Return the first paragraph of its function's docstring, without capital and full stop, from its source."""
        try:
            source = _source(self.entry.module)
            body = ast.parse(source.read_bytes()).body if source else []
        except (ImportError, OSError, SyntaxError, ValueError):
            return ""
        functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == self.entry.attr]
        text = ast.get_docstring(functions[0]) if functions else None
        first = " ".join((text or "").partition("\n\n")[0].split()).removesuffix(".")
        return f"{first[:1].lower()}{first[1:]}"


def own_commands(project: Plugin, taken: Container[str]) -> dict[str, OwnCommand]:
    """Return the commands that the project's distribution adds, then those of extensions, by name.

    Raises BadInput for a name in `taken`, and for one that two plugins add.
    """
    owners = {(plugin.name, plugin.distribution): plugin for plugin in (project, *extensions().values())}
    found: dict[str, OwnCommand] = {}
    for key, command, entry in sorted(_commands(), key=lambda of: of[0] != (project.name, project.distribution)):
        owner = owners.get(key)
        if owner is None:
            continue
        if command in taken or command in found:
            other = (
                f"one of {found[command].owner.distribution}"
                if command in found
                else "a command that every project has"
            )
            raise BadInput(
                f"the command {entry.name!r} of {owner.distribution} has the name of {other}; "
                f"uninstall {owner.distribution}, or have the command renamed"
            )
        found[command] = OwnCommand(command, entry, owner)
    return found


def _commands() -> Iterator[tuple[tuple[str, str], str, EntryPoint]]:
    """Yield the commands that plugins add: the plugin's name and distribution, the command's name, its entry point."""
    for entry in entry_points(group=OWN_COMMANDS):
        plugin, _, command = entry.name.partition(".")
        yield (plugin, entry.dist.name if entry.dist else "?"), command, entry


def export_formats() -> dict[str, EntryPoint]:
    """Return the formats that installed packages add to `export --to`, by name.

    Raises BadInput for one that two packages add.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=EXPORTS):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            both = " and ".join(one.dist.name if one.dist else "?" for one in (other, entry))
            raise BadInput(f"the export format {entry.name!r} comes from {both}: uninstall one of them")
    return found


def find_project(name: str, commands: Iterable[str] = ()) -> Plugin:
    """Return the installed project of this name.

    Raises BadInput that lists the installed ones. If `name` is like one of a project's `commands`, the message says
    where it belongs.
    """
    found = projects()
    if name in found:
        return found[name]
    from difflib import get_close_matches  # only errors need it

    hint = did_you_mean(name, [*found, *COMMANDS])
    there = f"installed projects: {', '.join(found) or 'none'}"
    if not hint and (near := get_close_matches(name, list(commands), n=1, cutoff=0.75)):
        hint = f"; did you mean `runner PROJECT {near[0]}`?"
    own = f"`{runner()} new {name if name.isidentifier() else 'NAME'}` writes one of your own"
    more = "" if hint else f"; {how_to_install(name) or own}"
    raise BadInput(f"there is no project or command {name!r}{hint}\n{there}{more}")


def none_installed() -> str:
    """Return the message that there is no project, with what to do."""
    root, names = _repository()
    own = f"`{runner()} new cells` writes one of your own"
    there = f"the README in {root} has the lines that install {', '.join(names)}; " if names else ""
    return f"no project is installed: {there}{own}"


def how_to_install(name: str) -> str:
    """Return the command that adds a project of the repository that runner was installed from, or "".

    It brings CUDA only into an environment whose frameworks have it, or that has none yet.
    """
    root, names = _repository()
    if name not in names:
        return ""
    package = f"packages/{name}"
    without = f"uv pip install --torch-backend cpu -e {package}"
    if (root / package / "cpu.txt").exists():
        without = f"uv pip install --overrides {package}/cpu.txt -e {package} tensorflow-cpu"
    if _without_cuda():
        return f"`{without}` in {root} adds it"
    return f"`uv pip install -e {package}` in {root} adds it, without CUDA `{without}`"


def _repository() -> tuple[Path, list[str]]:
    """Return the folder that runner's core was installed from, and the projects in it: none if it was a wheel."""
    import json  # only errors need these
    import tomllib
    from urllib.parse import unquote, urlsplit

    address = urlsplit(json.loads(distribution("runner-core").read_text("direct_url.json") or "{}").get("url", ""))
    root = Path(unquote(address.path)).parent.parent
    files = root.glob("packages/*/pyproject.toml") if address.scheme == "file" else ()
    names = []
    for file in sorted(files):
        with suppress(OSError, ValueError):
            names += tomllib.loads(file.read_text("utf-8"))["project"].get("entry-points", {}).get(PROJECTS, ())
    return root, names


def _without_cuda() -> bool:
    """Return whether a framework is installed whose build is for the CPU alone."""
    for package, sign in (("torch", "+cpu"), ("tensorflow-cpu", "")):
        with suppress(PackageNotFoundError):
            if version(package).endswith(sign):
                return True
    return False


def _plugin(entry: EntryPoint, kind: Literal["project", "extension"]) -> Plugin:
    dist = entry.dist
    return Plugin(entry.name, kind, dist.name if dist else "?", dist.version if dist else "?", entry)


def _unique(plugins: Iterable[Plugin]) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for plugin in sorted(plugins, key=lambda p: (p.name, p.distribution)):
        other = found.get(plugin.name)
        if other is not None:
            raise BadInput(
                f"two installed distributions give the {plugin.kind} {plugin.name!r}: {other.distribution} "
                f"{other.version} and {plugin.distribution} {plugin.version}; uninstall one of them"
            )
        found[plugin.name] = plugin
    return found


def _source(module: str) -> Path | None:
    """Return the file of a module. Packages above it are looked up, not imported."""
    parts = module.split(".")
    spec: ModuleSpec | None = find_spec(parts[0])
    for i in range(1, len(parts)):
        if spec is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), spec.submodule_search_locations)
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _inside(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    """Return the body of the class `name`, or of the class that `name = Class(…)` instantiates."""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
    return next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name), [])


def _is_marked(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(mark).partition("(")[0].endswith("hookimpl") for mark in function.decorator_list)


def place_of(error: BaseException) -> str | None:
    """Return file, line and function of the innermost frame in a project's or an extension's code; None without one."""
    import traceback  # slow to import, and only errors need it

    plugins = _plugins()
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = Path(frame.f_code.co_filename)
        if package in plugins or not (package in ("runner_core", "__main__") or _others(file)):
            place = f"{file.parent.name}/{file.name}, line {line}, `{frame.f_code.co_name}`"
    return place


def _plugins() -> set[str]:
    """Return the packages that hold projects and extensions."""
    with suppress(BadInput):  # plugins in conflict: the command itself reports them
        found = (*projects().values(), *extensions().values())
        return {plugin.entry.module.partition(".")[0] for plugin in found}
    return set()


def _others(file: Path) -> bool:
    """Return whether this file belongs to Python or to an installed package."""
    import sysconfig

    paths = sysconfig.get_paths()
    return not file.exists() or any(file.is_relative_to(paths[of]) for of in ("stdlib", "purelib", "platlib"))
