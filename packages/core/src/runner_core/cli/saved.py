"""Read what a run or a settings file says: its extensions, and its settings without those that are absent here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.cli.parsing import Peek
from runner_core.config import RunConfig
from runner_core.config.extensions import section_name
from runner_core.config.values import flat, removed
from runner_core.contract.project import Project
from runner_core.output.runfolder import RunFolder
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import SettingsFile, from_file, read_settings


def read_run(run: RunFolder, name: str) -> SettingsFile:
    """Return a run's settings file. Raises BadInput for a run of another project."""
    saved = read_settings(run.config_file)
    if saved.project != name:
        raise BadInput(f"{run.path} is a run of project {saved.project!r}, not of {name!r}")
    return saved


def load_plugins(
    name: str, seen: Peek, saved: SettingsFile | None, files: Sequence[SettingsFile | None] = ()
) -> tuple[Plugins, tuple[str, ...]]:
    """Return the plugins, and the extensions that the user chose.

    A trained run gets the extensions that it was trained with, and no others; flags may add and remove some. Extensions
    that `files` name may be switched off though they are not installed.
    """
    chosen, without, installed = seen.extension, seen.no_extension, discovery.extensions()
    named = {extension for file in files if file is not None for extension in active_extensions(file)}
    without = tuple(n for n in without if n in installed or n not in named)
    if saved is not None:
        active = active_extensions(saved)
        for extension in active:
            if extension not in installed and extension not in without:
                raise BadInput(
                    f"{saved.path.parent} was trained with the extension {extension!r}, which is not installed: "
                    f"install it again, or leave it out with `--no-extension {extension}`"
                )
        chosen = (*chosen, *(c for c in saved.chosen if c not in without and c not in chosen))  # the first wins
        without = tuple(n for n in installed if n in without or (n not in active and n not in chosen))
    return Plugins.load(name, chosen, without), chosen


def active_extensions(saved: SettingsFile) -> list[str]:
    """Return the extensions of the run that the file is of."""
    return [label.removeprefix("extension ") for label in saved.plugins if label.startswith("extension ")]


def without_absent(
    file: SettingsFile, project: type[Project], extensions: Mapping[str, type], seen: Peek, idle: Sequence[str]
) -> SettingsFile:
    """Return the file without the settings of extensions that the user switched off, or that are `idle` in this run.

    Raises BadInput for settings of an extension that is not installed.
    """
    own = {*extensions, *(field.name for field in fields(project.Config))}
    absent = {section_name(name): name for name in (*active_extensions(file), *seen.no_extension, *idle)}
    absent = {section: name for section, name in absent.items() if section in file.sections and section not in own}
    for section, name in absent.items():
        if name not in (*seen.no_extension, *idle):
            raise BadInput(
                f"{file.path}: `{section}` holds settings of the extension {name!r}, which is not installed: "
                f"install it, or leave it out with `--no-extension {name}`"
            )
    return replace(file, sections={name: values for name, values in file.sections.items() if name not in absent})


def over_preset(settings: RunConfig, project: type[Project], saved: SettingsFile | None) -> Any:
    """Return a preset's settings under those of a run."""
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
