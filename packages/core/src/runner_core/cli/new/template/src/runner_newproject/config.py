"""Classes and settings. What stands under a field is its help text."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from runner_core import DataConfig, RunConfig, TrainConfig

# change this: your classes, and the grey value that each has in a mask
CLASSES = {"background": 0, "object": 255}


@dataclass
class PatchConfig(DataConfig):
    patch: int = 128
    """Side of the squares that the network trains on (pixels, a multiple of 4)."""
    depth: int = 16
    """Pages of the blocks that the network trains on, if the images are volumes (a multiple of 4)."""


@dataclass
class ModelConfig:
    width: int = 16
    """Channels of the network's first level; each further level has twice as many."""


@dataclass
class Settings(RunConfig):
    data: PatchConfig = field(default_factory=PatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=50, steps_per_epoch=100, batch_size=16))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with settings together, or with one that bounds at its field cannot describe."""
        for name, side in {"patch": self.data.patch, "depth": self.data.depth}.items():
            if side < 4 or side % 4:
                yield f"data.{name} is {side}; the network halves it twice: choose a multiple of 4"


def demo() -> Settings:
    """Small enough for a minute on two cores."""
    train = TrainConfig(epochs=8, steps_per_epoch=25, batch_size=8, learning_rate=1e-2)
    return Settings(data=PatchConfig(patch=64), model=ModelConfig(width=8), train=train)
