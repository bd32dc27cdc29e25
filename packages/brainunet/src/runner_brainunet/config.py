"""Settings of brainunet and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from runner_core import AtLeast, Between, LogConfig, MoreThan, PairsConfig, PredictConfig, RunConfig, Within

View = Literal["axial", "coronal", "sagittal"]


@dataclass
class BrainDataConfig(PairsConfig):
    spacing: Annotated[float, MoreThan(0)] = 1.0
    """Isotropic voxel size (mm) of the network; every scan is resampled to it."""
    size: int = 256
    """Side of the square slices (voxels). Smaller slices are padded, larger heads are cut; spacing × size should cover
    a head: 230 mm or more."""
    views: tuple[View, ...] = ("axial",)
    """Slice directions. The network learns from all of them, and prediction takes their mean."""
    neighbours: int = 1
    """Slices that the network sees at once (1, 3 or 5); it segments the middle one."""


@dataclass
class ModelConfig:
    features: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Channels per level of the U-Net, the last one at the bottom."""
    norm: Literal["batch", "instance", "group"] = "batch"
    """Normalisation after each convolution."""


@dataclass
class LossConfig:
    bce: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the binary cross-entropy."""
    dice: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the soft Dice loss."""
    dice_over: Literal["batch", "sample"] = "batch"
    """batch: one Dice over all voxels of a batch; slices with little brain have little weight. sample: the mean of each
    slice's Dice. train.accumulate above 1 needs sample, and model.norm instance or group; only then do micro-batches
    learn the same as the whole batch."""


@dataclass
class AugmentConfig:
    """Augmentation of the training. Ranges are symmetric, or go from 0 to the given number; 0 switches a part off."""

    probability: Annotated[float, Within(0, 1)] = 0.9
    """Share of the samples that are changed at all, except for flips."""
    flip: bool = True
    """Mirror left and right in half of the samples."""
    rotate: Annotated[float, Within(0, 180)] = 20.0
    """Rotation (degrees)."""
    scale: Annotated[float, Within(0, 1)] = 0.25
    """Largest logarithm of the size factor."""
    stretch: Annotated[float, Within(0, 1)] = 0.12
    """Largest logarithm of the ratio of the two axes' scales."""
    shear: Annotated[float, Within(0, 1)] = 0.1
    """Shear."""
    shift: Annotated[float, Within(0, 1)] = 0.15
    """Translation as a share of the slice."""
    elastic: Annotated[float, Within(0, 1)] = 0.015
    """Standard deviation of the smooth displacement, as a share of the slice."""
    contrast: Annotated[float, AtLeast(0)] = 0.7
    """Logarithmic spread of the slopes of a random rising intensity curve (0: the identity)."""
    gamma: Annotated[float, AtLeast(0)] = 0.5
    """Largest logarithm of the exponent of a power law on the intensities."""
    surround: Annotated[float, AtLeast(0)] = 0.6
    """Logarithmic spread of the brightness outside the brain (fat, muscle, bone), relative to the brain."""
    bias: Annotated[float, AtLeast(0)] = 0.3
    """Standard deviation of the logarithm of a smooth multiplicative field."""
    gain: Annotated[float, AtLeast(0)] = 0.35
    """Largest logarithm of the factor on all intensities. Values above 1 are cut, as in prepared scans."""
    noise: Annotated[float, Within(0, 1)] = 0.08
    """Largest Rician noise, as a share of the intensity range."""
    blur: Annotated[float, AtLeast(0)] = 1.5
    """Largest standard deviation (voxels) of the blur along each axis: thick slices, low resolution."""
    crop: Annotated[float, Within(0, 1)] = 0.3
    """Share of the samples in which a side lies outside the field of view."""
    decoy: Annotated[float, Within(0, 1)] = 0.15
    """Share of the samples in which random shapes, labelled as not brain, replace the brain or fill the air."""
    synthetic: Annotated[float, Within(0, 1)] = 0.0
    """Share of the samples that are synthetic: random contrasts (like T1, T2, FLAIR and PD, and arbitrary ones) painted
    onto a training slice's clusters of intensity, with structures added or removed around the brain, and motion."""


