"""Parse a command line as its command would, without doing anything, so that it can run elsewhere or later.

Extensions use it through the face (`runner_core.parse_command`): what is wrong is said at once, not by a job that has
waited for hours, and the settings are those of this moment.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.writing import replace_text
from runner_core.cli import PROJECT_COMMANDS, options
from runner_core.cli.ensembles import start_from_runs
from runner_core.cli.options import Options, PresetOptions, RunOptions
from runner_core.cli.parsing import AUTO, peek
from runner_core.cli.start import Started, start_new
from runner_core.config import RunConfig
from runner_core.config.extensions import section_name
from runner_core.config.values import flag_words, plain
from runner_core.contract.project import Project

_REPLACED = ("config", "extension", "no_extension", "debug", "json", "resume", "run_dir", "weights")
"""Options of a command that `ParsedCommand.words` gives otherwise, or not at all."""
_OF_EVERY_CALL = ("with_", "no_extension")
"""Options of a command that a call takes too."""
_SAVED = ("preset", "data", "from_")
"""Options that a settings file keeps."""


@dataclass(frozen=True)
class ParsedCommand:
    """A command line of a project that is right as far as can be seen without opening data; nothing has been done."""

    project: str
    command: str
    options: Any
    """The extension's own flags and the command's, by name."""
    settings: RunConfig
    """All settings, with the extension's section."""
    framework: str
    """The project's: torch or keras."""
    _started: Started[Any]
    _kind: type[Options]
    _extension: str

    @property
    def starts(self) -> bool:
        """True if the command starts from settings, as `train` does; False if it uses a trained run."""
        return not issubclass(self._kind, RunOptions)

    @property
    def made_project(self) -> Project:
        """The project with these settings; of a trained run, without its statistics (`Run.network` has them)."""
        return self._started.setup.project

    def takes(self, option: str) -> bool:
        """Return whether the command has this option, such as `part` or `run_dir`."""
        return any(field.name == option for field in dataclasses.fields(self._kind))

    def words(self, settings_file: Path) -> list[str]:
        """Return words that run the command with the same values; `settings_file` is what `save_settings` wrote.

        Left out are the folder that it writes into if that is `--run-dir`, `--resume`, and the extension's own flags.
        """
        given, skipped = self.options, (*_REPLACED, *(_SAVED if self.starts else ()))
        words = [] if self.starts else [str(given.run)]
        flags = ["--config", str(settings_file)] if self.starts else []
        for name in (name for name in given.extension if name != self._extension):
            flags += ["--extension", name]
        for name in given.no_extension:
            flags += ["--no-extension", name]
        for field in dataclasses.fields(self._kind):
            value = getattr(given, field.name)
            if field.name in (*skipped, "run") or value in (None, (), "", field.default):
                continue
            if "Positional" in str(field.type):
                words += map(str, value if isinstance(value, tuple) else (value,))
            elif "UseAppendAction" in str(field.type):
                flags += [word for one in value for word in flag_words(field.name.strip("_"), one)]
            else:
                flags += flag_words(field.name.strip("_"), value)
        changed = {} if self.starts else {name: now for name, (_, now) in self._started.changed.items()}
        section = section_name(self._extension)
        for name, value in {**changed, **self._extra()}.items():
            if name.partition(".")[0] != section:
                flags += flag_words(name, value)
        return [*words, *flags]

    def keywords(self) -> dict[str, Any]:
        """Return what a call from Python takes for the same: `run.predict(path, **keywords)`, of a command with RUN.

        Left out are the run itself, what the command reads and writes, and the extension's own flags and settings.
        """
        given, section = self.options, section_name(self._extension)
        changed = {name: now for name, (_, now) in self._started.changed.items() if name.partition(".")[0] != section}
        own = {name: getattr(given, name) for name in _OF_EVERY_CALL if hasattr(given, name)}
        own["extension"] = tuple(name for name in given.extension if name != self._extension)
        return {**{name: value for name, value in own.items() if value}, **changed, **self._extra()}

    def _extra(self) -> Mapping[str, Any]:
        """Return the project's own options of `predict` that differ from their defaults."""
        found = self._started.setup.project.predict_options if issubclass(self._kind, options.PredictOptions) else None
        if found is None:
            return {}
        usual = type(self._started.setup.project).predict_options
        values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}

    def save_settings(self, path: Path) -> None:
        """Write all settings, the preset, the data and the weights to start from as a file that `--config` takes."""
        section, label = section_name(self._extension), f"extension {self._extension}"
        head = self._started.head
        head["plugins"] = {name: version for name, version in head["plugins"].items() if name != label}
        head["chosen"] = [name for name in head["chosen"] if name != self._extension]
        values = {name: value for name, value in plain(self.settings).items() if name != section}
        replace_text(path, yaml.safe_dump({**head, **values}, sort_keys=False))


def parse_command(
    project: str, command: str, words: Sequence[str], *, flags: type, extension: str, prog: str
) -> ParsedCommand:
    """Parse `runner PROJECT COMMAND WORDS` with further flags and the settings of an extension.

    Args:
        project: Name of an installed project.
        command: One of the commands that take settings: train, crossval, evaluate, …
        words: What follows it. `--help` prints the flags of both, and exits.
        flags: A dataclass, whose fields all have defaults, of the extension's own flags.
        extension: The extension's name; its `Config` is a section of the settings.
        prog: What the user typed before `words`, for help and messages.

    Raises:
        BadInput: The command, a flag, a setting or a named run is wrong, or there is no such data.
    """
    kind = _kind_of(command)
    both = dataclasses.make_dataclass(f"{command.title()}With{flags.__name__}", [], bases=(flags, kind), kw_only=True)
    both.__doc__ = f"{inspect.cleandoc(flags.__doc__ or '')}\n\n`{command}`: {inspect.cleandoc(kind.__doc__ or '')}"
    given = ["--extension", extension, *words]
    started: Started[Any]
    if issubclass(kind, RunOptions):
        # the run, if named, comes first
        given = [*words, "--extension", extension]
        started = start_from_runs(project, prog.removeprefix(f"runner {project} "), both, given)[0]
    else:
        seen = peek(words)
        if seen.resume is not None:
            raise BadInput("--resume: what is submitted always goes on where it can; name its folder alone")
        if seen.run_dir is not None and command == "train":
            given += ["--resume", AUTO]
        started = start_new(project, command, both, given, prog=prog)
    setup = started.setup
    return ParsedCommand(
        project, command, started.options, setup.config, setup.project.framework, started, kind, extension
    )


def _kind_of(command: str) -> type[Options]:
    found = getattr(options, f"{command.title().replace('-', '')}Options", None)
    able = isinstance(found, type) and issubclass(found, (PresetOptions, RunOptions)) and command in PROJECT_COMMANDS
    if not able or command == "config":
        raise BadInput(f"`{command}` cannot be run later{did_you_mean(command, PROJECT_COMMANDS)}")
    assert isinstance(found, type)
    return found
