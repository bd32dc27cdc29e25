"""Turns a command line, or the keywords of a call from Python, into a Setup, for a new run or with a trained one.

Plugins come first, then preset, settings file and flags.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import Location, Url, location, refuse_secrets
from runner_core.base.secrets import without_secrets
from runner_core.cli.keywords import Keywords
from runner_core.cli.options import EvaluateOptions, Options, Parsed, PredictOptions, SelectOptions
from runner_core.cli.parsing import AUTO, LATEST, Peek, parse, peek
from runner_core.cli.saved import load_plugins, over_preset, read_run, without_absent
from runner_core.cli.start_weights import refuse_other_start, start_weights
from runner_core.config import RunConfig
from runner_core.config.values import overlay
from runner_core.contract.project import Project, refuse_unknown_views
from runner_core.contract.setup import Setup
from runner_core.output.runfolder import IMPORTED, RunFolder
from runner_core.plugins.builtin import NO_DATA, is_builtin, named_run
from runner_core.plugins.settings import (
    PHANTOM,
    SettingsFile,
    differences,
    for_other_data,
    from_file,
    from_preset,
    head,
    read_settings,
    refuse_other_model,
    refuse_secret_settings,
)
from runner_core.training.seen import History
from runner_core.training.start import open_start, reopen

Arguments = Sequence[str] | Keywords
"""A command line's words, or the keywords of a call from Python."""


@dataclass
class Started(Generic[Parsed]):
    """A parsed command; `run` is the run that it continues or uses, None for a new one."""

    options: Parsed
    setup: Setup
    run: RunFolder | None
    chosen: tuple[str, ...]
    """Extensions that the user chose where several offer a capability."""
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that differ from the run that is used: name → (the run's value, this command's)."""
    own_data: bool = True
    """True if these are the data that the run was trained on."""
    before: History = field(default_factory=History)
    """What the weights that a new training starts from were trained on."""
    command: str = ""
    """The command line, without secrets."""
    named: Path = Path()
    """The run or checkpoint that is used, as the user named it."""

    @property
    def head(self) -> dict[str, Any]:
        """Entries of config.yaml besides the settings."""
        return head(self.setup, self.chosen)


def start_new(
    name: str,
    command: str,
    kind: type[Parsed],
    arguments: Arguments,
    *,
    prog: str = "",
    over: Mapping[str, Any] | None = None,
) -> Started[Parsed]:
    """Start a command from a preset, or from a run to continue (`train --resume`).

    `over` holds the command's own settings by section, which override the preset's and a file's. `prog` is how the user
    types the command, if that is not `runner NAME COMMAND`.
    """
    seen = seen_flags(arguments)
    run = _resumed(name, seen)
    saved = None if run is None else read_run(run, name)
    file = None if seen.config is None else read_settings(seen.config)
    if saved is not None:
        refuse_other_start(saved, seen)
    start = start_weights(name, kind, seen, file) if saved is None else None
    parent = None if start is None else start.settings
    plugins, chosen = load_plugins(name, seen, saved, (file, parent))
    project = plugins.project()
    extensions = plugins.sections(project)
    saved, file, parent = (
        f and without_absent(f, project, extensions, seen, plugins.idle) for f in (saved, file, parent)
    )
    source = _source(project, seen.data, saved or _with_source(file, parent))
    fallback = "demo" if source is None else "default"
    preset = seen.preset or next((f.preset for f in (file, saved, parent) if f is not None and f.preset), fallback)
    if saved is not None and seen.preset not in (None, saved.preset):
        raise BadInput(f"{run and run.path} was started with the preset {saved.preset!r}, not {seen.preset!r}")
    base = over_preset(from_preset(project, preset, extensions), project, saved or (None if seen.preset else parent))
    if parent is not None and str(source or PHANTOM) != parent.source:
        base = for_other_data(base, project, preset)
    settings = overlay(base if file is None else from_file(base, project, file), over or {}, command)
    prog, defaults = prog or f"runner {name} {command}", _defaults(preset, seen, saved or file or parent)
    options, settings, _ = _parsed(kind, settings, arguments, seen, prog=prog, defaults=defaults)
    refuse_secret_settings(settings)
    setup, before = Setup(project(settings), settings, preset, source, plugins), History()
    refuse_unknown_views(setup.project)
    if run is not None and start is None:
        setup.start, before = reopen(setup, run), History.before(run.path)
    elif start is not None:
        setup.start, before = open_start(setup, start.named, start.history, start.source)
    return Started(options, setup, run, chosen, before=before, command=_typed(name, command, arguments))


def _with_source(file: SettingsFile | None, parent: SettingsFile | None) -> SettingsFile | None:
    """Return the file that names the data: the user's settings file, or else the run's of --from."""
    return file if file is not None and file.source is not None else parent or file


def seen_flags(arguments: Arguments) -> Peek:
    return arguments.peek() if isinstance(arguments, Keywords) else peek(arguments)


def _parsed(
    kind: type[Parsed],
    settings: RunConfig,
    arguments: Arguments,
    seen: Peek,
    *,
    prog: str,
    defaults: str,
    extra: Any = None,
) -> tuple[Parsed, Any, Any]:
    """Return the options, the settings and predict's own options that a command line or a call asks for."""
    if isinstance(arguments, Keywords):
        return arguments.parse(settings, extra)
    return parse(kind, settings, seen.arguments, prog=prog, defaults=defaults, extra=extra)


def _typed(name: str, command: str, arguments: Arguments) -> str:
    """Return the command line or the Python call, without secrets."""
    if isinstance(arguments, Keywords):
        return without_secrets(f"runner_core.{command}({name!r}, **{dict(arguments.others)})")
    return without_secrets(shlex.join(["runner", name, command, *arguments]))


