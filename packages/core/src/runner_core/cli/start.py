"""Turns a command line, or the keywords of a call from Python, into a Setup, for a new run or with a trained one.

Plugins come first, then preset, settings file and flags.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.hub import ABOUT, OWN, fetch, is_hub, is_same
from runner_core.base.location import Location, Url, location, refuse_secrets
from runner_core.base.secrets import without_secrets
from runner_core.cli.keywords import Keywords
from runner_core.cli.options import (
    AUTO,
    LATEST,
    EvaluateOptions,
    Options,
    Parsed,
    Peek,
    PredictOptions,
    SelectOptions,
    StartOptions,
    parse,
    peek,
)
from runner_core.config import RunConfig
from runner_core.config.extensions import section_name
from runner_core.config.values import flat, overlay, removed
from runner_core.contract import Infer, State, Trained
from runner_core.contract.project import Project, refuse_unknown_views, views_of
from runner_core.contract.setup import Setup
from runner_core.output.runfolder import IMPORTED, RunFolder
from runner_core.plugins import discovery
from runner_core.plugins.builtin import NO_DATA, is_builtin, named_run
from runner_core.plugins.manager import Plugins
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
from runner_core.tools.card.facts import NOT_TRAINING
from runner_core.training.checkpoints import refuse_nan, restoring
from runner_core.training.seen import History
from runner_core.training.start import keep_weights, open_start, reopen

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
        _refuse_other_start(saved, seen)
    start = _start(name, kind, seen, file) if saved is None else None
    parent = None if start is None else start.settings
    plugins, chosen = _plugins(name, seen, saved, (file, parent))
    project = plugins.project()
    extensions = plugins.sections(project)
    saved, file, parent = (
        f and _without_absent(f, project, extensions, seen, plugins.idle) for f in (saved, file, parent)
    )
    source = _source(project, seen.data, saved or _with_source(file, parent))
    fallback = "demo" if source is None else "default"
    preset = seen.preset or next((f.preset for f in (file, saved, parent) if f is not None and f.preset), fallback)
    if saved is not None and seen.preset not in (None, saved.preset):
        raise BadInput(f"{run and run.path} was started with the preset {saved.preset!r}, not {seen.preset!r}")
    base = _settings(from_preset(project, preset, extensions), project, saved or (None if seen.preset else parent))
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


@dataclass(frozen=True)
class _From:
    """The weights that the user named with --from; `settings` and `history` are those of their run, if it is one.

    `source` says where a file came from, if not from this machine.
    """

    named: Path
    settings: SettingsFile | None = None
    history: History | None = None
    source: str | None = None


def _start(name: str, kind: type[Options], seen: Peek, file: SettingsFile | None) -> _From | None:
    """Return the weights that a new training starts from, or None."""
    if not issubclass(kind, StartOptions) or seen.help:
        return None
    named = seen.start or (None if file is None else file.start)
    if named is None:
        return None
    if is_hub(named):
        return _from_hub(name, named)
    place = named_run(name, Path(named).expanduser())
    if not place.exists():
        raise BadInput(f"--from {named}: there is no such run or file")
    try:
        run = RunFolder.open(place)
    except BadInput:
        return _From(place)
    settings = read_run(run, name)
    source = NO_DATA if is_builtin(run.path) else settings.source or PHANTOM
    return _From(place, settings, History.of(run.path, source))


def _from_hub(name: str, named: str) -> _From:
    """Return weights from the Hub, with the settings that they were trained with if runner wrote them there.

    Raises BadInput if they are another project's. A stranger's settings say how to train, and neither where files go,
    nor to which server the log, nor what an extension does: one of them runs lines of shell.
    """
    found = fetch(named)
    about = found.about.get(OWN)
    if not isinstance(about, dict):
        return _From(found.file, source=found.source)
    if about.get("project") != name:
        raise BadInput(f"--from {named}: weights of project {str(about.get('project'))[:80]!r}, not of {name!r}")
    given = about.get("settings")
    sections = dict(given) if isinstance(given, dict) else {}
    for section in (*NOT_TRAINING, *map(section_name, discovery.extensions())):
        sections.pop(section, None)
    settings = SettingsFile(found.file.with_name(ABOUT), sections, name, str(about.get("preset") or "default"))
    return _From(found.file, settings, source=found.source)


def _refuse_other_start(saved: SettingsFile, seen: Peek) -> None:
    """Raise BadInput if --from beside --resume does not name the weights that the run started from."""
    if seen.start is None:
        return
    if is_hub(seen.start) and saved.start is not None and is_hub(saved.start) and is_same(seen.start, saved.start):
        return
    began = [] if saved.start is None else [(place := Path(saved.start).resolve()), place.parent]
    if began and began[-1].name == "checkpoints":
        began.append(began[-1].parent)  # the run
    if named_run(saved.project or "", Path(seen.start).expanduser()).resolve() not in began:
        raise BadInput(
            f"--from {seen.start}: {saved.path.parent} started from {saved.start or 'no weights'}, and --resume goes "
            "on with the weights in its checkpoints: leave one of them out"
        )


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
            plugins = _plugins(name, seen, None)[0]
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
    plugins, chosen = _plugins(name, seen, saved, (file,))
    project = plugins.project()
    extensions = plugins.sections(project)
    saved = _without_absent(saved, project, extensions, seen, plugins.idle)
    file = None if file is None else _without_absent(file, project, extensions, seen, plugins.idle)
    preset = saved.preset or "default"
    trained = settings = _settings(from_preset(project, preset, extensions), project, saved)
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


def load_network(started: Started[Any], named: Path) -> tuple[Trained, str]:
    """Return the network of a checkpoint, and the checkpoint's name.

    `named` is the checkpoint or its run; of a run, the best checkpoint is used.
    """
    state, checkpoint = load_state(started, named)
    with restoring(checkpoint):
        trained = started.setup.engine.load(started.setup, state)
    views_of(started.setup.project)  # refuses unknown ones: it may need the checkpoint's statistics
    return trained, checkpoint.name


def load_networks(started: Started[Any], named: Path, say: Callable[[str], None]) -> tuple[Trained, Infer | None, str]:
    """Return the trained network, the untrained network, and the checkpoint's name.

    Like `load_network`, with the network before its first step if the project's `judge` wants it, else None. It is None
    too, and `say` tells why, where the weights that the run started from are gone or changed.
    """
    setup = started.setup
    state, checkpoint = load_state(started, named)
    judging = setup.project.judging()
    wanted = judging.untrained and judging.judge is not None
    if wanted and started.run is not None and (start := reopen(setup, started.run)) is not None:
        try:
            keep_weights(start)
        except (BadInput, OSError) as error:
            say(f"NOTE: no comparison with the network before its first step, which cannot be made again: {error}")
            wanted = False
        else:
            start.restored = False
            setup.start = start
    with restoring(checkpoint):
        trained = setup.engine.load(setup, state)
        views_of(setup.project)
        return trained, setup.engine.untrained(setup, state).infer if wanted else None, checkpoint.name


def load_state(started: Started[Any], named: Path) -> tuple[State, Path]:
    """Return the state of a checkpoint, and its folder.

    `named` is the checkpoint or its run; of a run, the best checkpoint is used.
    """
    from runner_core.training.checkpoints import Checkpoints

    setup, run = started.setup, started.run
    assert run is not None
    checkpoints = Checkpoints(run.checkpoints, setup.checkpoint_format, project=setup.name)
    path = run.checkpoint_of(named)
    if path is None:
        found = checkpoints.best()
        if found is None:
            raise BadInput(f"{run.path}: there is no usable checkpoint yet; train first, or continue with --resume")
        path = found[0]
    state = checkpoints.load(path)
    refuse_nan(state, path)
    return state, path


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


def read_run(run: RunFolder, name: str) -> SettingsFile:
    """Return a run's settings file. Raises BadInput for a run of another project."""
    saved = read_settings(run.config_file)
    if saved.project != name:
        raise BadInput(f"{run.path} is a run of project {saved.project!r}, not of {name!r}")
    return saved


