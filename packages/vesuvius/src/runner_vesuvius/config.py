"""Settings and presets. No framework is imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from runner_core import AboveUpTo, AtLeast, Between, PairsConfig, PredictConfig, RunConfig, ShareBelow, Within

LARGEST_TAU = 15
"""Voxels; the cache keeps squared distances in one byte."""


@dataclass
class ScrollDataConfig(PairsConfig):
    patch: Annotated[tuple[int, int, int], AtLeast(16)] = (72, 136, 136)
    """Voxels (depth, height, width) that the network sees at once."""
    patches: Annotated[int, Within(1, 100_000)] = 6
    """Training patches per volume and epoch (with train.steps_per_epoch: as many as the steps need)."""
    validation_patches: Annotated[int, Within(1, 100_000)] = 4
    """Patches of each validation volume, at places that never change."""
    surface_share: Annotated[float, Within(0, 1)] = 0.67
    """Share of the patches around a surface voxel; the others are around any labelled voxel."""
    first_stage: Path | None = None
    """Folder of a first stage's probabilities, which `runner vesuvius first-stage` writes: the network sees them beside
    the image, as a mask. Default: none, the network sees the image alone."""
    normalise: Literal["set", "scroll", "volume", "fixed"] = "set"
    """Voxels whose intensities are scaled to mean 0 and standard deviation 1. set: the annotated voxels of all training
    volumes. scroll: all voxels of the scroll's training volumes; a scroll that was not trained on is scaled volume by
    volume. volume: all voxels of each volume. In the last two, voxels of value 0 do not count: nothing was scanned.
    fixed: none; `intensities` gives the scale."""
    intensities: tuple[float, ...] = ()
    """With `normalise` fixed: intensities are clipped to the first two numbers, then the third is subtracted, and the
    rest divided by the fourth (nnU-Net's CT normalisation)."""
    tube: Annotated[int, Within(0, 16)] = 0
    """Voxels by which the medial surface is widened to the tube, the target of skeleton recall. 0 keeps the medial
    surface itself. 1 covers nearly the whole of a sheet of 2 to 3 voxels, and skeleton recall then is plain recall."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_stage is not None:  # a run may be used from another folder
            self.first_stage = Path(self.first_stage).expanduser().absolute()


@dataclass
class ResEncConfig:
    """nnU-Net's residual-encoder U-Net; the defaults are those of its ResEnc plans M, L and XL."""

    features: Annotated[tuple[int, ...], Within(1, 4096)] = (32, 64, 128, 256, 320, 320)
    """Channels of each level."""
    blocks: Annotated[tuple[int, ...], Within(1, 64)] = (1, 3, 4, 6, 6, 6)
    """Residual blocks of each level."""
    halvings: Annotated[tuple[int, int, int], AtLeast(0)] = (5, 5, 5)
    """How often depth, height and width are halved: once for each level below the first, or fewer times."""


@dataclass
class ModelConfig:
    architecture: Literal["unet", "resenc"] = "unet"
    """The network. unet: the one that `base`, `multipliers` and `blocks` describe. resenc: nnU-Net's residual-encoder
    U-Net, which `resenc` describes."""
    base: Annotated[int, Within(1, 1024)] = 40
    """Channels of the first level."""
    multipliers: Annotated[tuple[int, ...], AtLeast(1)] = (1, 2, 2, 4, 4)
    """Channels of each of at least two levels, as multiples of `base`; the bottleneck below has twice as many as the
    last."""
    blocks: Annotated[int, Within(1, 64)] = 3
    """Residual blocks per level."""
    deep_supervision: bool = True
    """Train the coarser levels to answer too, with weights 1/2, 1/4, …; the finest answer is the prediction."""
    checkpointing: bool = False
    """Compute the levels again for the gradient instead of keeping them: less memory, about a third more time."""
    resenc: ResEncConfig = field(default_factory=ResEncConfig)

    def arguments(self, channels: int = 1) -> tuple[str, dict[str, Any]]:
        """Return the name of the network's class, in `network`, and the arguments that make it for `channels`."""
        shared: dict[str, Any] = {"deep_supervision": self.deep_supervision, "checkpointing": self.checkpointing}
        shared["channels"] = channels
        if self.architecture == "resenc":
            return "ResEncUNet", {**asdict(self.resenc), **shared}
        return "SurfaceUNet", {"base": self.base, "multipliers": self.multipliers, "blocks": self.blocks, **shared}

    @property
    def halvings(self) -> tuple[int, int, int]:
        """Number of times that depth, height and width are halved."""
        if self.architecture == "resenc":
            return self.resenc.halvings
        return (len(self.multipliers) - 1,) * 3


@dataclass
class TermConfig:
    """Weight of a loss over the training."""

    weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the loss; with 0 it is not computed."""
    begin: Annotated[float, Within(0, 1)] = 0.0
    """Share of the training after which the loss begins to count."""
    full: Annotated[float, Within(0, 1)] = 0.0
    """Share of the training at which the weight is full; it rises linearly from `begin`."""

    def weight_at(self, fraction: float) -> float:
        """Return the weight after this share of the training: 0 up to `begin`, rising to full at `full`."""
        if fraction < self.begin:
            return 0.0
        if fraction >= self.full:
            return self.weight
        return self.weight * (fraction - self.begin) / (self.full - self.begin)


@dataclass
class LossConfig:
    bce: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Cross-entropy; surface voxels are weighted by `positive`."""
    dice: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Soft Dice."""
    skeleton_recall: TermConfig = field(default_factory=lambda: TermConfig(1.0))
    """Share of the medial surface, widened by `data.tube`, that is found (Kirchhoff 2024)."""
    cldice: TermConfig = field(default_factory=TermConfig)
    """Soft clDice (Shit 2021); slow on a CPU."""
    boundary: TermConfig = field(default_factory=TermConfig)
    """Mean of probability times signed distance to the surface (Kervadec 2019)."""
    surface_distance: TermConfig = field(default_factory=TermConfig)
    """Mean of probability times distance to the surface, up to `tau`."""
    topology: TermConfig = field(default_factory=TermConfig)
    """Betti matching of persistent homology (Stucki 2023) on a crop, every `topology_every` steps. At a weight of 0.01
    its gradient is about as large as the cross-entropy's. Early predictions have hardly any topology, so begin at 0.3.
    """
    positive: Annotated[float, AtLeast(0)] = 1.0
    """Weight of surface voxels in the cross-entropy. In trials, 2 marked the whole papyrus and not only its surface."""
    cldice_iterations: Annotated[int, AtLeast(1)] = 3
    """Erosions of clDice's soft skeleton."""
    cldice_skeleton: Literal["shifts", "pools"] = "shifts"
    """How clDice finds skeletons. shifts: the prediction's by shifting whole volumes, the truth's from the cache.
    pools: both by PyTorch's max-pools in every step, as in the paper's code, which is many times slower and there to
    compare with."""
    targets: Literal["cached", "step"] = "cached"
    """Source of distances, medial surface and tube. cached: prepared once for the whole volume. step: computed for each
    patch in every step by SciPy and thinning; this is slower and ignores everything beyond the patch. It is there to
    compare with."""
    tau: Annotated[float, AboveUpTo(0, LARGEST_TAU)] = 5.0
    """Distance (voxels) beyond which surface_distance no longer grows; at most 15."""
    topology_every: Annotated[int, AtLeast(1)] = 50
    """Steps between two computations of the topology loss."""
    topology_crop: Annotated[int, AtLeast(4)] = 48
    """Side (voxels) of the crop for the topology loss; at most the patch's."""

    def terms(self) -> dict[str, TermConfig]:
        """Return the losses by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, TermConfig)}


@dataclass
class AugmentConfig:
    """Random changes of training patches on the device; 0 switches a change off.

    Shares and amounts are nnU-Net's, as far as they have the same meaning here. Three differ: brightness is added
    (nnU-Net multiplies by it), gamma does not restore the patch's mean and deviation (nnU-Net's does), and low
    resolution is interpolated linearly (nnU-Net: cubic splines).
    """

    flip: bool = True
    """Mirror half of the patches along each axis."""
    rotate90: bool = False
    """Turn patches by multiples of 90° about z, the scroll's axis, if their height and width are equal."""
    brightness: Annotated[float, AtLeast(0)] = 0.15
    """Standard deviation of an offset, in units of the intensities' standard deviation."""
    contrast: Annotated[float, AtLeast(0)] = 0.15
    """Standard deviation of the logarithm of a factor on the contrast."""
    gamma: Annotated[float, AtLeast(0)] = 0.22
    """Standard deviation of the logarithm of an exponent on the intensities."""
    gamma_inverted: Annotated[float, Within(0, 1)] = 0.25
    """Share of the patches whose exponent acts on the negative: on dark voxels rather than on bright ones."""
    noise: Annotated[float, AtLeast(0)] = 0.32
    """Largest standard deviation of noise, in units of the intensities' standard deviation."""
    brightness_share: Annotated[float, Within(0, 1)] = 0.15
    """Share of the patches whose brightness changes."""
    contrast_share: Annotated[float, Within(0, 1)] = 0.15
    """Share of the patches whose contrast changes."""
    gamma_share: Annotated[float, Within(0, 1)] = 0.4
    """Share of the patches that get an exponent."""
    noise_share: Annotated[float, Within(0, 1)] = 0.1
    """Share of the patches that get noise."""
    low_resolution: Annotated[float, Within(0, 1)] = 0.25
    """Share of the patches that are sampled with voxels up to twice as wide, and interpolated back."""
    blur: Annotated[float, Within(0, 1)] = 0.2
    """Share of the patches that are blurred."""
    affine: Annotated[float, Within(0, 1)] = 0.36
    """Share of the patches that are rotated and scaled."""
    rotate: Annotated[float, AtLeast(0)] = 30.0
    """Largest rotation about each axis (degrees)."""
    scale: Annotated[float, Within(0, 1)] = 0.34
    """Largest logarithm of the size factor."""
    elastic: Annotated[float, Within(0, 1)] = 0.0
    """Share of the patches that are warped."""
    first_threshold: tuple[float, float] = (0.1, 0.7)
    """data.first_stage: lowest and highest threshold that makes the probabilities a mask, drawn for each patch.
    Validation and prediction use the middle."""
    first_dropout: Annotated[float, Within(0, 1)] = 0.3
    """data.first_stage: largest share of blocks of 16³ voxels in which a patch's mask is empty."""
    elastic_voxels: Annotated[float, AtLeast(0)] = 3.0
    """Standard deviation of the warp (voxels)."""


