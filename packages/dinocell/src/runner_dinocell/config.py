"""Settings and presets. No framework is imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from runner_core import (
    AtLeast,
    BadInput,
    DataConfig,
    PredictConfig,
    RunConfig,
    TrainConfig,
    Within,
    did_you_mean,
    location,
)

from runner_dinocell import recipes
from runner_dinocell.recipes import DistilConfig, GramConfig, MetadataConfig

CELLS = ("find", "masks")
"""Values of `data.cells` that are no table."""
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Ends of the names of tables."""


@dataclass
class CellDataConfig(DataConfig):
    manifest: str | None = None
    """Table of the images (CSV, TSV or parquet; a path or URL). It has one row per image with the columns plate, well,
    site, channel and path, and optionally group and split, or is a CellProfiler load_data table. Default: read these
    from the files' names."""
    pattern: str | None = None
    """How to read paths below --data, in one of two ways: a pattern with parts in braces, such as
    {plate}/{well}_s{site}_{channel}.tif (also {source}, {batch}, and * for anything), or a regular expression with
    these parts as groups, such as (?P<plate>…). Default: the known naming schemes."""
    channels: tuple[str, ...] = ()
    """Channels to use, in this order. Default: all that every plate has (with model.channels subset or bag: that any
    plate has), in the order of their names, without brightfield beside fluorescence."""
    cells: str | None = None
    """Where single cells are: find (nuclei, by the built-in finder), masks (label images beside the images:
    NAME_cp_masks.tif, as cellpose writes them), or a table of centres (plate, well, site, y and x in pixels, or
    CellProfiler's table of objects; a path or URL). Then training windows lie around cells, and a field's embedding is
    the mean of its cells'. Default: windows lie anywhere."""
    nuclei: str | None = None
    """Channel in which data.cells find looks. Default: DNA, DAPI or Hoechst, else the first."""
    most_cells: Annotated[int, Within(1, 100000)] = 1024
    """Cells of a field that are used; of more, some are left out evenly."""
    window: Annotated[int, AtLeast(16)] = 320
    """Side (pixels) of the window of a field that makes one sample: all crops are taken from it."""
    windows: Annotated[int, Within(1, 100000)] = 4
    """Training windows per field and epoch: a fetched field is used this often."""
    validation_windows: Annotated[int, Within(1, 100000)] = 2
    """Windows of each validation field, at places that never change."""
    scale: Literal["auto", "field", "set"] = "auto"
    """Source of the percentiles that become 0 and 1. field: each field's own, so that its brightness is lost. set:
    training fields of all plates together. auto: set if the brightness of training fields differs more between wells
    of a plate than between plates, else field (also if no well has two sites)."""
    percentiles: tuple[float, float] = (0.1, 99.9)
    """Grey values of each channel at these percentiles become 0 and 1."""
    label: str | None = None
    """Column of the manifest (or of labels.csv beside the images) that evaluation looks for, such as a compound."""

    def __post_init__(self) -> None:
        place = location(self.manifest) if self.manifest else None
        if isinstance(place, Path):  # a run may be used from another folder
            self.manifest = str(place.absolute())
        if (self.cells or "").lower().endswith(TABLES) and isinstance(place := location(self.cells or ""), Path):
            self.cells = str(place.absolute())