def _plugins(
    name: str, seen: Peek, saved: SettingsFile | None, files: Sequence[SettingsFile | None] = ()
) -> tuple[Plugins, tuple[str, ...]]:
    """Return the plugins, and the extensions that the user chose.

    A trained run gets the extensions that it was trained with, and no others; flags may add and remove some. Extensions
    that `files` name may be switched off though they are not installed.
    """
    chosen, without, installed = seen.extension, seen.no_extension, discovery.extensions()
    named = {extension for file in files if file is not None for extension in _active(file)}
    without = tuple(n for n in without if n in installed or n not in named)
    if saved is not None:
        active = _active(saved)
        for extension in active:
            if extension not in installed and extension not in without:
                raise BadInput(
                    f"{saved.path.parent} was trained with the extension {extension!r}, which is not installed: "
                    f"install it again, or leave it out with `--no-extension {extension}`"
                )
        chosen = (*chosen, *(c for c in saved.chosen if c not in without and c not in chosen))  # the first wins
        without = tuple(n for n in installed if n in without or (n not in active and n not in chosen))
    return Plugins.load(name, chosen, without), chosen


def _active(saved: SettingsFile) -> list[str]:
    """Return the extensions of the run that the file is of."""
    return [label.removeprefix("extension ") for label in saved.plugins if label.startswith("extension ")]


def _without_absent(
    file: SettingsFile, project: type[Project], extensions: Mapping[str, type], seen: Peek, idle: Sequence[str]
) -> SettingsFile:
    """Return the file without the settings of extensions that the user switched off, or that are `idle` in this run.

    Raises BadInput for settings of an extension that is not installed.
    """
    own = {*extensions, *(field.name for field in fields(project.Config))}
    absent = {section_name(name): name for name in (*_active(file), *seen.no_extension, *idle)}
    absent = {section: name for section, name in absent.items() if section in file.sections and section not in own}
    for section, name in absent.items():
        if name not in (*seen.no_extension, *idle):
            raise BadInput(
                f"{file.path}: `{section}` holds settings of the extension {name!r}, which is not installed: "
                f"install it, or leave it out with `--no-extension {name}`"
            )
    return replace(file, sections={name: values for name, values in file.sections.items() if name not in absent})


def _settings(settings: RunConfig, project: type[Project], saved: SettingsFile | None) -> Any:
    return settings if saved is None else from_file(settings, project, _without_removed(saved, settings))


def _without_removed(saved: SettingsFile, settings: RunConfig) -> SettingsFile:
    """Return a run's settings without those that projects had when it was trained and have no more."""
    sections = deepcopy(saved.sections)
    for name in removed(flat(settings)):
        section, key = name.split(".")
        value = sections[section].pop(key, None) if isinstance(sections.get(section), dict) else None
        if name == "predict.flip" and value is False:  # what projects mirrored is now their default view
            sections[section]["views"] = []
    return replace(saved, sections=sections)


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
