"""The command line: `runner`, `runner list`, `runner PROJECT COMMAND …`.

This package's top imports nothing but the standard library's lightest modules: `runner`, `runner --help` and
`runner list` answer from metadata within a tenth of a second. Every command is imported when it is called.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

from runner_core._errors import BadInput, RunnerError, did_you_mean
from runner_core.discovery import COMMANDS, find_project

PROJECT_COMMANDS = {
    "train": ("train", "train; without --data on a generated phantom"),
    "check": ("check", "audit the data before spending hours on it"),
    "profile": ("profile", "where the time of a step goes, what limits it, what would help"),
    "tune": ("tune", "try what would help, measure it, and write the settings that are faster"),
    "ablate": ("ablate", "every optimisation off in turn, and all: what each is worth on your data"),
    "config": ("small", "print the settings that `train` would use"),
    "evaluate": ("evaluate", "score whole records with a trained run: worst cases first"),
    "predict": ("predict", "predict files or folders with a trained run"),
    "export": ("predict", "write a trained network for use without runner"),
    "report": ("small", "write a run's report.html anew"),
    "phantom": ("small", "write the phantom into a folder, in the project's own file formats"),
}
"""Command → (module that has it, what it does)."""

Command = Callable[[str, Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code: 0 done, 1 unexpected, 2 bad input, 3 unhealthy, 130/143 signals."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a sign gets a ? instead of an error
            stream.reconfigure(errors="replace")
    try:
        return _dispatch(arguments)
    except RunnerError as error:
        if "--debug" in arguments:
            raise
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, _Terminated) as stop:
        terminated = isinstance(stop, _Terminated)
        told = "stopped by SIGTERM" if terminated else "interrupted"
        _complain("; ".join([told, *getattr(stop, "__notes__", ())]))  # what commands noted of what is left
        return 143 if terminated else 130
    except BrokenPipeError:  # `runner … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in arguments:
            raise
        if message := _of_the_disk(error):
            _complain(message)
            return BadInput.exit_code
        from runner_core.cli.crash import describe

        _complain(describe(error))
        return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from runner_core.cli.overview import overview

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
        raise BadInput(f"unknown option {word!r}; `runner` says what there is")
    return _project_command(word, rest)


def _project_command(project: str, rest: list[str]) -> int:
    plugin = find_project(project)
    if not rest or rest[0] in ("-h", "--help"):
        from runner_core.cli.overview import project_help

        return project_help(plugin)
    if rest[0] not in PROJECT_COMMANDS:
        hint = did_you_mean(rest[0], PROJECT_COMMANDS)
        raise BadInput(
            f"there is no command `runner {project} {rest[0]}`{hint}\ncommands: {', '.join(PROJECT_COMMANDS)}"
        )
    module, _ = PROJECT_COMMANDS[rest[0]]
    command: Command = getattr(import_module(f"runner_core.cli.{module}"), rest[0])
    return command(project, rest[1:])


def _of_the_disk(error: Exception) -> str | None:
    """What to say of a disk that is full, or of a place where nothing may be written or read; None of other errors."""
    from runner_core._files import full_disk

    if full := full_disk(error):
        return f"the disk is full: {full.filename or full.strerror}"
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename}: {error.strerror}; change its permissions, or name another place"
    return None


def _complain(message: str) -> None:
    print(f"runner: {message}", file=sys.stderr)


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM outside training (which handles it itself): leave through every `finally`."""
    raise _Terminated(128 + number)


class _Terminated(SystemExit):
    """SIGTERM came."""
