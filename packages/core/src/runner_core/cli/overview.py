"""`runner`, `runner list` and `runner PROJECT`: show what is installed and what to type next, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner_core.base.text import aligned
from runner_core.cli import PROJECT_COMMANDS
from runner_core.plugins import discovery
from runner_core.plugins.discovery import Plugin

_ACTIVE = "extensions, active in every project (`--no-extension NAME` switches one off)"
_NONE = "no project is installed: `uv sync --package runner-NAME` or `pip install runner-NAME` adds one"


def overview() -> int:
    """Print the page of `runner` and `runner --help`."""
    projects = discovery.projects()
    print("runner: train scientific-imaging models, fast and honestly\n")
    _print_installed(projects.values(), discovery.extensions().values())
    name = next(iter(projects), "PROJECT")
    print("\nnext:")
    _columns(
        [
            (f"runner {name} train", "train on a generated phantom: about a minute on 2 cores"),
            (f"runner {name} train --data DIR", "train on your own data"),
            (f"runner {name} check --data DIR", "audit your data first"),
            (f"runner {name} --help", f"all commands of {name}"),
            ("runner list", "projects and extensions, and what each provides; --hooks: who wins, and conflicts"),
            ("runner new NAME", "write a project of your own: a package that trains as it is"),
            ("runner doctor", "the machine, GPU, versions; what is slow or missing"),
            ("runner cache list|verify|prune", "caches of prepared data on this machine"),
        ]
    )
    return 0


def list_plugins(arguments: Sequence[str]) -> int:
    """Print every plugin with the hooks in its source (`runner list`); --hooks is in `runner_core.cli.hooks`."""
    if arguments:
        from runner_core.cli.hooks import list_hooks

        return list_hooks(arguments)
    head = ("name", "package", "provides", "")
    projects, extensions = discovery.projects(), discovery.extensions()
    lines = aligned([head, *map(_described, [*projects.values(), *extensions.values()])])
    if projects:
        print("projects:", *lines[: len(projects) + 1], sep="\n")
    else:
        print(_NONE)
    if extensions:
        print(f"\n{_ACTIVE}:", lines[0], *lines[len(projects) + 1 :], sep="\n")
    print("\n`runner list --hooks [PROJECT]` loads them: who provides what, and conflicts")
    return 0


def _described(plugin: Plugin) -> tuple[str, str, str, str]:
    hooks = ", ".join(plugin.hooks()) or "cannot be read"
    return plugin.name, f"{plugin.distribution} {plugin.version}", hooks, plugin.summary()


def project_help(plugin: Plugin) -> int:
    """Print the commands of a project (`runner PROJECT`)."""
    name = plugin.name
    print(f"{name} ({plugin.distribution} {plugin.version}): {plugin.summary()}\n\ncommands:")
    _columns([(f"runner {name} {command}", text) for command, (_, text) in PROJECT_COMMANDS.items()])
    print(f"\n`runner {name} COMMAND --help` lists every setting with its default")
    return 0


def _print_installed(projects: Iterable[Plugin], extensions: Iterable[Plugin]) -> None:
    for title, plugins in (("projects", list(projects)), (_ACTIVE, list(extensions))):
        if plugins:
            print(f"{title}:")
            _columns([(p.name, f"{p.summary()}  [{p.distribution} {p.version}]") for p in plugins])
        elif title == "projects":
            print(_NONE)


def _columns(rows: Sequence[Sequence[str]]) -> None:
    print(*aligned(rows), sep="\n")
