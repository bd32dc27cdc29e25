"""`runner list --hooks`: load every plugin, and show who provides which capability and what prevents it.

A capability that several extensions offer is not yet an error: all but one may decline it. Exit code 2: a plugin is
broken.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from runner_core.base.errors import BadInput
from runner_core.base.text import aligned
from runner_core.cli.arguments import Parser
from runner_core.cli.json_output import show_json
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins, gives_first_result, hook_names


def list_hooks(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if options.hooks is None:
        parser.error("--extension and --no-extension go with --hooks")
    names = [options.hooks] if options.hooks else list(discovery.projects())
    broken, facts = list[str](), dict[str, object]()
    for number, name in enumerate(names):
        problems: list[str] = []
        plugins = Plugins.load(name, options.extension, options.no_extension, problems.append)
        print(f"\nrunner {name}:" if number else f"runner {name}:")
        head = ("capability", "provided by", "also offered by")
        print(*aligned([head, *(_row(plugins, hook) for hook in hook_names())]), sep="\n")
        for hook in hook_names():
            if several := plugins.contested(hook):
                offer = f"{hook.removeprefix('runner_')} is contested: {' and '.join(several)}"
                print(f"{offer}; if both answer, choose one with `--extension NAME`")
        for problem in problems:
            print(f"PROBLEM: {problem}")
        broken += problems
        facts[name] = {
            "hooks": {hook.removeprefix("runner_"): _facts(plugins, hook) for hook in hook_names()},
            "problems": problems,
        }
    if options.json:
        show_json({"projects": facts})
    return BadInput.exit_code if broken else 0


def _facts(plugins: Plugins, hook: str) -> dict[str, object]:
    contested = plugins.contested(hook)
    return {"offered_by": plugins.offers(hook), "first_wins": gives_first_result(hook), "contested": contested}


def _row(plugins: Plugins, hook: str) -> tuple[str, str, str]:
    offers, name = plugins.offers(hook), hook.removeprefix("runner_")
    if not gives_first_result(hook):
        return name, " + ".join(reversed(offers)) or "–", ""
    undecided = len(plugins.contested(hook)) or 1
    return name, " or ".join(reversed(offers[:undecided])) or "–", ", ".join(offers[undecided:])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="runner list",
        description="List projects and extensions. --hooks loads them and shows who provides what. Depending "
        "on its settings, an extension may decline a capability that it offers: the next one then provides it.",
        allow_abbrev=False,
    )
    parser.add_argument("--hooks", nargs="?", const="", metavar="PROJECT", help="load them (default: all projects)")
    parser.add_argument("--extension", action="append", default=[], metavar="NAME", help="prefer it, as in a run")
    parser.add_argument(
        "--no-extension", action="append", default=[], metavar="NAME", help="leave this extension out, as in a run"
    )
    parser.add_argument("--json", action="store_true", help="print the result on stdout as JSON")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser
