"""The command line: `runner`, `runner list`, `runner PROJECT COMMAND …`.

This package's top imports nothing but the standard library's lightest modules: `runner`, `runner --help` and
`runner list` answer from metadata within a tenth of a second, and show what to type next. Every other command is
imported when it is called.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

from runner_core.base.calling import runner
from runner_core.base.errors import ENDING, BadInput, RunnerError, did_you_mean
from runner_core.base.secrets import without_secrets
from runner_core.base.text import aligned
from runner_core.plugins import discovery
from runner_core.plugins.builtin import BUILTIN, weights_of
from runner_core.plugins.discovery import COMMANDS, Plugin, find_project

PROJECT_COMMANDS = {
    "train": ("train", "train; without --data on a generated phantom"),
    "crossval": ("experiment", "train once for each fold, and score every record by a run that never saw its group"),
    "repeat": ("experiment", "train with several seeds, to see how much the result depends on chance"),
    "sweep": ("sweep", "search settings by trials, and judge the best on records that the search never looked at"),
    "init-data": ("init_data", "write a table of a folder's images and labels by guessing, for you to correct"),
    "check": ("check", "audit the data before spending hours on it"),
    "cache": (
        "cache_build",
        "`cache build` prepares what `train` would, before it: no GPU is needed, and parts can share it",
    ),
    "profile": ("measure", "show where the time of a step goes, what limits it, and what would help"),
    "verify-kernels": (
        "verify_kernels",
        "compare the gradients of compiled, 16-bit and own kernels with float32",
    ),
    "tune": ("measure", "try settings that might be faster, measure them, and write those that are"),
    "ablate": ("measure", "switch off each optimisation in turn, then all, to measure what each gains on your data"),
    "config": ("small", "print the settings that `train` would use"),
    "evaluate": ("evaluate_parts", "score whole records with a trained run: worst cases first"),
    "select": ("select", "choose the decision's settings and views on records that the networks did not train on"),
    "predict": ("predict", "predict files or folders with a trained run"),
    "export": ("export", "write a trained network for use without runner"),
    "report": ("small", "rewrite the report.html of a run or an experiment"),
    "phantom": ("small", "write the phantom into a folder, in the project's own file formats"),
}
"""Command → (module that has it, its summary)."""

BIDS_APP = "bids-app"
"""The own command of a project that gets `predict BIDS OUT participant`, the command line of BIDS Apps."""

Command = Callable[[str, Sequence[str]], int]


def script() -> None:
    """Run the command line that was typed, and end the process."""
    from runner_core.base.interpreter import leave

    leave(main)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0: done, 1: unexpected error, 2: bad input, 3: unhealthy run, 75: another process is lost, 130 (Ctrl-C) or 128 + one
    of `ENDING`: a signal.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for number in ENDING:
        signal.signal(number, _terminate)
    if sys.stderr is None:  # `2>&-`: nobody wants to read it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until this process ends
        os.set_inheritable(sys.stderr.fileno(), True)  # else the first file that a child opens is its standard error
    if sys.stdout is None:  # the first file opened would become the standard output of libraries and processes
        _complain("the standard output is closed: leave it open, or use >/dev/null instead of >&-")
        return BadInput.exit_code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows ? instead of failing
            stream.reconfigure(errors="replace")
    terminal = sys.stdout.isatty()  # one that is gone does not say so
    return _written(_exit_code(arguments), terminal)


def _exit_code(arguments: list[str]) -> int:
    """Run a command line, say what went wrong, and return the exit code."""
    try:
        with _json(arguments):
            return _dispatch(arguments)
    except RunnerError as error:
        _complain(_traceback(error) if "--debug" in arguments else str(error))
        return error.exit_code
    except (KeyboardInterrupt, _Terminated) as stop:
        code = int(stop.code) if isinstance(stop, _Terminated) else 130
        ending = f"stopped by {signal.Signals(code - 128).name}" if isinstance(stop, _Terminated) else "interrupted"
        _complain("; ".join([ending, *getattr(stop, "__notes__", ())]))  # notes of the command about what is left
        return code
    except BrokenPipeError:  # `runner … | head`
        _drop_output()
        return 0
    except Exception as error:
        message = _of_the_machine(error)
        _complain(_traceback(error) if "--debug" in arguments else message or _unexpected(error))
        return BadInput.exit_code if message else 1


def _written(code: int, terminal: bool) -> int:
    """Write what is left of the output; return the command's exit code, or 2 if it was 0 and output is lost.

    Output for a terminal that is gone, or for a pipe that nobody reads (`runner … | head`), is not lost.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        _drop_output()
        if not terminal and not isinstance(error, BrokenPipeError):
            _complain(f"the standard output cannot be written ({error.strerror}): what was printed is incomplete")
            return code or BadInput.exit_code
    return code


def _drop_output() -> None:
    """Let what is still to be written to the standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json(arguments: Sequence[str]) -> AbstractContextManager[None]:
    if "--json" not in arguments:
        return nullcontext()
    from runner_core.cli.json_output import stdout_for_json

    return stdout_for_json()


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        return overview()
    word, rest = arguments[0], arguments[1:]
    if word == "--version":
        from importlib.metadata import version

        print(f"runner {version('runner-core')}")
        return 0
    if word in COMMANDS:
        module, _, function = COMMANDS[word].partition(":")
        return getattr(import_module(module), function)(rest)
    if word.startswith("-"):
        hint = did_you_mean(word, ("--help", "--help-all", "--version"))
        raise BadInput(f"unknown option {word!r}{hint or '; `runner` alone lists the commands'}")
    return _project_command(word, rest)


def _project_command(project: str, rest: list[str]) -> int:
    plugin = find_project(project, PROJECT_COMMANDS)
    if not rest or rest[0] in ("-h", "--help", "--help-all", "help"):
        return project_help(plugin)
    own = discovery.own_commands(plugin, PROJECT_COMMANDS)
    if BIDS_APP in own and _is_bids_app(rest):
        return own_command(plugin, own[BIDS_APP], rest[1:])
    if rest[0] not in PROJECT_COMMANDS:
        if rest[0] in own:
            return own_command(plugin, own[rest[0]], rest[1:])
        known = [*PROJECT_COMMANDS, *own]
        hint = did_you_mean(rest[0], known)
        raise BadInput(f"there is no command `runner {project} {rest[0]}`{hint}\ncommands: {', '.join(known)}")
    module, _ = PROJECT_COMMANDS[rest[0]]
    command: Command = getattr(import_module(f"runner_core.cli.{module}"), rest[0].replace("-", "_"))
    return command(project, rest[1:])


def _is_bids_app(words: Sequence[str]) -> bool:
    """Return whether words are `predict BIDS OUT participant` or `… group`, with flags before or after.

    `predict` itself needs --out, and BIDS Apps have no such flag, so no other line is meant.
    """
    out = any(word.partition("=")[0] == "--out" for word in words)
    return words[0] == "predict" and not out and not {"participant", "group"}.isdisjoint(words)


def own_command(plugin: Plugin, command: discovery.OwnCommand, arguments: Sequence[str]) -> int:
    """Call a plugin's own command with a parser that it completes, and the words to parse.

    An extension's command is told the project's name first.
    """
    from argparse import SUPPRESS

    from runner_core.cli.arguments import Parser

    about = command.summary()
    parser = Parser(prog=f"runner {plugin.name} {command.name}", description=f"{about[:1].upper()}{about[1:]}.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.add_argument("--help-all", action="help", help=SUPPRESS)
    project = (plugin.name,) if command.owner.kind == "extension" else ()
    return command.entry.load()(*project, parser, list(arguments)) or 0


def _traceback(error: Exception) -> str:
    """Return the traceback that --debug shows."""
    import traceback

    return "".join(traceback.format_exception(error)).rstrip()


def _unexpected(error: Exception) -> str:
    from runner_core.cli.crash import describe

    return describe(error)


def _of_the_machine(error: Exception) -> str | None:
    """Return the message for a full disk, full memory or missing permission; None for other errors."""
    from runner_core.base.resources import is_out_of_memory
    from runner_core.base.writing import full_disk

    if is_out_of_memory(error):
        asked = (str(error).strip().splitlines() or ["its size is unknown"])[0]
        return f"there is not enough memory ({asked}): use smaller settings or less data (--debug shows where)"
    if full := full_disk(error):
        return f"the disk is full: {full.filename or full.strerror}"
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename}: {error.strerror}; change its permissions, or choose another place"
    return None


def _complain(message: str) -> None:
    print(f"runner: {without_secrets(message)}", file=sys.stderr)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave through every `finally` when a scheduler ends the job outside training, which handles signals itself.

    The same signal often comes twice, to the process and to its group: only the first one counts.
    """
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise _Terminated(128 + number)


class _Terminated(SystemExit):
    """Raised when one of the signals `ENDING` comes."""

    code: int


