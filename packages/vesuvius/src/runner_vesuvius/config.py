"""Settings of vesuvius and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

from runner_core.config import DataConfig, RunConfig


@dataclass
class ScrollDataConfig(DataConfig):
    patch: tuple[int, int, int] = (72, 136, 136)
    """Voxels (depth, height, width) that the network sees at once."""
    patches: int = 6
    """Training patches an epoch takes from each volume (with train.steps_per_epoch: as many as the steps need)."""
    validation_patches: int = 4
    """Patches of each validation volume, at places that never change."""
    surface_share: float = 0.67
    """Share of the patches around a surface voxel; the others are around any voxel that is labelled."""
    tube: int = 1
    """Voxels by which the medial surface is widened to the tube that skeleton recall looks for."""


@dataclass
class ModelConfig:
    base: int = 40
    """Channels of the first level."""
    multipliers: tuple[int, ...] = (1, 2, 2, 4, 4)
    """Channels of each level, as multiples of `base`, two levels or more; the bottleneck below has twice the last."""
    blocks: int = 3
    """Residual blocks a level."""
    deep_supervision: bool = True
    """Coarser levels answer too, with weights 1/2, 1/4, …; the finest answer is the prediction."""
    checkpointing: bool = False
    """Compute the levels again for the gradient instead of keeping them: less memory, about a third more time."""


@dataclass
class TermConfig:
    """How much a loss counts."""

    weight: float = 0.0
    """Its weight; 0: it is not computed."""
    begin: float = 0.0
    """Share of the training after which it begins to count."""
    full: float = 0.0
    """Share of the training at which it has its full weight; in between, the weight rises linearly."""

    def weight_at(self, fraction: float) -> float:
        """Its weight after this share of the training: 0 up to `begin`, rising to its full at `full`."""
        if fraction < self.begin:
            return 0.0
        if fraction >= self.full:
            return self.weight
        return self.weight * (fraction - self.begin) / (self.full - self.begin)


@dataclass
class LossConfig:
    bce: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Cross-entropy, surface voxels weighted by `positive`."""
    dice: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Soft Dice."""
    skeleton_recall: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Share of the tube around the medial surface that is found (Kirchhoff 2024)."""
    cldice: TermConfig = field(default_factory=TermConfig)
    """Soft clDice (Shit 2021); slow on a CPU."""
    boundary: TermConfig = field(default_factory=TermConfig)
    """Mean of probability times signed distance to the surface (Kervadec 2019)."""
    surface_distance: TermConfig = field(default_factory=TermConfig)
    """Mean of probability times distance to the surface, up to `tau`."""
    topology: TermConfig = field(default_factory=TermConfig)
    """Betti matching of persistent homology (Stucki 2023) on a crop, every `topology_every` steps. A weight of 0.01
    pulls about as hard as the cross-entropy does; early predictions have no topology to speak of: begin at 0.3."""
    positive: float = 1.0
    """Weight of surface voxels in the cross-entropy; 2 marked the whole papyrus in trials, not only its surface."""
    cldice_iterations: int = 3
    """Erosions of clDice's soft skeleton."""
    cldice_skeleton: Literal["shifts", "pools"] = "shifts"
    """How clDice finds skeletons. shifts: that of the prediction by shifts of whole volumes, that of the truth from the
    cache. pools: both by PyTorch's max-pools at every step, as in the paper's code; many times slower, to compare."""
    targets: Literal["cached", "step"] = "cached"
    """Where losses have distances, medial surface and tube from. step: of each patch, by SciPy and thinning, in every
    step: slower, and they know nothing beyond the patch; to compare with."""
    tau: float = 5.0
    """Distance (voxels) from which on surface_distance no longer grows; at most 15."""
    topology_every: int = 50
    """Steps between two computations of the topology loss."""
    topology_crop: int = 48
    """Side (voxels) of the crop that the topology loss looks at; at most the patch's."""
    measure_every: int = 50
    """Steps between two measurements of what each loss costs and how hard it pulls (log.jsonl, event losses)."""

    def terms(self) -> dict[str, TermConfig]:
        """The losses by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, TermConfig)}


@dataclass
class AugmentConfig:
    """Training only, on the device. 0 switches a part off."""

    flip: bool = True
    """Mirror half of the patches along each axis."""
    rotate90: bool = True
    """Turn patches by multiples of 90° in planes whose sides are equal."""
    brightness: float = 0.1
    """Standard deviation of an offset, in units of the intensities' standard deviation."""
    contrast: float = 0.15
    """Standard deviation of the logarithm of a factor on the contrast."""
    gamma: float = 0.2
    """Standard deviation of the logarithm of an exponent on the intensities."""
    noise: float = 0.1
    """Largest standard deviation of noise, in units of the intensities' standard deviation."""
    blur: float = 0.2
    """Share of the patches that are blurred."""
    affine: float = 0.2
    """Share of the patches that are rotated and scaled."""
    rotate: float = 15.0
    """Largest rotation about each axis (degrees)."""
    scale: float = 0.15
    """Largest logarithm of the size factor."""
    elastic: float = 0.1
    """Share of the patches that are warped."""
    elastic_voxels: float = 3.0
    """Standard deviation of the warp (voxels)."""