def _defaults(preset: str, seen: Peek, file: SettingsFile | None) -> str:
    """Return the source of the defaults that --help shows."""
    over = "" if file is None else f" and of {file.path}"
    if file is None and seen.preset is None:
        other = "with --data it is default" if seen.data is None else "without --data it is demo"
        return f"the preset {preset} ({other}; --preset NAME shows another's)"
    return f"the preset {preset}{over}"


def start_from_run(
    name: str,
    command: str,
    kind: type[Parsed],
    arguments: Arguments,
    named: Path | None = None,
    selected: Path | None = None,
) -> Started[Parsed]:
    """Start a command that uses a trained run: `named`, or the one that the user names first.

    Uses the run's settings, those of the file `selected` or of `--config` over them, and flags that leave its model
    alone.
    """
    seen = seen_flags(arguments)
    named = named or seen.run
    if named is not None:
        named = named_run(name, named)
    if named is None:
        if seen.help:
            plugins = load_plugins(name, seen, None)[0]
            project = plugins.project()
            parse(
                *(kind, from_preset(project, "default", plugins.sections(project)), seen.arguments),
                prog=f"runner {name} {command}",
                defaults="the preset default, or of the run that you name",
                extra=_extra(kind, project),
            )
        raise BadInput(f"name the run first: {runner()} {name} {command} RUN …  (a folder below runs/{name})")
    run = RunFolder.open(named)
    scores = issubclass(kind, (EvaluateOptions, SelectOptions)) and not seen.help
    if scores and is_builtin(run.path) and seen.data is None:
        raise BadInput(NO_DATA)
    saved = read_run(run, name)
    over = seen.config or selected
    file = None if over is None else read_settings(over)
    plugins, chosen = load_plugins(name, seen, saved, (file,))
    project = plugins.project()
    extensions = plugins.sections(project)
    saved = without_absent(saved, project, extensions, seen, plugins.idle)
    file = None if file is None else without_absent(file, project, extensions, seen, plugins.idle)
    preset = saved.preset or "default"
    trained = settings = over_preset(from_preset(project, preset, extensions), project, saved)
    own = seen.data is None or str(_source(project, seen.data, saved)) == saved.source
    if not own:
        settings = for_other_data(trained, project, preset)
    if file is not None:
        settings = from_file(settings, project, file)
    prog, defaults = f"runner {name} {command}", f"the run {run.path}"
    options, settings, extra = _parsed(
        *(kind, settings, arguments, seen), prog=prog, defaults=defaults, extra=_extra(kind, project)
    )
    refuse_secret_settings(settings)
    refuse_other_model(trained, settings, run.path, project.dataset)
    instance = project(settings)
    refuse_unknown_views(instance)
    if extra is not None:
        instance.predict_options = extra
    setup = Setup(instance, settings, preset, _source(project, seen.data, saved), plugins)
    changed = differences(trained, settings)
    for text in settings.without_effect() if changed else ():
        print(f"note: {text}", file=sys.stderr)
    return Started(options, setup, run, chosen, changed, own, named=named)


def _resumed(name: str, seen: Peek) -> RunFolder | None:
    run = None if seen.resume is None else _named(name, seen)
    if run is not None and _is_imported(run):
        raise BadInput(f"{run.path} holds weights and no training to continue: start one with --from")
    return run


def _is_imported(run: RunFolder) -> bool:
    with suppress(BadInput):  # a damaged summary.json is written anew
        return run.read_summary().get("status") == IMPORTED
    return False


def _named(name: str, seen: Peek) -> RunFolder | None:
    """Return the run that --resume names, or None if --resume auto is to start it."""
    assert seen.resume is not None
    if seen.resume == AUTO and seen.run_dir is None and not seen.help:
        raise BadInput(f"--resume auto needs the folder: {runner()} {name} train --resume auto --run-dir DIR …")
    if seen.resume == AUTO:
        begun = seen.run_dir is not None and (seen.run_dir / "config.yaml").is_file()
        return RunFolder.open(seen.run_dir) if seen.run_dir and begun else None
    named = seen.run_dir if seen.resume == LATEST else Path(seen.resume)
    if named is None:
        return RunFolder.latest(name)
    if not named.exists():
        raise BadInput(f"{named}: there is no such run folder; without --resume, the same line starts it")
    return RunFolder.open(named)


def _source(project: type[Project], data: Location | None, saved: SettingsFile | None) -> Location | None:
    """Return the user's data, else the run's, else None (the phantom)."""
    if data is None and (saved is None or saved.source in (None, PHANTOM)):
        return None
    source = data or location((saved and saved.source) or "")
    if isinstance(source, Url):  # listing its records shows whether it exists
        refuse_url(project, source)
        return source
    if refuse_special_file(source).exists():
        return source.absolute()
    if data is None:
        raise BadInput(f"{source}: the data of this run is no longer there; name its folder with --data")
    what = "file; name the table or the folder of your data" if source.suffix else "folder; name that of your data"
    raise BadInput(f"{source}: there is no such {what} with --data")


def refuse_url(project: type[Project] | Project, url: Url, in_blocks: bool = False) -> None:
    """Raise BadInput if the project reads local files only, or if the URL holds a secret that must not be saved.

    With `in_blocks` the project reads parts of the file itself.
    """
    refuse_secrets(url)
    if not project.dataset.remote and not in_blocks:
        raise BadInput(f"{url}: project {project.name} cannot read data from a URL; copy it to this machine first")


def _extra(kind: type[Options], project: type[Project]) -> Any:
    return copy(project.predict_options) if issubclass(kind, PredictOptions) else None
