"""Settings of dinocell and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner_core.config import DataConfig, RunConfig, TrainConfig


@dataclass
class CellDataConfig(DataConfig):
    manifest: str | None = None
    """Table of the images (CSV or parquet; a path or URL): one row an image with the columns plate, well, site, channel
    and path, or a CellProfiler load_data table. Default: the files' names say it."""
    pattern: str | None = None
    """Regular expression with the groups plate, well, site and channel (and source, batch) for paths below --data.
    Default: the naming schemes that are known."""
    channels: tuple[str, ...] = ()
    """Channels to use, in this order. Default: all that every field has, in the order of their names."""
    window: int = 320
    """Side (pixels) of the window of a field that one sample is: all crops are taken out of it."""
    windows: int = 4
    """Training windows an epoch takes from each field: a fetched field is used that often."""
    validation_windows: int = 2
    """Windows of each validation field, at places that never change."""
    scale: Literal["field", "set"] = "field"
    """Where the percentiles that become 0 and 1 are from: each field's own, or fields of all plates together."""
    percentiles: tuple[float, float] = (0.1, 99.9)
    """Grey values of each channel at these percentiles become 0 and 1."""
    label: str | None = None
    """Column of the manifest (or of labels.csv beside the images) with what evaluation looks for, a compound say."""


@dataclass
class ModelConfig:
    source: Literal["timm", "dinov2"] = "timm"
    """Whose vision transformer: timm's, or the one of the extra runner-dinocell[dinov2]."""
    size: Literal["mini", "tiny", "small", "base", "large"] = "small"
    """Width and depth: 96 × 4, 192 × 12, 384 × 12, 768 × 12, 1024 × 24."""
    patch: int = 8
    """Side (pixels) of the patches that become tokens."""
    registers: int = 0
    """Register tokens (Darcet 2024)."""
    channels: Literal["stack", "subset", "bag"] = "stack"
    """stack: the channels as they are; subset: a random choice of them, in random order, for each image (those left
    out are 0); bag: each channel by itself, embeddings averaged."""
    layer_scale: float = 1e-5
    """What each block's output is multiplied by at first (Touvron 2021); it is learned. A short training gets nowhere
    from 1e-5, and wants 1."""
    drop_path: float = 0.0
    """Stochastic depth of the student's last block; it rises linearly to there."""
    prototypes: int = 65536
    """Outputs of the projection heads."""
    hidden: int = 2048
    """Hidden width of the projection heads."""
    bottleneck: int = 256
    """Width before the prototypes."""
    ibot_head: Literal["shared", "own"] = "shared"
    """Do patch tokens have the image's projection head, or one of their own?"""
    weights: Path | None = None
    """Official DINOv2 weights (.pth or .safetensors) that student and teacher begin with."""


@dataclass
class LossConfig:
    dino: float = 1.0
    """Weight of the image-level loss."""
    ibot: float = 1.0
    """Weight of the loss of masked patches."""
    koleo: float = 0.1
    """Weight of KoLeo on each global crop."""
    centring: Literal["centre", "sinkhorn"] = "sinkhorn"
    """How teacher outputs are kept from collapsing: a moving mean is subtracted, or Sinkhorn-Knopp (3 rounds)."""
    centre_momentum: float = 0.9
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    """After the warm-up."""
    warmup_teacher_temperature: float = 0.04
    """At the beginning."""
    teacher_warmup: float = 0.3
    """Share of the training over which the teacher's temperature rises."""
    masked_share: tuple[float, float] = (0.1, 0.5)
    """A masked image has between these shares of its patches masked; half of the global crops are masked."""
    measure_every: int = 50
    """Steps between two measurements of what each loss costs and how hard it pulls (log.jsonl, event losses)."""


@dataclass
class TeacherConfig:
    momentum: float = 0.992
    """Of the moving average at the beginning; it rises to 1 along a cosine."""


@dataclass
class OptimConfig:
    final_learning_rate: float = 1e-6
    final_weight_decay: float = 0.4
    """train.weight_decay at the end; it rises along a cosine."""
    layer_decay: float = 0.9
    """Factor on the learning rate from each block to the one below it."""
    patch_embed_factor: float = 0.2
    """Factor on the learning rate of the patch embedding."""
    freeze_prototypes: float = 0.01
    """Share of the training in which the prototypes do not move."""


@dataclass
class AugmentConfig:
    """On the device. Probabilities and strengths; 0 switches a part off."""

    global_size: int = 224
    """Side (pixels) of the two global crops."""
    local_size: int = 96
    """Side (pixels) of the local crops."""
    locals: int = 8
    """Local crops."""
    global_scale: tuple[float, float] = (0.32, 1.0)
    """Share of the window's area that a global crop shows."""
    local_scale: tuple[float, float] = (0.05, 0.32)
    """Share of the window's area that a local crop shows."""
    flip: bool = True
    rotate90: bool = True
    brightness: float = 0.2
    """Largest offset, of a channel's range; each channel has its own."""
    contrast: float = 0.4
    """Largest change of a channel's factor, as a share."""
    blur: float = 0.5
    """Share of the local crops that are blurred; of the first global crop twice this, of the second a fifth."""
    noise: float = 0.02
    """Largest standard deviation of noise, of a channel's range."""


@dataclass
class CellTrainConfig(TrainConfig):
    learning_rate: float = 1e-3
    """Peak learning rate. DINOv2's is 0.004·√(batch / 1024), of the batch of all devices together; the preset default
    has that of 80: set it anew with another batch or more devices."""


@dataclass
class PredictConfig:
    unit: Literal["field", "window"] = "field"
    """What has one embedding: a field (the mean over its windows), or each window."""
    stride: float = 1.0
    """Distance between windows, as a share of their side."""
    neighbours: int = 20
    """Of the k-NN classifier."""
    fields: int = 2000
    """Fields of each side at most that the end of training and `evaluate` look at."""


@dataclass
class CellConfig(RunConfig):
    """DINOv2 pretraining on microscopy."""

    data: CellDataConfig = field(default_factory=CellDataConfig)
    train: CellTrainConfig = field(default_factory=CellTrainConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)


def default() -> CellConfig:
    """ViT-S/8 on windows of 320², 80 at once, 90,000 steps: for a GPU of 80 GB."""
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
    """The phantom in less than two minutes: a small network on windows of 96²."""
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
    # With more of it, or a softer teacher, the teacher of so short a training soon answers the same to everything.
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
