"""Settings of ssmunet and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner_core.config import DataConfig, RunConfig

TISSUES = ("epithelium", "tumour", "stroma", "muscle", "lymphocytes", "blood", "necrosis", "mucin")
"""The tissue classes of the phantom: labels 1 to 8."""


@dataclass
class SpectraConfig(DataConfig):
    classes: tuple[str, ...] = TISSUES
    """Names of the classes, in the order of their labels 1, 2, …"""
    ignore: int | None = 0
    """The label of pixels that nobody annotated: left out of loss, class weights, statistics of labels and metrics.
    None: no label is left out, and unannotated pixels are learned as a class of their own (a health rule objects)."""
    group_by: Literal["patient", "slide", "core"] = "patient"
    """What a split never cuts. A core whose meta does not name it is refused."""
    low: float = 900.0
    """Lowest wavenumber kept (cm⁻¹)."""
    high: float = 1800.0
    """Highest wavenumber kept (cm⁻¹)."""
    gap: tuple[float, float] | None = (1350.0, 1490.0)
    """Wavenumbers left out because paraffin absorbs there (cm⁻¹); None: nothing is left out. No filter, bin or
    baseline ever runs across it."""
    bin: int = 1
    """Neighbouring wavenumbers that are averaged into one."""
    step: float | None = None
    """Resample every core onto one axis of this spacing (cm⁻¹), where instruments differ. Default: the cores' own axis,
    which must be the same for all."""
    baseline: Literal["none", "rubberband"] = "none"
    """Baseline taken off each spectrum. rubberband: the lower convex hull, one for each side of the gap."""
    derivative: Literal["none", "second"] = "none"
    """second: the negative second derivative of Savitzky and Golay in place of the spectrum."""
    window: int = 9
    """Points of the derivative's window (odd)."""
    normalise: Literal["vector", "amide1", "none"] = "vector"
    """vector: each spectrum to the same length (L2); amide1: to the same area from 1600 to 1700 cm⁻¹."""
    tissue: Literal["auto", "file", "amide1"] = "auto"
    """Which pixels are tissue. file: the mask of the file; amide1: logarithm of the amide-I band's area above Otsu's
    threshold; auto: the file's mask where it has one, else amide1."""
    patch: int = 128
    """Side of the square patches (pixels) that the network sees at once; a multiple of 16."""
    overlap: float = 0.0
    """Share of its side by which a training patch overlaps the next."""
    unlabelled: bool = False
    """Also train on patches without any annotated pixel. They teach the network nothing but take as long."""


@dataclass
class ModelConfig:
    filters: int = 24
    """Spectral filters, at named bands first (1655, 1545, 1740, 1240, 1080, 1450, 1395, 1160 cm⁻¹)."""
    mode: Literal["band", "legacy"] = "band"
    """band: learnable windows on the wavenumber axis; legacy: convolutions with band-pass kernels (SincNet), which
    answer to a shape wherever on the axis it lies."""
    width: float = 80.0
    """Width of each filter at the beginning (cm⁻¹)."""
    layers: int = 2
    """Mamba layers along the wavenumbers; 0: the filters alone."""
    states: int = 16
    """States of each Mamba channel."""
    dropout: float = 0.1
    """Dropout after each Mamba layer."""
    embed: int = 24
    """Channels that enter the U-Net."""
    base: int = 24
    """Channels of the U-Net's first level; each of the four below has twice as many."""
    chunk: int | None = None
    """Pixels that pass the spectral layers at once; all but their pooled features is computed again for the gradient,
    which bounds the memory. Default: as many as suit the device; 0: everything at once, everything kept."""
    tissue_only: bool = True
    """Only tissue passes the spectral layers; what is not tissue is one spectrum, computed once. Exact."""
    scan: Literal["auto", "eager", "reference"] = "auto"
    """How the Mamba layers are computed: auto by the fastest kernel of the device; eager in plain PyTorch, which needs
    no compiler; reference as textbooks have it, state by state, all kept: hundreds of times slower, to compare with."""
    features: Path | None = None
    """Folder of an exported network (`runner ssmunet export`): its spectral layers are frozen, their features of each
    pixel are cached in place of its spectrum, and only the U-Net is trained."""


@dataclass
class LossConfig:
    cross_entropy: float = 1.0
    """Weight of the cross-entropy."""
    dice: float = 1.0
    """Weight of the soft Dice loss, over the classes that a batch has annotated pixels of."""
    class_weights: Literal["balanced", "none"] = "balanced"
    """balanced: a class weighs in the cross-entropy as if all had as many annotated pixels."""


@dataclass
class AugmentConfig:
    """Training only, on the device. 0 switches a part off."""

    flip: bool = True
    """Mirror half of the patches along each axis."""
    rotate90: bool = True
    """Turn patches by multiples of 90°."""
    scale: float = 0.02
    """Standard deviation of a factor on each pixel's spectrum."""
    tilt: float = 0.05
    """Standard deviation of a straight line over the spectrum, one a patch, in units of the z-scored channels."""
    noise: float = 0.02
    """Standard deviation of the noise on each pixel and channel, in units of the z-scored channels."""


@dataclass
class PredictConfig:
    overlap: float = 0.5
    """Share of its side by which a patch overlaps the next; overlaps are blended with a smooth window."""


@dataclass
class SSMConfig(RunConfig):
    """Tissue segmentation of infrared images."""

    data: SpectraConfig = field(default_factory=SpectraConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)


def default() -> SSMConfig:
    """24 filters, patches of 128², every wavenumber: 4.39 M parameters; for a GPU."""
    config = SSMConfig()
    config.train.batch_size = 4
    config.train.workers = 4
    return config


def ssmunet_3() -> SSMConfig:
    """As default, with three filters: amide I, amide II and the lipid ester band."""
    config = default()
    config.model.filters = 3
    return config


def small() -> SSMConfig:
    """For a CPU: spectrum averaged by 3, 16 filters, one Mamba layer, a smaller U-Net on patches of 64²."""
    config = SSMConfig()
    config.data.bin, config.data.patch = 3, 64
    config.model.filters, config.model.layers, config.model.states = 16, 1, 8
    config.model.dropout = 0.0  # without it, threads share the pixels
    config.model.embed, config.model.base = 16, 16
    config.train.batch_size = 4
    config.train.learning_rate = 5e-3
    config.train.epochs = 40
    config.validate.every, config.checkpoint.every = 5, 5
    return config


def demo() -> SSMConfig:
    """The phantom in about a minute: small, on patches as large as its cores."""
    config = small()
    config.data.patch = 48
    config.data.validation_fraction = 0.3
    config.model.width = 40.0  # as wide as the phantom's bands
    # Fourteen cores are soon known by heart: without noise and decay the training loss fell twice as far, mIoU not.
    config.augment.tilt, config.augment.noise = 0.2, 0.3
    config.train.weight_decay = 0.1
    config.train.batch_size = 2
    config.train.learning_rate = 1e-2
    config.train.epochs = 25
    config.checkpoint.every = 25
    config.log.every = 7
    return config


PRESETS: dict[str, Callable[[], SSMConfig]] = {"default": default, "ssmunet-3": ssmunet_3, "small": small, "demo": demo}
