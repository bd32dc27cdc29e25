"""What the settings ask for, and what is known of data, network and machine: all that a plan follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner_core.config import RunConfig
from runner_core.memory.footprint import Footprint


@dataclass(frozen=True)
class Asked:
    """Settings that decide how much memory a training takes, and that a refusal may name."""

    batch_size: int
    accumulate: int
    prefetch: int
    workers: int
    cache: str
    """The mode that `cache.mode` came to."""
    keep: int
    validation_batch: int | None

    @staticmethod
    def of(config: RunConfig, cache: str) -> Asked:
        train = config.train
        return Asked(
            batch_size=train.batch_size,
            accumulate=max(1, train.accumulate),
            prefetch=train.prefetch,
            workers=train.workers,
            cache=cache,
            keep=max(1, config.checkpoint.keep),
            validation_batch=config.validate.batch_size,
        )

    @property
    def micro(self) -> int:
        """Samples of a micro-batch."""
        return -(-self.batch_size // self.accumulate)

    def but(self, **changed: int | str) -> Asked:
        return replace(self, **changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Facts:
    """Bytes, and whatever else no setting changes."""

    sample: int
    """One training sample in a batch."""
    validation_sample: int
    """One of validation; 0: nothing validates."""
    plain: int
    """All prepared arrays, as they are."""
    to_cache: int
    """What is still to be written into the cache."""
    program: int
    """What this process holds already, of which `counted` are parts that have rows of their own."""
    counted: int
    block: int
    """Batches that go to the device at once."""
    processes: int
    """That train together on this machine."""
    footprint: Footprint | None
    """None: the network is not looked at."""
    on_gpu: bool
    kept: int
    """Checkpoints that are there already."""
    has: Mapping[str, int] = field(default_factory=dict)
    """What the machine has, by place; what this process holds of it already counts as free."""