@dataclass
class PredictConfig:
    threshold: float = 0.5
    """Probability from which on a voxel is surface."""
    seed_threshold: float = 0.5
    """Components without a voxel of this probability are dropped (hysteresis); at most `threshold`: none is."""
    overlap: float = 0.5
    """Share of its side by which a window overlaps the next; overlaps are blended with a Gaussian."""
    min_size: int = 100
    """Components of fewer voxels are removed (26-connected)."""
    fill_holes: int = 1000
    """Cavities of at most so many voxels are filled."""


@dataclass
class ScrollConfig(RunConfig):
    """Surface detection in scroll CT."""

    data: ScrollDataConfig = field(default_factory=ScrollDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)


def default() -> ScrollConfig:
    """33.67 M parameters on patches of 72 × 136 × 136, two at once: for a GPU of 24 GB."""
    config = ScrollConfig()
    config.train.epochs = 32
    config.train.steps_per_epoch = 2000
    config.train.batch_size = 2
    config.train.workers = 4
    config.train.learning_rate = 1e-3
    config.train.weight_decay = 1e-2
    config.train.clip = 1.0
    config.train.ema = 0.999
    config.checkpoint.every_steps = 500
    return config


def large() -> ScrollConfig:
    """As default, on patches of 192³ with gradient checkpointing: for a GPU of 80 GB."""
    config = default()
    config.data.patch = (192, 192, 192)
    config.model.checkpointing = True
    return config


def small() -> ScrollConfig:
    """Own volumes on a laptop's CPU: 2.28 M parameters on patches of 48³, 10,000 steps. Sensible values, not tuned on
    real scrolls."""
    config = ScrollConfig()
    config.data.patch = (48, 48, 48)
    config.model.base, config.model.multipliers, config.model.blocks = 16, (1, 2, 4), 2
    config.train.epochs = 40
    config.train.steps_per_epoch = 250
    config.train.batch_size = 4
    config.train.learning_rate = 2e-3
    config.train.weight_decay = 1e-2
    config.train.clip = 1.0
    config.train.ema = 0.99
    config.train.channels_last = "on"
    return config


def demo() -> ScrollConfig:
    """The phantom in less than two minutes: a small network on patches of 32³."""
    config = ScrollConfig()
    # More of a small patch around a labelled voxel is labelled: eight of them taught more than two of 48³.
    config.data.patch = (32, 32, 32)
    config.data.patches = 32
    config.model.base, config.model.multipliers, config.model.blocks = 8, (1, 2, 4), 1
    config.loss.topology_crop = 32
    config.train.batch_size = 8
    config.train.epochs = 16
    config.train.learning_rate = 5e-3
    config.train.clip = 1.0
    config.train.ema = 0.97
    config.train.channels_last = "on"
    config.log.every = 14
    return config


PRESETS: dict[str, Callable[[], ScrollConfig]] = {"default": default, "large": large, "small": small, "demo": demo}
