"""`runner cache list|verify|prune`: the caches of prepared data on this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import size_text
from runner_core.base.text import counted
from runner_core.cli.arguments import Parser
from runner_core.cli.json_output import show_json
from runner_core.data.cache import manage
from runner_core.data.cache.manage import Entry


def cache(arguments: Sequence[str]) -> int:
    if any(word.partition("=")[0] == "--cache.dir" for word in arguments):
        raise BadInput("--cache.dir is a setting of training; name the folder with --dir here")
    options = _parser().parse_args(list(arguments) or ["--help"])
    if options.dir is not None and not options.dir.is_dir():
        raise BadInput(f"--dir {options.dir}: there is no such folder")
    if options.command == "list":
        return _list(options)
    if options.command == "verify":
        return _verify(options)
    return _prune(options)


def _list(options: argparse.Namespace) -> int:
    found = manage.entries(options.dir, options.project)
    for entry in found:
        print(_line(entry))
    print(f"{counted(len(found), 'cache')}, {size_text(sum(e.bytes for e in found))}")
    if options.json:
        show_json({"caches": [_facts(entry, entry.problem) for entry in found]})
    return 0


def _verify(options: argparse.Namespace) -> int:
    found = [
        entry
        for entry in manage.entries(options.dir, options.project)
        if entry.form not in (manage.STREAM, manage.AHEAD)
    ]
    damaged = manage.verify(options.dir, options.project)
    for entry, problem in damaged:
        print(f"DAMAGED {entry.folder}: {problem}")
    print(f"{counted(len(found), 'cache')} read, {len(damaged)} damaged")
    if damaged:
        print("`runner cache prune` removes damaged caches; runner builds them again when it needs them")
    if options.json:
        problems = {entry.folder: problem for entry, problem in damaged}
        show_json({"caches": [_facts(entry, problems.get(entry.folder)) for entry in found]})
    return BadInput.exit_code if damaged else 0


def _prune(options: argparse.Namespace) -> int:
    done = manage.prune(
        options.dir,
        older_than_days=options.older_than_days,
        max_gb=options.max_gb,
        everything=options.all,
        project=options.project,
    )
    for entry in done.removed:
        print(f"removed {_line(entry)}")
    for entry, why in done.kept:
        print(f"kept, {why}: {_line(entry)}")
    print(f"{counted(len(done.removed), 'cache')} removed, {size_text(done.bytes)} freed")
    return 0


def _facts(entry: Entry, problem: str | None) -> dict[str, object]:
    used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.last_used))
    return asdict(entry) | {"project": entry.project or None, "last_used": used, "problem": problem or None}


def _line(entry: Entry) -> str:
    days = max(0.0, time.time() - entry.last_used) / 86400
    used = "in use" if entry.in_use else f"used {counted(round(days), 'day')} ago" if days >= 1 else "used today"
    problem = f"  PROBLEM: {entry.problem}" if entry.problem else ""
    size = size_text(entry.bytes)
    records = f"{entry.records:>6} {'record' if entry.records == 1 else 'records':<7}"
    return f"{entry.project or '(all)':<12} {records} {size:>9}  {entry.form:<7} {used:<16} {entry.folder}{problem}"


def _parser() -> Parser:
    parser = Parser(prog="runner cache", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    common = Parser(add_help=False)
    common.add_argument(
        "--dir", type=Path, help="the cache folder (default: $XDG_CACHE_HOME/runner or ~/.cache/runner)"
    )
    common.add_argument("--project", help="only caches of this project")
    common.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    json = Parser(add_help=False)
    json.add_argument("--json", action="store_true", help="print the result on stdout as JSON, the rest on stderr")
    commands.add_parser("list", parents=[common, json], help="list all caches, the most recently used first")
    commands.add_parser("verify", parents=[common, json], help="read every byte and compare it with its checksum")
    prune = commands.add_parser("prune", parents=[common], help="remove damaged caches, and others that you choose")
    prune.add_argument(
        "--older-than-days", type=float, metavar="DAYS", help="remove caches that were not used for this long"
    )
    prune.add_argument(
        "--max-gb", type=float, metavar="GB", help="remove the least recently used until the rest takes at most this"
    )
    prune.add_argument("--all", action="store_true", help="remove every cache")
    return parser
