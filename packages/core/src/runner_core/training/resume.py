"""Refuse to continue a run with other settings or records that make its model and samples."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.values import flat
from runner_core.contract import Json
from runner_core.contract.project import Project, overrides
from runner_core.contract.setup import Data
from runner_core.training.cadence import Cadence

FREE_SECTIONS = ("cache", "remote", "validate", "checkpoint", "health", "log", "predict")
FREE_SETTINGS = (
    "train.epochs",  # see `refuse_other_length`
    "train.workers",
    "train.prefetch",
    "train.patience",
    "train.device",
    "train.devices",  # see `fingerprint`
    "train.strategy",
    "train.threads",
    "train.deterministic",
    "train.compile",
    "train.channels_last",
)

_NAMES = {"train.batch_size": "train.batch_size times train.devices"}


def fingerprint(config: RunConfig, data: Data, precision: str) -> dict[str, Json]:
    """Return what a continued run must share with its start.

    These are the settings by dotted name, the dtype that layers compute in, and digests of each split's records and of
    the data: the records' content and their preparation. The batch size is counted over all devices.
    """
    settings = {
        name: value
        for name, value in flat(config).items()
        if name.partition(".")[0] not in FREE_SECTIONS and name not in FREE_SETTINGS
    }
    settings["train.batch_size"] = config.train.batch_size * config.train.devices
    settings["validate.records"] = config.validate.records  # they choose the best checkpoint
    records = {f"records of {split}": _digest(data, numbers) for split, numbers in data.splits.items()}
    return settings | {"computing in": precision} | records | {"data and its preparation": data.store.identity}


def refuse_other_settings(saved: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Raise BadInput that lists every difference."""
    changed = [
        f"  - {_NAMES.get(name, name)}: {_shown(saved, name)} in the run, {_shown(now, name)} now"
        for name in [*saved, *(n for n in now if n not in saved)]
        if saved.get(name) != now.get(name)
    ]
    if changed:
        raise BadInput(
            "the run cannot go on with other settings or data than it was started with:\n"
            + "\n".join(changed)
            + "\nresume it as it was, or start a new run"
        )


def refuse_other_length(saved: Mapping[str, int], cadence: Cadence, project: Project, step: int) -> None:
    """Raise BadInput if the run's length has changed in a way that changes its training.

    `saved` holds steps_per_epoch and epochs of the checkpoint. More epochs are fine if the learning rate does not
    depend on them: a constant one, past its warm-up.
    """
    if saved["steps_per_epoch"] != cadence.steps_per_epoch:
        raise BadInput(
            f"the run's epochs have {saved['steps_per_epoch']} steps, now they would have {cadence.steps_per_epoch}: "
            "the number of samples or train.steps_per_epoch changed; start a new run"
        )
    if step > saved["epochs"] * saved["steps_per_epoch"]:
        raise BadInput(f"the checkpoint is of step {step:,}, which this run does not have: it was changed")
    if saved["epochs"] == cadence.epochs:
        return
    longest = max(saved["epochs"], cadence.epochs) * cadence.steps_per_epoch
    train = project.config.train
    constant = train.schedule == "constant" and step >= train.warmup * longest and not overrides(project, "schedule")
    if not constant or step > cadence.steps:
        raise BadInput(
            f"train.epochs was {saved['epochs']} in the run and is {cadence.epochs} now. Epochs may only be added, and "
            "only where the learning rate does not depend on them (train.schedule constant, after its warm-up, no "
            "schedule of the project's own): "
            "resume with the run's own epochs, or start a new run"
        )


def _digest(data: Data, numbers: list[int]) -> str:
    names = "\n".join(data.store.keys[n] for n in numbers)
    return xxhash.xxh3_64_hexdigest(names.encode(errors="backslashreplace"))


def _shown(settings: Mapping[str, Json], name: str) -> str:
    return repr(settings[name]) if name in settings else "unset"


def other_plugins(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return notes about plugins that differ from those of the training."""
    return [
        f"NOTE: plugin {name} was {saved.get(name, 'not there')} when the checkpoint was written and is "
        f"{now.get(name, 'not there')} now"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