@dataclass
class ScrollPredictConfig(PredictConfig):
    threshold: Annotated[float, Between(0, 1)] = 0.5
    """Voxels with at least this probability are surface."""
    seed_threshold: Annotated[float, ShareBelow(1)] = 0.5
    """Drop components without a voxel of this probability (hysteresis); at most `threshold`: none is dropped."""
    overlap: Annotated[float, Within(0, 0.9)] = 0.5
    """Share of its side by which a window overlaps the next; overlaps are blended with a Gaussian."""
    along_sheets: Annotated[float, Within(0, 8)] = 0.0
    """Before the threshold, average probabilities along the sheets over this many voxels (standard deviation): closes
    pinholes, cuts bridges, and rounds what is smaller. 0: off."""
    thickness: Annotated[float, Within(0, 16)] = 0.0
    """Draw sheets anew, so many voxels thick, around the crests of the probability across them: parts sheets that a
    threshold joins. 0: off, the threshold alone decides. Set it a little thicker than the labels are."""
    mend_faults: Annotated[float, AtLeast(0)] = 0.0
    """Apply `along_sheets` and `thickness` only to volumes that need them: where they remove at least so many pieces,
    loops and cavities per 1,000 voxels of surface. 0: to all volumes."""
    min_size: Annotated[int, AtLeast(0)] = 100
    """Remove components of fewer voxels (26-connected)."""
    fill_holes: Annotated[int, AtLeast(0)] = 1000
    """Fill cavities of at most this many voxels."""