@dataclass
class ModelConfig:
    source: Literal["timm", "dinov2"] = "timm"
    """Package of the vision transformer: timm, or dinov2 of the extra runner-dinocell[dinov2]."""
    size: Literal["mini", "tiny", "small", "base", "large"] = "small"
    """Width and depth: 96 × 4, 192 × 12, 384 × 12, 768 × 12, 1024 × 24."""
    patch: Annotated[int, AtLeast(1)] = 8
    """Side (pixels) of the patches that become tokens."""
    registers: Annotated[int, Within(0, 1000)] = 0
    """Register tokens (Darcet 2024)."""
    channels: Literal["stack", "subset", "bag", "invariant", "tokens"] = "stack"
    """stack: use the channels as they are. subset: use a random choice of them, in random order, for each image (the
    others are 0). bag: use each channel by itself and average the embeddings. invariant: like bag, but in training the
    first global crop shows the mean of the channels and each other crop one random channel. tokens: give each channel
    patch tokens of its own (ChannelViT); the first global crop shows all channels, each other crop a random choice.
    Fields may lack channels with all but stack."""
    layer_scale: Annotated[float, AtLeast(0)] = 1e-5
    """Initial factor on each block's output (Touvron 2021); it is learned. A short training makes no progress from 1e-5
    and needs 1."""
    drop_path: Annotated[float, Within(0, 0.99)] = 0.0
    """Stochastic depth of the student's last block; it rises linearly up to that block (train.recipe dinov2-exact: it
    is the same in all blocks)."""
    prototypes: Annotated[int, Within(2, 10000000)] = 65536
    """Outputs of the projection heads."""
    hidden: Annotated[int, Within(1, 100000)] = 2048
    """Hidden width of the projection heads."""
    bottleneck: Annotated[int, Within(1, 100000)] = 256
    """Width before the prototypes."""
    ibot_head: Literal["shared", "own"] = "shared"
    """Projection head of patch tokens: the image's, or one of their own."""

    @property
    def one_by_one(self) -> bool:
        """True if the network reads one grey image at a time."""
        return self.channels in ("bag", "invariant")


@dataclass
class LossConfig:
    dino: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the image-level loss."""
    ibot: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the loss of masked patches."""
    koleo: Annotated[float, AtLeast(0)] = 0.1
    """Weight of KoLeo on each global crop."""
    centring: Literal["centre", "sinkhorn"] = "sinkhorn"
    """How to keep teacher outputs from collapsing: subtract a moving mean, or use Sinkhorn-Knopp (3 rounds)."""
    centre_momentum: Annotated[float, Within(0, 0.9999)] = 0.9
    student_temperature: Annotated[float, AtLeast(0.0001)] = 0.1
    teacher_temperature: Annotated[float, AtLeast(0.0001)] = 0.07
    """Teacher's temperature after the warm-up."""
    warmup_teacher_temperature: Annotated[float, AtLeast(0.0001)] = 0.04
    """Teacher's temperature at the beginning."""
    teacher_warmup: Annotated[float, Within(0, 1)] = 0.3
    """Share of the training over which the teacher's temperature rises."""
    masked_share: tuple[float, float] = (0.1, 0.5)
    """Smallest and largest share of masked patches in a masked image; half of the global crops are masked."""


@dataclass
class TeacherConfig:
    momentum: Annotated[float, Within(0, 1)] = 0.992
    """Momentum of the moving average at the beginning; it rises to 1 along a cosine."""


@dataclass
class OptimConfig:
    final_learning_rate: Annotated[float, AtLeast(0)] = 1e-6
    """Learning rate at the end, if train.schedule is cosine or linear."""
    final_weight_decay: Annotated[float, AtLeast(0)] = 0.4
    """Weight decay at the end; train.weight_decay rises to it along a cosine."""
    layer_decay: Annotated[float, Within(0.0001, 1)] = 0.9
    """Factor on the learning rate from each block to the one below it."""
    patch_embed_factor: Annotated[float, Within(0, 1)] = 0.2
    """Factor on the learning rate of the patch embedding."""
    freeze_prototypes: Annotated[float, Within(0, 1)] = 0.01
    """Share of the training in which the prototypes do not move."""


@dataclass
class AugmentConfig:
    """Probabilities and strengths of augmentation on the device; 0 switches a change off."""

    global_size: Annotated[int, AtLeast(1)] = 224
    """Side (pixels) of the two global crops."""
    local_size: Annotated[int, AtLeast(1)] = 96
    """Side (pixels) of the local crops."""
    locals: Annotated[int, AtLeast(0)] = 8
    """Number of local crops."""
    global_scale: tuple[float, float] = (0.32, 1.0)
    """Share of the window's area that a global crop shows."""
    local_scale: tuple[float, float] = (0.05, 0.32)
    """Share of the window's area that a local crop shows."""
    flip: bool = True
    rotate90: bool = True
    brightness: Annotated[float, AtLeast(0)] = 0.2
    """Largest offset, as a share of a channel's range; each channel has its own."""
    contrast: Annotated[float, Within(0, 1)] = 0.4
    """Largest change of a channel's factor, as a share."""
    blur: Annotated[float, Within(0, 1)] = 0.5
    """Share of the local crops that are blurred; twice this for the first global crop, a fifth for the second."""
    noise: Annotated[float, AtLeast(0)] = 0.02
    """Largest standard deviation of noise, as a share of a channel's range."""


