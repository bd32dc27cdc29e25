"""Settings of a run: merged from preset < YAML file < flags, saved in the run's folder and read back.

A settings file holds sections as `runner P config` prints them, and may name its `preset`. A run's config.yaml is such
a file with more keys (project, preset, source, plugins, chosen), so that `--config` accepts it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.secrets import hold_no_secrets
from runner_core.base.writing import replace_text
from runner_core.config import RunConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.config.extensions import with_sections
from runner_core.config.values import flat, overlay, overlay_named, plain
from runner_core.config.yamlfile import read_yaml
from runner_core.contract.facets import DataSet
from runner_core.contract.project import Project
from runner_core.contract.setup import Setup

_PLAIN = DataSet()
PHANTOM = "phantom"
"""Value of `source` when a run trains on the built-in phantom."""

HEAD = ("project", "preset", "source", "plugins", "chosen", "from")
"""Entries of a run's config.yaml besides the settings."""

_FREE_SECTIONS = ("cache", "remote", "precision", "exchange", "log", "predict")
_FREE = (
    "train.device",
    "train.devices",
    "train.strategy",
    "train.threads",
    "train.deterministic",
    "train.compile",
    "train.channels_last",
)
"""Settings that may be changed when a trained model is used; the others shaped the model."""
_IN_ENVIRONMENT = {"log.mlflow": "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"}
"""Environment variables for secrets that must not stand in a setting."""


@dataclass
class SettingsFile:
    """A parsed settings file: its sections, and the extra keys of a run's config.yaml if it has them."""

    path: Path
    sections: dict[str, Any]
    project: str | None = None
    preset: str | None = None
    source: str | None = None
    plugins: dict[str, str] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    start: str | None = None
    """Weights that the run started from (`from`)."""


def read_settings(path: Path) -> SettingsFile:
    """Parse a settings file. Raises BadInput naming it when it is missing, is not YAML or has no sections."""
    values = read_yaml(path, "settings file")
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `train:`, found {type(values).__name__}")
    own = {key: values.pop(key, None) for key in ("project", "preset", "source", "from")}
    for key, value in own.items():
        if value is not None and not isinstance(value, str):
            raise BadInput(f"{path}: {key} must be text, not {value!r}")
    start = own.pop("from")
    plugins = values.pop("plugins", None) or {}
    if not isinstance(plugins, dict) or not all(isinstance(name, str) for name in plugins):
        raise BadInput(f"{path}: plugins must be names with versions, not {plugins!r}")
    chosen = values.pop("chosen", None) or []
    if not isinstance(chosen, list) or not all(isinstance(name, str) for name in chosen):
        raise BadInput(f"{path}: chosen must be a list of extensions, not {chosen!r}")
    return SettingsFile(path, values, plugins=plugins, chosen=chosen, start=start, **own)


def from_preset(project: type[Project], preset: str, extensions: Mapping[str, type] | None = None) -> RunConfig:
    """Return the preset's settings, and the defaults of the extensions' sections.

    Raises BadInput that lists the presets.
    """
    if preset not in project.presets:
        hint = did_you_mean(preset, project.presets)
        raise BadInput(f"{project.name} has no preset {preset!r}{hint} (presets: {', '.join(project.presets)})")
    return with_sections(project.presets[preset](), extensions or {})


def from_file(base: RunConfig, project: type[Project], file: SettingsFile) -> RunConfig:
    """Return `base` with the file's settings over it. Raises BadInput, naming the file, where one is nonsense."""
    if file.project is not None and file.project != project.name:
        raise BadInput(f"{file.path}: these settings are of project {file.project!r}, not {project.name!r}")
    found = overlay(base, file.sections, str(file.path))
    try:
        refuse_nonsense(found)
    except BadInput as error:
        raise BadInput(f"{file.path}: {error}") from error
    return found


def refuse_nonsense(config: RunConfig) -> None:
    """Raise BadInput for numbers that no run can use (a batch of 0, a share above 1, NaN) and for secrets."""
    refuse_out_of_bounds(config)
    refuse_secret_settings(config)


def refuse_secret_settings(config: RunConfig) -> None:
    """Raise BadInput for a setting that holds a user name, a password or a signature."""
    for name, value in flat(config).items():
        if not isinstance(value, float) and hold_no_secrets(value) != value:  # NaN equals nothing
            raise BadInput(
                f"setting {name} holds a user name, a password or a signature, which the run folder would keep: leave "
                f"it out, and put it into the environment ({_IN_ENVIRONMENT.get(name, 'see remote.credentials')})"
            )


def head(setup: Setup, chosen: Sequence[str]) -> dict[str, Any]:
    """Return the entries of config.yaml besides the settings.

    `chosen` lists the extensions that the user chose where several offer a capability.
    """
    return {
        "project": setup.name,
        "preset": setup.preset,
        "source": PHANTOM if setup.source is None else str(setup.source),
        "plugins": setup.plugins.versions,
        "chosen": list(chosen),
        **({} if setup.start is None else {"from": setup.start.source}),
    }


def save(path: Path, config: RunConfig, head: Mapping[str, Any]) -> None:
    """Write a run's config.yaml whole, or leave it unchanged and raise BadInput.

    `head` holds project, preset, source, plugins and chosen; weights in a package have no source.
    """
    text = yaml.safe_dump({**head, **plain(config)}, sort_keys=False)
    about = f"runner {head['project']} train --config THIS_FILE repeats this run"
    if "source" not in head:
        about = "settings of the weights beside it, without their data; MODEL_CARD.md says how they were trained"
    try:
        replace_text(path, f"# {about}\n{text}")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


def dump(config: RunConfig) -> str:
    """Return settings as YAML, section by section."""
    return str(yaml.safe_dump(plain(config), sort_keys=False))


def differences(one: RunConfig, other: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return dotted name → (value in `one`, value in `other`) of the settings that differ."""
    a, b = flat(one), flat(other)
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def for_other_data(config: RunConfig, project: type[Project], preset: str) -> RunConfig:
    """Return `config` with the preset's values of the settings that describe the data (`DataSet.settings`)."""
    usual = flat(from_preset(project, preset))
    return overlay_named(config, {name: usual[name] for name in project.dataset.settings}, f"preset {preset}")


def refuse_other_model(saved: RunConfig, wanted: RunConfig, run: Path, dataset: DataSet = _PLAIN) -> None:
    """Raise BadInput when `wanted` asks for another model, or other prepared arrays, than the run was trained with.

    Settings that describe the data, and moved places (`dataset`) may differ, as those of extensions.
    """
    free = (*_FREE_SECTIONS, *saved.extensions, *wanted.extensions)
    changed = {
        name: values
        for name, values in differences(saved, wanted).items()
        if name not in (*_FREE, *dataset.settings)
        and name.partition(".")[0] not in free
        and not (name in dataset.places and all(values))
    }
    if changed:
        lines = "\n".join(
            f"  - {name}: the run has {was!r}, you asked for {now!r}" for name, (was, now) in changed.items()
        )
        raise BadInput(f"{run} was trained with other settings:\n{lines}\nleave these flags out")
