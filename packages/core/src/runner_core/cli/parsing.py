"""Reads a command line: first the flags that decide the defaults of others, then all of it by tyro."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.location import Location, location
from runner_core.cli.help_text import COMMON, FOR_PHANTOM, FOR_USE, common, complete_help
from runner_core.cli.options import Parsed, PhantomOptions, RunOptions
from runner_core.config import RunConfig
from runner_core.config.values import refuse_removed

LATEST = "latest"
AUTO = "auto"

ALIASES = {
    "--epochs": "--train.epochs",
    "--lr": "--train.learning-rate",
    "--batch-size": "--train.batch-size",
    "--workers": "--train.workers",
    "--device": "--train.device",
    "--devices": "--train.devices",
    "--precision": "--precision.mode",
}
"""Usual words for common settings."""
LONGEST_FLAG = 100
"""Characters of a flag, above those of any setting."""


@dataclass(frozen=True)
class Peek:
    """Flags that must be known before the settings of a command line can be parsed."""

    preset: str | None
    config: Path | None
    data: Location | None
    resume: str | None
    start: str | None
    run_dir: Path | None
    out: Path | None
    extension: tuple[str, ...]
    no_extension: tuple[str, ...]
    help: bool
    with_: tuple[Path, ...]
    """Runs that predict together with `run`."""
    run: Path | None
    """First word if it is not a flag: the run, for commands that take one."""
    arguments: tuple[str, ...]
    """The command line, with a bare `--resume` and the words of `ALIASES` spelled out."""


def peek(arguments: Sequence[str]) -> Peek:
    """Find the flags that decide the defaults of the others."""
    arguments = _spell_out(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--preset", "--resume"):
        parser.add_argument(name)
    parser.add_argument("--from", dest="start")
    for name in ("--config", "--run-dir", "--out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--data", type=location)
    for name in ("--extension", "--no-extension"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--with", dest="with_", action="append", type=Path, default=[])
    parser.add_argument("-h", "--help", "--help-all", action="store_true")
    try:
        known, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise BadInput(str(error)) from None
    run = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    return Peek(
        preset=known.preset,
        config=known.config,
        data=known.data,
        resume=known.resume,
        start=known.start,
        run_dir=known.run_dir,
        out=known.out,
        extension=tuple(known.extension),
        no_extension=tuple(known.no_extension),
        help=known.help,
        with_=tuple(known.with_),
        run=run,
        arguments=tuple(arguments),
    )


def parse(
    kind: type[Parsed], settings: RunConfig, arguments: Sequence[str], *, prog: str, defaults: str, extra: Any = None
) -> tuple[Parsed, RunConfig, Any]:
    """Parse a whole command line: the command's own flags, the project's settings, and `predict`'s extra options.

    tyro prints help and errors itself and exits (code 2). `defaults` names the source of the settings' defaults. Raises
    BadInput if an on/off setting is given a value, or a number is not one; tyro would only report an unknown word, or
    what Python says of it.
    """
    nested = {"settings": settings} if extra is None else {"extra": extra, "settings": settings}
    flags = (word.removeprefix("--").partition("=")[0].replace("-", "_") for word in arguments if word[:2] == "--")
    refuse_removed(settings, flags)
    _refuse_long_flags(arguments)
    for value in nested.values():
        _refuse_values(value, arguments)
    _refuse_words((kind, *map(type, nested.values())), arguments)
    if extra is not None and (
        taken := {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(extra)} & {*ALIASES}
    ):
        raise BadInput(f"predict_options has a field for {min(taken)}, which is short for a setting: rename the field")
    about = [inspect.cleandoc(kind.__doc__ or "")]
    if {"-h", "--help", "--help-all"} & set(arguments):
        for shown in (kind, *map(type, nested.values())):
            complete_help(shown)
        if issubclass(kind, PhantomOptions):
            nested = {"settings": shown} if (shown := common(settings, FOR_PHANTOM, ())[0]) else {}
        else:
            about += _about_settings(nested, arguments, use=issubclass(kind, RunOptions), defaults=defaults)
        arguments = ["--help"]
    fields = [(name, _inline(type(value)), _default(value)) for name, value in nested.items()]
    command = dataclasses.make_dataclass("Command", fields, bases=(kind,), kw_only=True)
    try:
        parsed: Any = tyro.cli(command, args=arguments, prog=prog, description="\n\n".join(about))
    except SystemExit as refusal:
        if refusal.code == 2:
            _suggest_aliases(arguments, {field.name.rstrip("_") for field in dataclasses.fields(command)})
        raise
    return parsed, parsed.settings, getattr(parsed, "extra", None)


def _about_settings(nested: dict[str, Any], arguments: Sequence[str], *, use: bool, defaults: str) -> Iterator[str]:
    """Yield what `--help` says above the settings, and leave the common ones alone in `nested` without --help-all.

    `use` is True for commands that use a trained network.
    """
    if "--help-all" not in arguments:
        one, wanted = ("predict", FOR_USE) if use else ("data", COMMON)
        settings = nested["settings"]
        nested["settings"], left_out = common(settings, wanted, (one, *settings.extensions))
        yield f"{left_out} more settings: --help-all shows them."
    names = ("--device", "--precision") if use else tuple(ALIASES)
    yield "Short for common settings: " + ", ".join(f"{short} = {ALIASES[short]}" for short in names)
    yield f"The defaults of the settings below are those of {defaults}."


def _suggest_aliases(arguments: Sequence[str], own: Iterable[str]) -> None:
    """Name the word of `ALIASES` that an unknown flag resembles: tyro has seen settings by their full names only."""
    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        unknown = flag.startswith("--") and "." not in flag and flag[2:].replace("-", "_") not in own
        if unknown and (hint := did_you_mean(flag, ALIASES)):
            print(f"there is no option {flag}{hint}", file=sys.stderr)


def _refuse_long_flags(arguments: Sequence[str]) -> None:
    """Raise BadInput for a flag that no option can have: tyro would compare it with every known one for seconds."""
    for word in arguments:
        if word.startswith("--") and len(word.partition("=")[0]) > LONGEST_FLAG:
            raise BadInput(f"there is no option {word[:LONGEST_FLAG]}…")


def _refuse_values(settings: Any, arguments: Sequence[str]) -> None:
    switches = dict(_switches(settings))
    for word, after in pairwise([*arguments, ""]):
        flag, joined, value = word.replace("_", "-").partition("=")
        if flag in switches and (value if joined else after).lower() in ("true", "false"):
            on, off = switches[flag]
            raise BadInput(f"{flag} takes no value: {on} alone switches it on, {off} off")


def _switches(settings: Any, prefix: str = "--") -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield both flags of each on/off setting, each with the pair."""
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _switches(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            pair = f"{prefix}{name}", f"{prefix}no-{name}"
            yield from ((flag, pair) for flag in pair)


def _refuse_words(kinds: Iterable[type], arguments: Sequence[str]) -> None:
    """Raise BadInput for a word where a flag of these dataclasses takes one number."""
    numbers = {flag: number for kind in kinds for flag, number in _numbers(kind)}
    short = {full: alias for alias, full in ALIASES.items()}
    for word, after in pairwise([*arguments, ""]):
        flag, joined, value = word.partition("=")
        flag, value = flag.replace("_", "-"), value if joined else after
        if flag not in numbers or value in ("", "None") or value.startswith("--"):
            continue
        try:
            numbers[flag](value)
        except ValueError:
            what = "a whole number" if numbers[flag] is int else "a number"
            named = f"{short[flag]} (or {flag})" if flag in short else flag
            raise BadInput(f"{named} takes {what}, not {value!r}") from None


def _numbers(kind: type, prefix: str = "--") -> Iterator[tuple[str, type[int] | type[float]]]:
    """Yield the flag of each setting that is one number, or None, and the number's type."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name.replace('_', '-')}", hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _numbers(hint, f"{name}.")
        elif hint in (int, float, int | None, float | None):
            yield name, float if float in (hint, *get_args(hint)) else int


def _default(value: Any) -> Any:
    return dataclasses.field(default_factory=lambda: value)


def _inline(kind: type) -> Any:
    """Return a nested dataclass that gives its fields flags without a common prefix."""
    return Annotated[kind, tyro.conf.arg(name="")]


def _spell_out(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a bare `--resume` and the words of `ALIASES` in full, the run of --weights first."""
    spelled: list[str] = []
    for i, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        spelled.append(ALIASES.get(flag.replace("_", "-"), flag) + equals + value)
        if word == "--resume" and (i + 1 == len(arguments) or arguments[i + 1].startswith("-")):
            spelled.append(LATEST)
    return _weights_first(spelled)


def _weights_first(arguments: list[str]) -> list[str]:
    """Put the run that --weights names where commands expect it."""
    for i, word in enumerate(arguments):
        if word == "--weights" and i + 1 < len(arguments):
            return [arguments[i + 1], *arguments[:i], *arguments[i + 2 :]]
        if word.startswith("--weights="):
            return [word.partition("=")[2], *arguments[:i], *arguments[i + 1 :]]
    return arguments
