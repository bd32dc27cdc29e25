"""`runner completion bash|zsh|fish`: print a script with which the shell completes what is typed after `runner`.

It does so after `uv run … runner` too. The script calls `runner completion words WORD…` with the words so far; the last
may be empty. The answer begins with a line that says what else the shell may complete (`files`, `folders` or `none`);
then comes a line for each candidate, with a tab before its description. Only flags need the project and the extensions;
no framework is imported.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from runner_core.base.errors import BadInput, RunnerError, did_you_mean
from runner_core.plugins import discovery
from runner_core.plugins.discovery import COMMANDS

SHELLS = {
    "bash": ("~/.bashrc", 'eval "$(runner completion bash)"'),
    "zsh": ("~/.zshrc, below compinit", 'eval "$(runner completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "runner completion fish | source"),
}
"""Shell → (the file that should load its script, the line to write there)."""


_WIDTH = 70
"""Characters of a description."""
_FLAG = re.compile(
    r"(?<=  )(?:-\w, )?(--[\w.-]+(?:, --[\w.-]+)*)(?: (\S+(?: \S+)*))?(?: {2,}(?!-)(\S+(?: \S+)*))?(?= {2,}|$)",
    re.MULTILINE,
)
"""A flag on a page of help, and on the same line what follows it: the name of its value, and its text."""


class Flag(NamedTuple):
    """A flag: `values` are the words that may follow; `None` if it takes none, a kind of path, or () if any may."""

    text: str
    values: Sequence[str] | Literal["files", "folders", "runs"] | None = None


_VALUES = {
    **{"config": "files", "data": "folders", "out": "folders", "run_dir": "folders", "resume": "runs"},
    "split": ("validation", "train", "test", "all"),
}
"""What may follow the commands' own flags."""
_WORDS = ("run", "inputs", "folder", "action")
"""Fields of the commands that are words, not flags."""

Flags = dict[str, Flag]
Answer = tuple[str, Iterable[tuple[str, str]]]
"""What else the shell may complete, and candidates with their descriptions."""


def completion(arguments: Sequence[str]) -> int:
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help", "--help-all"):
        print(
            "usage: runner completion bash|zsh|fish\n\nPrint a script for tab completion. Load it in every new shell:"
        )
        print(*(f"  {shell:<5} write {line!r} into {file}" for shell, (file, line) in SHELLS.items()), sep="\n")
        return 0
    if word == "words":
        with suppress(RunnerError):
            _print(*_answer(arguments[1:] or [""]))
        return 0
    if word not in SHELLS:
        hint = did_you_mean(word, SHELLS)
        raise BadInput(f"there is no completion for the shell {word!r}{hint} (shells: {', '.join(SHELLS)})")
    print(Path(__file__).with_name("shells").joinpath(f"runner.{word}").read_text(encoding="utf-8"), end="")
    return 0


def _print(kind: str, candidates: Iterable[tuple[str, str]]) -> None:
    sentences = ((word, shorten(text.partition(". ")[0], _WIDTH, placeholder=" …")) for word, text in candidates)
    print(kind, *("\t".join(pair) for pair in sentences), sep="\n")


def _answer(typed: Sequence[str]) -> Answer:
    """Complete the last of these words; bash passes `--flag=value` as three words, other shells as one."""
    *words, now = [word for word in typed[:-1] if word != "="] + [typed[-1] if typed[-1] != "=" else ""]
    flag, equals, value = now.partition("=")
    if equals and flag.startswith("--"):
        kind, found = _next([*words, flag], value)
        return "none", [(f"{flag}={word}", text) for word, text in found if word.startswith(value)]
    kind, found = _next(words, now)
    return kind, [(word, text) for word, text in found if word.startswith(now)]


def _next(words: Sequence[str], now: str) -> Answer:
    """Return what may follow `words`; `now` is the beginning of it."""
    if not words:
        return "none", _first()
    if words[0] == "verify-resume":
        return _of_project(words[1], words[0], words[2:], now) if words[1:] else ("none", _projects())
    if words[0] == "completion":
        return "none", [(shell, "") for shell in SHELLS if not words[1:]]
    if words[0] in COMMANDS:
        return _of_command(words[0], words[1:], now)
    if not words[1:]:
        from runner_core.cli import commands_of

        return "none", commands_of(discovery.find_project(words[0]))
    return _of_project(words[0], words[1], words[2:], now)


def _first() -> Iterator[tuple[str, str]]:
    yield from _projects()
    for command in COMMANDS:
        yield command, ""
    yield from (("--help", "what is installed, and what to type next"), ("--version", "the core's version"))


def _projects() -> Iterator[tuple[str, str]]:
    return ((name, plugin.summary()) for name, plugin in discovery.projects().items())


def _of_command(command: str, words: Sequence[str], now: str) -> Answer:
    """Complete a command of runner itself: its --help names the flags."""
    module, _, function = COMMANDS[command].partition(":")
    called = getattr(import_module(module), function)
    text = _help(lambda: called([*(words[:1] if command == "cache" else ()), "--help"]))
    if command == "cache" and not words:
        return "none", [(word, "") for word in re.findall(r"^    (\w+)  ", text, re.MULTILINE)]
    return _value_or_flag(words, now, _flags(text), "runs" if command in ("compare", "watch") else ())


