"""What must be the same for a run to be continued: the settings and records that make the model and its samples."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from runner_core._cadence import Cadence
from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.values import flat
from runner_core.project import Project, overrides
from runner_core.protocols import Json
from runner_core.setup import Data

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
    """Settings that a continued run must share, by dotted name, the dtype that layers compute in, digests of each
    split's records and of the data: the records' content and how it was prepared. Of the batch it is its size over all
    devices that counts."""
    settings = {
        name: value
        for name, value in flat(config).items()
        if name.partition(".")[0] not in FREE_SECTIONS and name not in FREE_SETTINGS
    }
    settings["train.batch_size"] = config.train.batch_size * config.train.devices
    records = {f"records of {split}": _digest(data, numbers) for split, numbers in data.splits.items()}
    return settings | {"computing in": precision} | records | {"data and its preparation": data.store.identity}


def refuse_other_settings(saved: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Raise BadInput listing every difference."""
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
    """What a resumed run says of plugins that are not those it was trained with."""
    return [
        f"NOTE: plugin {name} was {saved.get(name, 'not there')} when the checkpoint was written and is "
        f"{now.get(name, 'not there')} now"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
