"""Weights that a new training starts from: those that the user names with --from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.hub import ABOUT, OWN, fetch, is_hub, is_same
from runner_core.cli.options import Options, StartOptions
from runner_core.cli.parsing import Peek
from runner_core.cli.saved import active_extensions, read_run
from runner_core.config.extensions import section_name
from runner_core.output.runfolder import RunFolder
from runner_core.plugins import discovery
from runner_core.plugins.builtin import NO_DATA, is_builtin, named_run
from runner_core.plugins.settings import PHANTOM, SettingsFile
from runner_core.tools.card.facts import NOT_TRAINING
from runner_core.training.seen import History


@dataclass(frozen=True)
class NamedWeights:
    """The weights that the user named with --from; `settings` and `history` are those of their run, if it is one.

    `source` says where a file came from, if not from this machine.
    """

    named: Path
    settings: SettingsFile | None = None
    history: History | None = None
    source: str | None = None


def start_weights(name: str, kind: type[Options], seen: Peek, file: SettingsFile | None) -> NamedWeights | None:
    """Return the weights that a new training starts from, or None."""
    if not issubclass(kind, StartOptions) or seen.help:
        return None
    named = (None if file is None else file.start) if seen.start is None else seen.start
    if named is None:
        return None
    if not named.strip():
        raise BadInput("--from names nothing: name a run or a file (is a variable of the shell empty?)")
    if is_hub(named):
        return _from_hub(name, named)
    place = named_run(name, Path(named).expanduser())
    if not place.exists():
        raise BadInput(f"--from {named}: there is no such run or file")
    try:
        run = RunFolder.open(place)
    except BadInput:
        return NamedWeights(place)
    settings = read_run(run, name)
    settings = replace(settings, sections=_without_extensions(settings.sections, active_extensions(settings)))
    source = NO_DATA if is_builtin(run.path) else settings.source or PHANTOM
    return NamedWeights(place, settings, History.of(run.path, source))


def _from_hub(name: str, named: str) -> NamedWeights:
    """Return weights from the Hub, with the settings that they were trained with if runner wrote them there.

    Raises BadInput if they are another project's. A stranger's settings say how to train, and neither where files go,
    nor to which server the log, nor what an extension does: one of them runs lines of shell.
    """
    found = fetch(named)
    about = found.about.get(OWN)
    if not found.about:
        print(
            f"NOTE: {found.source}: no {ABOUT} came with the weights (huggingface_hub's cache may lack it), so they "
            "bring no settings: those of the preset hold, unless you name others"
        )
    if not isinstance(about, dict):
        return NamedWeights(found.file, source=found.source)
    if about.get("project") != name:
        raise BadInput(f"--from {named}: weights of project {str(about.get('project'))[:80]!r}, not of {name!r}")
    given = about.get("settings")
    sections = _without_extensions(given if isinstance(given, dict) else {}, ())
    for section in NOT_TRAINING:
        sections.pop(section, None)
    settings = SettingsFile(found.file.with_name(ABOUT), sections, name, str(about.get("preset") or "default"))
    return NamedWeights(found.file, settings, source=found.source)


def refuse_other_start(saved: SettingsFile, seen: Peek) -> None:
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


def _without_extensions(sections: Mapping[str, Any], theirs: Sequence[str]) -> dict[str, Any]:
    """Return settings without those of extensions, which are installed here or were `theirs`.

    Weights may be a stranger's, and extensions may run commands.
    """
    own = {section_name(name) for name in (*discovery.extensions(), *theirs)}
    return {name: values for name, values in sections.items() if name not in own}