def _help(call: Callable[[], object]) -> str:
    """Return what a command prints for --help, each flag on one line."""
    os.environ["COLUMNS"] = "500"
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        call()
    return text.getvalue()


def _flags(text: str) -> Flags:
    """Return the flags that a page of help names, with their texts unless tyro has set them in two columns."""
    found, two_columns = Flags(), "\noptions:\n" not in text
    for flags, meta, about in _FLAG.findall(text):
        about = "" if two_columns else about
        choices = meta.strip("{}").split(",") if meta[:1] + meta[-1:] == "{}" else ()
        project = [*discovery.projects()] if "PROJECT" in meta else ()
        for flag in flags.split(", "):
            found[flag] = Flag(about, "folders" if "DIR" in meta else (choices or project) if meta else None)
    return found


def _of_project(project: str, command: str, words: Sequence[str], now: str) -> Answer:
    from runner_core.cli import PROJECT_COMMANDS, options, own_command

    plugin = discovery.find_project(project)
    if added := discovery.own_commands(plugin, PROJECT_COMMANDS).get(command):
        asked = [*(word for word in words[:1] if word[:1] != "-"), "--help-all"]
        return _value_or_flag(words, now, _flags(_help(lambda: own_command(plugin, added, asked))), "files")
    kind = getattr(options, f"{command.title().replace('-', '')}Options", options.RunOptions)
    own = _options(kind)
    flag = words[-1] if words else ""
    if now.startswith("-") or (flag.startswith("--") and (flag not in own or flag == "--preset")):
        own |= _settings(project, kind) | {"--help": Flag("common settings"), "--help-all": Flag("all settings")}
    use = issubclass(kind, options.RunOptions)
    places: dict[str, Any] = {"predict": "files", "phantom": "folders", "init-data": "folders"}
    places["cache"] = () if words else ("build",)
    place = "runs" if use and not words else places.get(command, ())
    return _value_or_flag(words, now, own, place, project)


def _value_or_flag(
    words: Sequence[str],
    now: str,
    flags: Flags,
    place: Sequence[str] | Literal["files", "folders", "runs"],
    project: str = "*",
) -> Answer:
    """Complete the value of the last flag, another flag, or a word of its own: `place` says what that may be."""
    known = flags.get(words[-1] if words else "")
    values = place if known is None or known.values is None else known.values
    if now.startswith("-") or (known is None and not place):
        return "none", [(name, flag.text) for name, flag in flags.items()]
    if values == "runs":
        return "folders", _runs(project)
    if values in ("files", "folders"):
        return str(values), ()
    return "none", [(value, "") for value in values]


def _runs(project: str) -> list[tuple[str, str]]:
    """Return the runs of a project below the folder `runs`, the newest first."""
    from runner_core.output.runfolder import RUNS

    found = sorted(RUNS.glob(f"{project}/*/config.yaml"), key=lambda file: -file.stat().st_mtime)
    return [(str(file.parent), "") for file in found if (file.parent / "checkpoints").is_dir()]


def _options(kind: type) -> Flags:
    """Return the flags of a command's dataclass."""
    from runner_core.cli.help_text import texts

    about, hints = texts(kind), get_type_hints(kind)
    extensions = [*discovery.extensions()]
    values = {"extension": extensions, "no_extension": extensions, **_VALUES}
    return {
        _flag(f.name): Flag(about.get(f.name, ""), None if hints[f.name] is bool else values.get(f.name, ()))
        for f in dataclasses.fields(kind)
        if f.name not in _WORDS
    }


def _settings(name: str, kind: type) -> Flags:
    """Return the flags of a project's and the extensions' settings, and of the values that they may have."""
    from runner_core.cli import options, parsing
    from runner_core.config.extensions import with_sections
    from runner_core.plugins.manager import Plugins

    plugins = Plugins.load(name, broken=lambda text: None)
    project = plugins.project()
    settings, found = dict(_leaves(with_sections(project.Config(), plugins.sections(project)))), Flags()
    if issubclass(kind, options.PresetOptions):
        found["--preset"] = Flag("Named defaults to start from.", [*project.presets])
    for short, long in parsing.ALIASES.items():
        found[short] = settings[long]._replace(text=f"short for {long}")
    found |= settings
    if issubclass(kind, options.PredictOptions):
        found |= _leaves(project.predict_options)
    return found


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Flag]]:
    from runner_core.cli.help_text import texts

    about, hints = texts(type(values)), get_type_hints(type(values))
    for field in dataclasses.fields(values):
        value, name = getattr(values, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")
            continue
        text = about.get(field.name, "")
        if isinstance(value, bool):
            yield _flag(name), Flag(text)
            yield _flag(f"{prefix}no_{field.name}"), Flag(text)
        else:
            yield _flag(name), Flag(text, _choices(hints[field.name]))


def _choices(hint: Any) -> list[str]:
    """Return the words that a setting may be: those of `Literal`, at any depth; [] if there are none."""
    inner = [word for part in get_args(hint) if not isinstance(part, str) for word in _choices(part)]
    return [part for part in get_args(hint) if isinstance(part, str)] + inner


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