@dataclass
class BrainLogConfig(LogConfig):
    batch_dice: bool = False
    """Also log the Dice of batches at predict.threshold: in training of the augmented slices, the mean since the last
    line of the log, and in validation. volume_dice, of whole heads, is logged anyway, of validation only."""


@dataclass
class BrainPredictConfig(PredictConfig):
    views: tuple[str, ...] = ("left-right",)
    """Average with predictions of other views of the head. left-right: the mirrored head, which takes twice the time.
    none: the head alone."""
    fill_holes: bool = True
    """Fill holes inside the mask."""
    threshold: Annotated[float, Between(0, 1)] = 0.5
    """Voxels with a higher probability are brain, in prediction and in validation metrics."""
    margin: Annotated[float, Within(-50, 50)] = 0.0
    """Margin (mm) around the brain in the mask, from distances in true spacing; a negative one shrinks the mask."""


@dataclass
class BrainConfig(RunConfig):
    """Skull stripping of T1 scans."""

    data: BrainDataConfig = field(default_factory=BrainDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: BrainPredictConfig = field(default_factory=BrainPredictConfig)
    log: BrainLogConfig = field(default_factory=BrainLogConfig)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with settings together; the bounds of each one stand at its field."""
        from runner_brainunet import slices

        data = self.data
        if wrong := slices.check_size(data.size, data.views, len(self.model.features)):
            yield wrong
        if data.neighbours not in (1, 3, 5):
            yield f"data.neighbours is {data.neighbours}; 1, 3 or 5 slices can be seen at once"
        if (why := undivided(self)) and (count := self.train.accumulate) > 1:
            yield f"train.accumulate is {count}, but micro-batches would learn something else: {why}"


def default() -> BrainConfig:
    """Train on NFBS at 1 mm: axial slices of 256² and a U-Net of 7.76 M parameters, for a GPU."""
    config = BrainConfig()
    config.train.channels_last = "on"  # measured on an H100: 1.7 times faster
    return config


def light() -> BrainConfig:
    """Train like default, without the 512-channel level: 1.93 M parameters."""
    config = default()
    config.model.features = (32, 64, 128, 256)
    return config


def small() -> BrainConfig:
    """Train in minutes on two CPU cores, for any head: 2 mm, 128² slices of three views, 121 k parameters."""
    config = BrainConfig()
    config.data.spacing, config.data.size = 2.0, 128
    config.data.views = ("axial", "coronal", "sagittal")
    config.data.neighbours = 3
    config.model.features = (8, 16, 32, 64)
    config.train.batch_size = 16
    config.train.channels_last = "on"  # measured: 1.5 times faster on a CPU
    config.train.learning_rate = 3e-3
    config.train.epochs, config.train.steps_per_epoch = 24, 100
    config.validate.every, config.checkpoint.every = 4, 4
    # Strong augmentation blurs borders, and the Dice loss then counts doubtful voxels as brain. On the training scans,
    # masks were 9 % too large at a threshold of 0.5 and 2 % at 0.8.
    config.predict.threshold = 0.75
    return config


def demo() -> BrainConfig:
    """Train on the phantom in about a minute: the preset small, with mild augmentation."""
    config = small()
    config.augment = AugmentConfig(
        rotate=10, scale=0.12, stretch=0.06, shear=0.05, shift=0.05, contrast=0.3, gamma=0.2, surround=0.2, bias=0.15,
        noise=0.03, blur=0.5, crop=0.0, decoy=0.0,
    )  # fmt: skip
    config.predict.threshold = 0.5
    config.data.validation_fraction = 0.3
    config.train.learning_rate = 5e-3
    config.train.epochs, config.train.steps_per_epoch = 6, 35
    config.validate.every, config.checkpoint.every = 3, 3
    config.log.every = 10
    return config


PRESETS: dict[str, Callable[[], BrainConfig]] = {
    "default": default,
    "small": small,
    "light": light,
    "demo": demo,
}


def undivided(config: BrainConfig) -> str:
    """Return why micro-batches would learn something else than the whole batch and what to set, or ""."""
    reasons = []
    if config.model.norm == "batch":
        reasons.append("batch normalisation takes its mean over the batch (set model.norm instance or group)")
    if config.loss.dice and config.loss.dice_over == "batch":
        reasons.append("the Dice loss is one over the batch (set loss.dice_over sample)")
    return ", and ".join(reasons)