@dataclass
class CellTrainConfig(TrainConfig):
    learning_rate: float = 1e-3
    """Peak learning rate. DINOv2's is 0.004·√(batch / 1024), with the batch of all devices together. The preset default
    is for a batch of 80: set the rate again for another batch or more devices."""
    recipe: Literal["runner", "dinov2-exact"] = "runner"
    """dinov2-exact: the details of DINOv2's own code too. Residuals are dropped for the same share of every batch in
    all blocks (model.drop_path; DINOv2 takes 0.3), tokens decay, prototypes have a learned gain, CLS has a position
    embedding of its own, backbone and heads are clipped one by one, and warm-ups begin at 0."""

    @property
    def exact(self) -> bool:
        """True if the training follows DINOv2's code in every detail."""
        return self.recipe == "dinov2-exact"


@dataclass
class CellPredictConfig(PredictConfig):
    unit: Literal["field", "window", "cell"] = "field"
    """Unit of an embedding: a field (the mean over its windows, or over its cells with data.cells), each window, or
    each cell."""
    stride: Annotated[float, Within(0.05, 1)] = 1.0
    """Distance between windows, as a share of their side."""
    neighbours: Annotated[int, AtLeast(1)] = 20
    """Neighbours of the k-NN classifier."""
    drop_channels: bool = False
    """Let `evaluate` also embed every field without each channel, and with each channel alone, and score that: it takes
    as many times longer as twice the number of channels."""
    controls: tuple[str, ...] = ()
    """Labels of control wells (DMSO), by which `evaluate` normalises the profiles of each plate. Default: by all of its
    wells."""
    normalise: Literal["standardise", "mad"] = "standardise"
    """How profiles are normalised by controls: mean and standard deviation, or median and median absolute deviation."""
    sphering: Annotated[float, AtLeast(0)] = 0.5
    """Added to the standard deviation of each direction when profiles are sphered; 0 blows up weak directions."""
    fields: Annotated[int, AtLeast(2)] = 2000
    """Most fields of each split that the end of training and `evaluate` look at."""


