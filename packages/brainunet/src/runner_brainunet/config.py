"""Settings of brainunet and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from runner_core.config import DataConfig, RunConfig

View = Literal["axial", "coronal", "sagittal"]


@dataclass
class BrainDataConfig(DataConfig):
    spacing: float = 1.0
    """Isotropic voxel size (mm) at which the network works; every scan is resampled to it."""
    size: int = 256
    """Side of the square slices (voxels): smaller slices are padded, larger heads cut. spacing × size should
    hold a head: 230 mm or more."""
    views: tuple[View, ...] = ("axial",)
    """Slice directions that the network learns and that prediction fuses by their mean."""
    neighbours: int = 1
    """Slices the network sees at once (1, 3 or 5); the middle one is segmented."""


@dataclass
class ModelConfig:
    features: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Channels per level of the U-Net, the last one at the bottom."""
    norm: Literal["batch", "instance", "group"] = "batch"
    """Normalisation after each convolution."""


@dataclass
class LossConfig:
    bce: float = 1.0
    """Weight of the binary cross-entropy."""
    dice: float = 1.0
    """Weight of the soft Dice loss over the batch."""


@dataclass
class AugmentConfig:
    """Training only. Ranges are symmetric or up to the number given; 0 switches a part off."""

    probability: float = 0.9
    """Share of the samples that are changed at all (flips apart)."""
    flip: bool = True
    """Mirror left and right in half of the samples."""
    rotate: float = 20.0
    """Degrees."""
    scale: float = 0.25
    """Logarithm of the size factor."""
    stretch: float = 0.12
    """Logarithm of the factor by which one axis differs from the other."""
    shear: float = 0.1
    """Shear."""
    shift: float = 0.15
    """Translation as a share of the slice."""
    elastic: float = 0.015
    """Standard deviation of the smooth displacement, as a share of the slice."""
    contrast: float = 0.7
    """Logarithmic spread of the slopes of a random rising intensity curve (0: the identity)."""
    gamma: float = 0.5
    """Largest logarithm of the exponent of a power law on the intensities."""
    surround: float = 0.6
    """Logarithmic spread of how bright everything outside the brain is against the brain (fat, muscle, bone)."""
    bias: float = 0.3
    """Standard deviation of the logarithm of a smooth multiplicative field."""
    gain: float = 0.35
    """Logarithm of the factor on all intensities, cut at the top as prepared scans are."""
    noise: float = 0.08
    """Largest Rician noise, as a share of the intensity range."""
    blur: float = 1.5
    """Largest standard deviation (voxels) of the blur along each axis: thick slices, low resolution."""
    crop: float = 0.3
    """Share of the samples of which a side lies outside the field of view."""
    decoy: float = 0.15
    """Share of the samples in which random shapes stand in for the brain or fill the air: not brain."""


@dataclass
class PredictConfig:
    flip: bool = True
    """Average with the prediction of the mirrored head; takes twice the time."""
    fill_holes: bool = True
    """Fill holes inside the mask."""
    threshold: float = 0.5
    """Brain is where the probability exceeds this, in prediction and in the validation metrics."""


@dataclass
class BrainConfig(RunConfig):
    """Skull stripping of T1 scans."""

    data: BrainDataConfig = field(default_factory=BrainDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)


def default() -> BrainConfig:
    """NFBS at 1 mm: axial slices of 256², a U-Net of 7.76 M parameters; for a GPU."""
    return BrainConfig()


def light() -> BrainConfig:
    """As default, without the 512-channel level: 1.93 M parameters."""
    config = BrainConfig()
    config.model.features = (32, 64, 128, 256)
    return config


def small() -> BrainConfig:
    """2 mm, 128² slices of all three views, 121 k parameters: minutes on two CPU cores, any head."""
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
    # Strong augmentation blurs borders, and the Dice loss then counts the doubtful voxels in: at 0.5 masks were 9 %
    # too large on the very scans that were trained on, at 0.8 2 %.
    config.predict.threshold = 0.75
    return config


def demo() -> BrainConfig:
    """The phantom in about a minute: small, with mild augmentation."""
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
