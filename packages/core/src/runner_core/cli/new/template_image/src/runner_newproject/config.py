"""Settings. What stands under a field is its help text."""

from dataclasses import dataclass, field
from typing import Annotated

from runner_core import AtLeast, DataConfig, RunConfig, TrainConfig


@dataclass
class ImageConfig(DataConfig):
    side: Annotated[int, AtLeast(16)] = 128
    """Pixels along each axis to which every image is resized."""


@dataclass
class ModelConfig:
    width: Annotated[int, AtLeast(1)] = 32
    """Channels of the network's first level; each further level has twice as many."""


@dataclass
class Settings(RunConfig):
    data: ImageConfig = field(default_factory=ImageConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=50, steps_per_epoch=100, batch_size=16))


def demo() -> Settings:
    """Small enough for a minute on two cores."""
    train = TrainConfig(epochs=8, steps_per_epoch=25, batch_size=16, learning_rate=3e-3)
    return Settings(data=ImageConfig(side=32), model=ModelConfig(width=8), train=train)