@dataclass
class CellConfig(RunConfig):
    """Settings of DINOv2 pretraining on microscopy."""

    data: CellDataConfig = field(default_factory=CellDataConfig)
    train: CellTrainConfig = field(default_factory=CellTrainConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    gram: GramConfig = field(default_factory=GramConfig)
    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: CellPredictConfig = field(default_factory=CellPredictConfig)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with settings together; the bounds of each one stand at its field."""
        yield from _data(self)
        yield from _sizes(self)
        yield from _shares(self)
        yield from _losses(self)
        yield from recipes.faults(self.metadata)


def default() -> CellConfig:
    """Train ViT-S/8 on windows of 320², 80 at once, 90,000 steps: for a GPU with much memory."""
    config = CellConfig()
    config.cache.mode = "stream"
    config.cache.max_gb = 100.0
    config.train.epochs = 36
    config.train.steps_per_epoch = 2500
    config.train.batch_size = 80
    config.train.workers = 8
    config.train.prefetch = 16
    config.train.learning_rate = 0.004 * (80 / 1024) ** 0.5
    config.train.weight_decay = 0.04
    config.train.warmup = 0.1
    config.train.clip = 3.0
    config.checkpoint.every_steps = 2500
    return config


def demo() -> CellConfig:
    """Train a small network on windows of 96²: the phantom takes less than two minutes."""
    config = CellConfig()
    config.cache.mode = "stream"
    config.cache.max_gb = 1.0
    config.data.window = 96
    config.data.windows = 4
    config.model.size, config.model.layer_scale = "mini", 1.0
    config.model.prototypes, config.model.hidden, config.model.bottleneck = 256, 256, 64
    config.loss.teacher_temperature = config.loss.warmup_teacher_temperature = 0.02
    config.loss.koleo = 0.02
    config.teacher.momentum = 0.98
    config.optim.layer_decay = config.optim.patch_embed_factor = 1.0
    config.optim.final_weight_decay = 0.04
    config.augment.global_size, config.augment.local_size, config.augment.locals = 48, 24, 4
    config.augment.global_scale, config.augment.local_scale = (0.35, 0.8), (0.1, 0.25)
    # With more of these, or a softer teacher, the teacher of such a short training soon answers the same to all crops.
    config.augment.brightness, config.augment.contrast, config.augment.blur, config.augment.noise = 0.1, 0.3, 0.0, 0.0
    config.train.batch_size = 32
    config.train.epochs = 20
    config.train.prefetch = 4
    config.train.learning_rate = 2e-3
    config.train.weight_decay = 0.04
    config.train.warmup = 0.1
    config.train.clip = 3.0
    config.validate.every = 5
    config.checkpoint.every = 5
    config.log.every = 18
    return config


PRESETS: dict[str, Callable[[], CellConfig]] = {"default": default, "demo": demo}


def _data(config: CellConfig) -> Iterator[str]:
    data = config.data
    low, high = data.percentiles
    if not 0 <= low < high <= 100:
        yield f"data.percentiles is {data.percentiles}; two rising numbers between 0 and 100"
    if len(set(data.channels)) < len(data.channels):
        yield f"data.channels {' '.join(data.channels)} names a channel twice"
    if data.cells not in (None, *CELLS) and not data.cells.lower().endswith(TABLES):
        near = did_you_mean(data.cells, CELLS)
        yield f"data.cells is {data.cells}; find, masks, or a table of centres ({', '.join(TABLES)}){near}"
    if config.predict.unit == "cell" and data.cells is None:
        yield "predict.unit cell needs data.cells: find, masks, or a table of centres"
    if data.manifest and data.pattern:
        yield "data.manifest and data.pattern both say which files belong together; leave one out"
    if data.pattern is not None:
        from runner_dinocell import names

        try:
            names.own(data.pattern)
        except BadInput as error:
            yield str(error)


def _sizes(config: CellConfig) -> Iterator[str]:
    patch = config.model.patch
    for name in ("global_size", "local_size"):
        size = getattr(config.augment, name)
        if size % patch:
            near = max(1, round(size / patch)) * patch
            yield f"augment.{name} is {size}, no multiple of model.patch, {patch}: take {near}"
    if config.augment.local_size > config.augment.global_size:
        yield (
            f"augment.local_size {config.augment.local_size} is larger than augment.global_size "
            f"{config.augment.global_size}: local crops are the small ones"
        )
    if config.model.source == "dinov2" and config.model.size in ("mini", "tiny"):
        yield f"model.size {config.model.size} is not among dinov2's; take small, or model.source timm"
    if config.model.source == "dinov2" and config.model.channels == "tokens":
        yield "dinov2's network has no tokens of each channel: take model.source timm, or model.channels bag"


def _shares(config: CellConfig) -> Iterator[str]:
    for name, (low, high) in (
        ("augment.global_scale", config.augment.global_scale),
        ("augment.local_scale", config.augment.local_scale),
    ):
        if not 0 < low <= high <= 1:
            yield f"{name} is ({low}, {high}); two shares of the window above 0 and up to 1, the smaller first"
    low, high = config.loss.masked_share
    if not 0 <= low <= high <= 1:
        yield f"loss.masked_share is ({low}, {high}); two shares from 0 to 1, the smaller first"


def _losses(config: CellConfig) -> Iterator[str]:
    loss = config.loss
    if not loss.dino and not loss.ibot:
        yield "loss.dino and loss.ibot are both 0: nothing would be learned. Give one of them a weight"
    if loss.ibot and not loss.masked_share[1]:
        yield "loss.masked_share is 0, so that loss.ibot has no patch to look at: raise it, or set loss.ibot to 0"
    if loss.koleo and config.train.batch_size < 2:
        yield "train.batch_size is 1: loss.koleo compares images with each other. Set it to 2 or more"