@dataclass
class ScrollPredictOptions:
    probability: bool = False
    """Also write the probabilities, KEY_probability.tif: 0 to 255 for 0 to 1."""
    zip: bool = False
    """Also write submission.zip, which holds the masks, to hand in; `validate-submission` checks it."""
    chunked: bool = False
    """Predict zarr volumes chunk by chunk into OME-Zarr, KEY.zarr, whatever their size. Volumes at a URL, and those
    that memory cannot hold, are always predicted so, and all with --mask, --store or --ngff."""
    mask: str = ""
    """Chunk by chunk: predict only where this zarr volume is not 0. It has the scan's shape, or is coarser by whole
    factors. A folder or a URL."""
    store: str = ""
    """Chunk by chunk: write KEY.zarr into this folder or URL (s3://BUCKET/FOLDER) instead of --out. All parts of a
    prediction share it."""
    memory_gb: float = 4.0
    """Chunk by chunk: memory for the volume (GB = 1e9 bytes), beside the network's."""
    ngff: Literal["auto", "0.4", "0.5"] = "auto"
    """Chunk by chunk: version of the OME-Zarr that is written, 0.4 (zarr 2) or 0.5 (zarr 3). auto: zarr as the input's.
    """


@dataclass
class ScrollConfig(RunConfig):
    """Settings of surface detection in scroll CT."""

    data: ScrollDataConfig = field(default_factory=ScrollDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: ScrollPredictConfig = field(default_factory=ScrollPredictConfig)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with settings together; the bounds of each one stand at its field."""
        yield from _patches(self)
        yield from _intensities(self.data)
        yield from _losses(self.loss)
        yield from _crop(self)
        low, high = self.augment.first_threshold
        if not 0 <= low <= high <= 1:
            yield f"augment.first_threshold {low} {high} must be two shares, the lower one first"

    def without_effect(self) -> Iterator[str]:
        yield from super().without_effect()
        predict = self.predict
        if predict.mend_faults and not (predict.along_sheets or predict.thickness):
            yield f"predict.mend_faults {predict.mend_faults:g} has no effect: along_sheets and thickness are 0"


def default() -> ScrollConfig:
    """Train 33.67 M parameters on patches of 72 × 136 × 136, two at once: for a GPU of 12 GB."""
    config = ScrollConfig()
    config.train.epochs = 32
    config.train.steps_per_epoch = 2000
    config.train.batch_size = 2
    config.train.workers = 4
    config.train.learning_rate = 1e-3
    config.train.weight_decay = 1e-2
    config.train.clip = 1.0
    config.train.ema = 0.999
    config.train.channels_last = "on"  # avoids pytorch#166122 (docs/presets.md)
    config.checkpoint.every_steps = 500
    return config


def large() -> ScrollConfig:
    """Train default on patches of 192³ with gradient checkpointing: for a GPU of 32 GB."""
    config = default()
    config.data.patch = (192, 192, 192)
    config.model.checkpointing = True
    return config


def nnunet() -> ScrollConfig:
    """Train the default network as nnU-Net v2 trains by default, for comparisons: for a GPU of 16 GB."""
    config = ScrollConfig()
    config.data.patch, config.data.surface_share = (128, 128, 128), 0.33
    config.train.epochs, config.train.steps_per_epoch, config.train.batch_size = 1000, 250, 2
    config.train.optimizer, config.train.learning_rate, config.train.momentum = "sgd", 1e-2, 0.99
    config.train.weight_decay, config.train.clip = 3e-5, 12.0
    config.train.schedule, config.train.warmup = "poly", 0.0
    config.train.workers = 4
    config.train.channels_last = "on"  # as in default
    config.loss.skeleton_recall.weight = 0.0
    config.validate.every, config.checkpoint.every = 10, 10
    return config


def resenc_m() -> ScrollConfig:
    """Train nnU-Net's ResEnc U-Net, 102.35 M parameters, on patches of 128³, two at once: for a GPU of 12 GB."""
    config = default()
    config.data.patch = (128, 128, 128)
    config.model.architecture = "resenc"
    return config


def resenc_l() -> ScrollConfig:
    """Train resenc-m on patches of 160³: for a GPU of 16 GB."""
    config = resenc_m()
    config.data.patch = (160, 160, 160)
    return config


def resenc_xl() -> ScrollConfig:
    """Train resenc-m on patches of 192³: for a GPU of 24 GB."""
    config = resenc_m()
    config.data.patch = (192, 192, 192)
    return config


def small() -> ScrollConfig:
    """Train 2.28 M parameters on your own volumes on a laptop's CPU: patches of 48³, 10,000 steps.

    The values are sensible, but not tuned on real scrolls.
    """
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
    """Train a small network on patches of 32³: the phantom takes less than two minutes."""
    config = ScrollConfig()
    # A larger share of a small patch is labelled: eight of them taught more than two of 48³.
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


PRESETS: dict[str, Callable[[], ScrollConfig]] = {
    "default": default,
    "large": large,
    "nnunet": nnunet,
    "resenc-m": resenc_m,
    "resenc-l": resenc_l,
    "resenc-xl": resenc_xl,
    "small": small,
    "demo": demo,
}


def _patches(config: ScrollConfig) -> Iterator[str]:
    patch, model = config.data.patch, config.model
    resenc = model.architecture == "resenc"
    name, levels = ("resenc.features", model.resenc.features) if resenc else ("multipliers", model.multipliers)
    if len(levels) < 2:
        yield f"model.{name} is {levels}; two levels or more are needed"
    if resenc and len(model.resenc.blocks) != len(levels):
        yield f"model.resenc.blocks {model.resenc.blocks} must have an entry for each of {name} {levels}"
    if resenc and max(model.halvings) > len(levels) - 1:
        yield f"model.resenc.halvings {model.halvings}: {len(levels)} levels halve {len(levels) - 1} times at most"
    if max(-(-side // 2 ** max(0, times)) for side, times in zip(patch, model.halvings, strict=True)) < 2:
        yield (
            f"data.patch {patch} leaves one voxel after {max(model.halvings)} halvings, in which there is nothing to "
            f"see: take a larger patch or fewer model.{name}"
        )


def _intensities(data: ScrollDataConfig) -> Iterator[str]:
    given = data.intensities
    if (data.normalise == "fixed") != bool(given):
        yield f"data.normalise is {data.normalise} and data.intensities {given}: fixed needs them, nothing else does"
    elif given and (len(given) != 4 or not given[0] < given[1] or not given[3] > 0):
        yield f"data.intensities {given}: lowest, highest (above it), what to subtract, what to divide by (above 0)"


def _losses(loss: LossConfig) -> Iterator[str]:
    own = loss.terms()
    for name, term in own.items():
        if term.full < term.begin and term.full > 0:
            yield f"loss.{name}.full {term.full} comes before loss.{name}.begin {term.begin}"
    if not any(term.weight > 0 for term in own.values()):
        yield f"the losses ({', '.join(own)}) all have weight 0: nothing would be learned. Set loss.NAME.weight"
    at_once = [name for name, term in own.items() if term.weight_at(0.0) > 0]
    if not set(at_once) - {"topology"}:
        yield "no loss but topology counts from the first step on: set begin and full of another to 0"


def _crop(config: ScrollConfig) -> Iterator[str]:
    side, shortest = config.loss.topology_crop, min(config.data.patch)
    if config.loss.topology.weight > 0 and side > shortest:
        yield (
            f"loss.topology_crop is {side}, but the shortest side of data.patch is {shortest}: "
            f"set loss.topology_crop to {shortest} or less"
        )
