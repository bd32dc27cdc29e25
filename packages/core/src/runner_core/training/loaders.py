"""Choose the samples and batches that a training takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner_core.base.errors import BadInput, RunnerError
from runner_core.config import TrainConfig
from runner_core.contract.project import Project, overrides
from runner_core.contract.setup import Data, Setup
from runner_core.data.loader import Loader, epoch_length
from runner_core.data.samples import refuse_differing_fields


@dataclass
class Loaders:
    training: Loader
    validation: Loader | None

    def close(self) -> None:
        self.training.close()
        if self.validation is not None:
            self.validation.close()


def samples(project: Project, data: Data) -> dict[str, Any]:
    """Return samples of the training split and, if it has records, of the validation split."""
    wanted = [split for split in ("train", "validation") if data.splits.get(split)]
    if "train" not in wanted:
        raise BadInput("there are no records to train on; see data.split")
    found = {split: project.samples(data.store, data.used(split), split) for split in wanted}
    if data.store.device:
        refuse_differing_fields(found)
    return found


def steps_per_epoch(train: TrainConfig, data: Data, ranks: int) -> int:
    length = len(data.samples["train"])
    return epoch_length(length, train.batch_size, ranks, train.steps_per_epoch, _drop_last(train, data, ranks))[0]


def _drop_last(train: TrainConfig, data: Data, ranks: int) -> bool:
    """Return True if an incomplete last batch is dropped.

    With several processes it would not have the same weight in each, so it is refused even as the only batch.
    """
    return ranks > 1 or len(data.samples["train"]) >= train.batch_size


def loaders(setup: Setup, data: Data, block: int) -> Loaders:
    """Return the loaders of `data.samples`; `block` batches go to the device at once."""
    config, project = setup.config, setup.project
    common: dict[str, Any] = {
        "seed": config.train.seed,
        "block": block,
        "pin": setup.engine.pin,
        "prefetch": config.train.prefetch,
        "allocate": setup.engine.allocate,
    }
    augment: Callable[..., None] | None = None
    if overrides(project, "augment"):
        augment = project.augment
        if data.store.device:
            raise BadInput(
                f"{setup.name} augments samples on the host, where cache.mode device has none: set cache.mode memmap"
            )
    training = Loader(
        data.samples["train"],
        batch_size=config.train.batch_size,
        steps_per_epoch=config.train.steps_per_epoch,
        shuffle=True,
        drop_last=_drop_last(config.train, data, setup.team.count),
        epochs=config.train.epochs,
        rank=setup.team.number,
        ranks=setup.team.count,
        workers=config.train.workers,
        augment=augment,
        **common,
    )
    if "validation" not in data.samples:
        return Loaders(training, None)
    try:
        workers = min(1, config.train.workers)  # it is not augmented, and a second full set would cost memory
        size = config.validate.batch_size or config.train.batch_size
        common |= {"setting": "validate.batch_size"} if config.validate.batch_size else {}
        validation = Loader(data.samples["validation"], batch_size=size, shuffle=False, workers=workers, **common)
        return Loaders(training, validation)
    except RunnerError:
        training.close()
        raise
