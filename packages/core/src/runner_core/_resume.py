"""What must be the same for a run to be continued: the settings and records that make the model and its samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import xxhash

from runner_core._cadence import Cadence
from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.protocols import Json
from runner_core.setup import Data

FREE_SECTIONS = ("cache", "validate", "checkpoint", "health", "log")
FREE_SETTINGS = (
    "train.epochs",  # see `refuse_other_length`
    "train.workers",
    "train.prefetch",
    "train.patience",
    "train.device",
    "train.threads",
    "train.deterministic",
    "train.compile",
    "train.channels_last",
)


def fingerprint(config: RunConfig, data: Data) -> dict[str, Json]:
    """Settings that a continued run must share, by dotted name, and a digest of each split's records."""
    settings = {
        name: value
        for name, value in flat_settings(config).items()
        if name.partition(".")[0] not in FREE_SECTIONS and name not in FREE_SETTINGS
    }
    records = {f"records of {split}": _digest(data, numbers) for split, numbers in data.splits.items()}
    return settings | records


def flat_settings(config: Any, prefix: str = "") -> dict[str, Json]:
    """Every setting by dotted name, as JSON.

    >>> flat_settings(RunConfig())["train.batch_size"]
    32
    """
    flat: dict[str, Json] = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            flat |= flat_settings(value, f"{name}.")
        else:
            flat[name] = _plain(value)
    return flat


def refuse_other_settings(saved: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Raise BadInput listing every difference."""
    changed = [
        f"  - {name}: {_shown(saved, name)} in the run, {_shown(now, name)} now"
        for name in [*saved, *(n for n in now if n not in saved)]
        if saved.get(name) != now.get(name)
    ]
    if changed:
        raise BadInput(
            "the run cannot go on with other settings or data than it was started with:\n"
            + "\n".join(changed)
            + "\nresume it as it was, or start a new run"
        )


def refuse_other_length(saved: Mapping[str, int], cadence: Cadence, config: RunConfig, step: int) -> None:
    """`saved`: steps_per_epoch and epochs of the checkpoint. More epochs are fine while the learning rate does not
    depend on them: constant, and past its warm-up."""
    if saved["steps_per_epoch"] != cadence.steps_per_epoch:
        raise BadInput(
            f"the run's epochs have {saved['steps_per_epoch']} steps, now they would have {cadence.steps_per_epoch}: "
            "the number of samples or train.steps_per_epoch changed; start a new run"
        )
    if saved["epochs"] == cadence.epochs:
        return
    longest = max(saved["epochs"], cadence.epochs) * cadence.steps_per_epoch
    constant = config.train.schedule == "constant" and step >= config.train.warmup * longest
    if not constant or step > cadence.steps:
        raise BadInput(
            f"train.epochs was {saved['epochs']} in the run and is {cadence.epochs} now. Epochs may only be added, and "
            "only where the learning rate does not depend on them (train.schedule constant, after its warm-up): "
            "resume with the run's own epochs, or start a new run"
        )


def _digest(data: Data, numbers: list[int]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(data.store.keys[n] for n in numbers).encode())


def _plain(value: Any) -> Json:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _shown(settings: Mapping[str, Json], name: str) -> str:
    return repr(settings[name]) if name in settings else "unset"
