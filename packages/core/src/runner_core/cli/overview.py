"""`runner`, `runner list` and `runner PROJECT`: what is installed, and what to type next. From metadata alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner_core import discovery
from runner_core._errors import BadInput
from runner_core.cli import PROJECT_COMMANDS
from runner_core.discovery import Plugin


def overview() -> int:
    """`runner`, `runner --help`."""
    projects = discovery.projects()
    print("runner: train scientific-imaging models, fast and honestly\n")
    _print_installed(projects.values(), discovery.extensions().values())
    name = next(iter(projects), "PROJECT")
    print("\nnext:")
    _table(
        [
            (f"runner {name} train", "train on a generated phantom: about a minute on 2 cores"),
            (f"runner {name} train --data DIR", "train on your own data"),
            (f"runner {name} check --data DIR", "audit your data first"),
            (f"runner {name} --help", f"all commands of {name}"),
            ("runner list", "projects and extensions that are active; --hooks: what each provides"),
            ("runner new NAME", "write a project of your own: a package that trains as it is"),
            ("runner doctor", "the machine, GPU, versions; what is slow or missing"),
            ("runner cache list|verify|prune", "caches of prepared data on this machine"),
        ]
    )
    return 0


def list_plugins(arguments: Sequence[str]) -> int:
    """`runner list [--hooks]`."""
    if set(arguments) - {"--hooks"}:
        raise BadInput(f"`runner list` takes only --hooks, not {' '.join(arguments)}")
    projects, extensions = discovery.projects(), discovery.extensions()
    _print_installed(projects.values(), extensions.values())
    if arguments:
        from runner_core.plugins import Plugins

        for name in projects:
            print(f"\nhooks in `runner {name}`:")
            _table([(plugin, ", ".join(hooks)) for plugin, hooks in Plugins.load(name).provides().items()])
    return 0


def project_help(plugin: Plugin) -> int:
    """`runner PROJECT`: its commands."""
    name = plugin.name
    print(f"{name} ({plugin.distribution} {plugin.version}): {plugin.summary()}\n\ncommands:")
    _table([(f"runner {name} {command}", text) for command, (_, text) in PROJECT_COMMANDS.items()])
    print(f"\n`runner {name} COMMAND --help` lists every setting with its default")
    return 0


def _print_installed(projects: Iterable[Plugin], extensions: Iterable[Plugin]) -> None:
    active = "extensions, active in every project (`--no-extension NAME` switches one off)"
    for title, plugins in (("projects", list(projects)), (active, list(extensions))):
        if plugins:
            print(f"{title}:")
            _table([(p.name, f"{p.summary()}  [{p.distribution} {p.version}]") for p in plugins])
        elif title == "projects":
            print("no project is installed: `uv sync --package runner-NAME` or `pip install runner-NAME` adds one")


def _table(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}".rstrip())
