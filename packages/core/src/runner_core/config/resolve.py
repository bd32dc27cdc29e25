"""Where settings come from: preset < YAML file < flags; and how a run's own are saved and read back.

A settings file holds sections as `runner P config` prints them, and may name its `preset`. A run's config.yaml is
such a file with more keys (project, preset, source, plugins, chosen), so that it can be given to `--config` as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner_core._errors import BadInput, did_you_mean
from runner_core.config import RunConfig
from runner_core.config.values import flat, overlay, overlay_named, plain
from runner_core.config.yamlfile import read_yaml
from runner_core.project import Project
from runner_core.runfolder import replace_text

PHANTOM = "phantom"
"""What `source` says when a run trains on the built-in phantom."""

_FREE_SECTIONS = ("cache", "remote", "precision", "log", "predict")
_FREE = (
    "train.device",
    "train.devices",
    "train.strategy",
    "train.threads",
    "train.deterministic",
    "train.compile",
    "train.channels_last",
)
"""Settings that a trained model may be used with as one likes; the others made it what it is."""

_LEAST: Mapping[str, float] = {
    "cache.workers": 0,
    "cache.max_gb": 0,
    "remote.connections": 1,
    "remote.retries": 0,
    "crop.margin": 0,
    "train.epochs": 1,
    "train.steps_per_epoch": 1,
    "train.steps_per_execution": 1,
    "train.batch_size": 1,
    "train.devices": 1,
    "train.accumulate": 1,
    "train.workers": 0,
    "train.prefetch": 0,
    "train.weight_decay": 0,
    "train.warmup": 0,
    "train.patience": 1,
    "train.seed": 0,
    "train.threads": 1,
    "validate.every": 1,
    "validate.batch_size": 1,
    "checkpoint.every": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": 1,
    "health.constant_after": 1,
    "health.constant_steps": 0,
    "log.every": 1,
}
_MOST: Mapping[str, float] = {"train.warmup": 1}
_BETWEEN: Mapping[str, tuple[float, float]] = {
    "data.validation_fraction": (0, 1),
    "remote.timeout": (0, math.inf),
    "train.learning_rate": (0, math.inf),
    "train.clip": (0, math.inf),
    "train.ema": (0, 1),
}
"""Limits that are no values themselves: with a learning rate or a norm of 0 nothing would be learned."""


@dataclass
class SettingsFile:
    """A parsed settings file: its sections, and the keys of a run's config.yaml where it has them."""

    path: Path
    sections: dict[str, Any]
    project: str | None = None
    preset: str | None = None
    source: str | None = None
    plugins: dict[str, str] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)


def read_settings(path: Path) -> SettingsFile:
    """Parse a settings file; BadInput naming it when it is missing, is no YAML or has no sections."""
    values = read_yaml(path, "settings file")
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `train:`, found {type(values).__name__}")
    own = {key: values.pop(key, None) for key in ("project", "preset", "source")}
    for key, value in own.items():
        if value is not None and not isinstance(value, str):
            raise BadInput(f"{path}: {key} must be text, not {value!r}")
    plugins = values.pop("plugins", None) or {}
    if not isinstance(plugins, dict):
        raise BadInput(f"{path}: plugins must be names with versions, not {plugins!r}")
    chosen = values.pop("chosen", None) or []
    return SettingsFile(path, values, plugins=plugins, chosen=list(chosen), **own)


def from_preset(project: type[Project], preset: str) -> RunConfig:
    """The preset's settings, or BadInput with the presets that there are."""
    if preset not in project.presets:
        hint = did_you_mean(preset, project.presets)
        raise BadInput(f"{project.name} has no preset {preset!r}{hint} (presets: {', '.join(project.presets)})")
    return project.presets[preset]()


def from_file(base: RunConfig, project: type[Project], file: SettingsFile) -> RunConfig:
    """`base` with the file's settings over it."""
    if file.project is not None and file.project != project.name:
        raise BadInput(f"{file.path}: these settings are of project {file.project!r}, not {project.name!r}")
    return overlay(base, file.sections, str(file.path))


def refuse_nonsense(config: RunConfig) -> None:
    """BadInput for numbers that no run can mean: a batch of 0, a share above 1, NaN."""
    values = flat(config)
    for name, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise BadInput(f"setting {name} must be a finite number, not {value!r}")
    for name, least in _LEAST.items():
        if values[name] is not None and values[name] < least:
            raise BadInput(f"setting {name} must be at least {least:g}, not {values[name]!r}")
    for name, most in _MOST.items():
        if values[name] is not None and values[name] > most:
            raise BadInput(f"setting {name} must be at most {most:g}, not {values[name]!r}")
    for name, (low, high) in _BETWEEN.items():
        if values[name] is not None and not low < values[name] < high:
            limits = f"lie between {low:g} and {high:g}" if math.isfinite(high) else f"be more than {low:g}"
            raise BadInput(f"setting {name} must {limits}, not {values[name]!r}")
    if "@" in (config.remote.endpoint or ""):
        raise BadInput(
            "remote.endpoint holds a user name, a password or a key, which the run folder would keep: leave it out; "
            "put keys into the environment (remote.credentials)"
        )


def save(path: Path, config: RunConfig, head: Mapping[str, Any]) -> None:
    """Write a run's config.yaml whole, or leave it and raise BadInput; `head`: project, preset, source, plugins,
    chosen."""
    text = yaml.safe_dump({**head, **plain(config)}, sort_keys=False)
    try:
        replace_text(path, f"# runner {head['project']} train --config THIS_FILE repeats this run\n{text}")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def dump(config: RunConfig) -> str:
    """Settings as YAML, section by section."""
    return str(yaml.safe_dump(plain(config), sort_keys=False))


def differences(one: RunConfig, other: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted name → (value in `one`, value in `other`), where they differ."""
    a, b = flat(one), flat(other)
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def for_other_data(config: RunConfig, project: type[Project], preset: str) -> RunConfig:
    """`config` with the preset's values of the settings that say what the data are (`Project.of_data`)."""
    usual = flat(from_preset(project, preset))
    return overlay_named(config, {name: usual[name] for name in project.of_data}, f"preset {preset}")


def refuse_other_model(saved: RunConfig, wanted: RunConfig, run: Path, of_data: Sequence[str] = ()) -> None:
    """BadInput when `wanted` asks for another model, or other prepared arrays, than the run was trained with.

    `of_data`: settings that say what the data are; they may be others."""
    changed = {
        name: values
        for name, values in differences(saved, wanted).items()
        if name not in (*_FREE, *of_data) and name.partition(".")[0] not in _FREE_SECTIONS
    }
    if changed:
        lines = "\n".join(f"  - {name}: the run has {was!r}, asked for {now!r}" for name, (was, now) in changed.items())
        raise BadInput(f"{run} was trained with other settings:\n{lines}\nleave these flags out")