_ACTIVE = "extensions, active in every project (`--no-extension NAME` switches one off)"


def overview() -> int:
    """Print the page of `runner` and `runner --help`."""
    projects = discovery.projects()
    print("runner: train scientific-imaging models, fast and honestly\n")
    _print_installed(projects.values(), discovery.extensions().values())
    name, call = next(iter(projects), "PROJECT"), runner()
    print("\nnext:")
    _columns(
        [
            (f"{call} {name} train", "train on a generated phantom: about a minute on 2 cores"),
            (f"{call} {name} train --data DIR", "train on your own data"),
            (f"{call} {name} check --data DIR", "audit your data first"),
            (f"{call} {name} --help", f"all commands of {name}"),
            (
                f"{call} list",
                "projects and extensions; --hooks shows what each provides, which one wins, and conflicts",
            ),
            (f"{call} watch", "follow the runs of this folder in a browser while they train"),
            (f"{call} new NAME", "write a project of your own: a package that trains as it is"),
            (f"{call} doctor", "the machine, GPU, versions; what is slow or missing"),
            (f"{call} cache list|verify|prune", "caches of prepared data on this machine"),
        ]
    )
    return 0


def list_plugins(arguments: Sequence[str]) -> int:
    """Print every plugin with the hooks in its source (`runner list`); --hooks is in `runner_core.cli.hooks`."""
    if arguments == ["--json"]:
        from runner_core.cli.json_output import show_json

        kinds = {"projects": discovery.projects(), "extensions": discovery.extensions()}
        show_json({kind: [_facts(plugin) for plugin in found.values()] for kind, found in kinds.items()})
        return 0
    if arguments:
        from runner_core.cli.hooks import list_hooks

        return list_hooks(arguments)
    head = ("name", "package", "provides", "weights", "")
    projects, extensions = discovery.projects(), discovery.extensions()
    lines = aligned([head, *map(_described, [*projects.values(), *extensions.values()])])
    if projects:
        print("projects:", *lines[: len(projects) + 1], sep="\n")
    else:
        print(discovery.none_installed())
    if extensions:
        print(f"\n{_ACTIVE}:", lines[0], *lines[len(projects) + 1 :], sep="\n")
    print("\n`runner list --hooks [PROJECT]` loads them and shows who provides what, and conflicts")
    return 0


def _facts(plugin: Plugin) -> dict[str, object]:
    return plugin.facts() | {"weights": BUILTIN if weights_of(plugin) is not None else None}


def _described(plugin: Plugin) -> tuple[str, str, str, str, str]:
    formats = plugin.formats()
    marked = [*plugin.commands(), *([f"export --to {'|'.join(formats)}"] if formats else [])]
    provides = ", ".join([*plugin.hooks(), *(f"`{words}`" for words in marked)]) or "cannot be read"
    weights = BUILTIN if weights_of(plugin) is not None else ""
    return plugin.name, f"{plugin.distribution} {plugin.version}", provides, weights, plugin.summary()


def commands_of(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield the commands of a project with their summaries: those of the core, its own, those of extensions."""
    yield from ((command, text) for command, (_, text) in PROJECT_COMMANDS.items())
    own = discovery.own_commands(plugin, PROJECT_COMMANDS)
    yield from ((command.name, command.summary()) for command in own.values())


def project_help(plugin: Plugin) -> int:
    """Print the commands of a project (`runner PROJECT`)."""
    name, call = plugin.name, runner()
    rows = [(f"{call} {name} {command}", text) for command, text in commands_of(plugin)]
    print(f"{name} ({plugin.distribution} {plugin.version}): {plugin.summary()}\n\ncommands:")
    _columns(rows)
    if weights_of(plugin) is not None:
        print(
            f"\nbuilt-in weights: `{call} {name} predict --weights builtin INPUT --out DIR` needs no training; "
            "`evaluate --weights builtin --data DIR`, `train --from builtin`"
        )
    print(f"\n`{call} {name} COMMAND --help` shows the common settings, `--help-all` all")
    return 0


def _print_installed(projects: Iterable[Plugin], extensions: Iterable[Plugin]) -> None:
    for title, plugins in (("projects", list(projects)), (_ACTIVE, list(extensions))):
        if plugins:
            print(f"{title}:")
            _columns([(p.name, f"{p.summary()}  [{p.distribution} {p.version}]") for p in plugins])
        elif title == "projects":
            print(discovery.none_installed())


def _columns(rows: Sequence[Sequence[str]]) -> None:
    print(*aligned(rows), sep="\n")
