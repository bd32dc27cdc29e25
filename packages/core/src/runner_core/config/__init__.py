"""Settings that every project shares. A project's `Config` subclasses `RunConfig` and adds its own sections.

Sources, weakest first: preset, YAML file, flags (`runner_core.config.resolve`). The docstring under each field
is its help text. This module imports no framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass
class DataConfig:
    split: str = "auto"
    """How records become training and validation sets, always by group (patient, scroll, plate).
    auto: the folders' own split, else a random share of the groups; group:A[,B]: these groups validate;
    none: train on everything, validate on nothing; or a YAML file with the keys train, validation, test."""
    validation_fraction: float = 0.2
    """Share of the groups that validate under split auto (at least one group)."""


@dataclass
class CacheConfig:
    mode: Literal["auto", "memmap", "blosc2", "memory", "device", "stream", "off"] = "auto"
    """Where prepared arrays live. auto: memory map, or blosc2 when the disk is short; stream where the data are at a
    URL. stream: records are fetched and prepared ahead of use, the newest kept on disk up to max_gb."""
    dir: Path | None = None
    """Folder of the caches, shared across runs. Default: $XDG_CACHE_HOME/runner or ~/.cache/runner."""
    max_gb: float | None = None
    """Refuse to build a cache larger than this (GB = 1e9 bytes). Default: what the disk has, less 5 %. stream: never
    take more; default: half of what the disk has free."""
    workers: int = 0
    """Processes that build the cache; 0: one per core."""
    ahead: bool = True
    """stream: fetch records before a batch asks for them. Without, training waits for each batch's; to compare with."""


@dataclass
class RemoteConfig:
    """How data at a URL (s3://, gs://, az://, https://) are reached."""

    endpoint: str | None = None
    """Address of an S3-compatible server, http://127.0.0.1:9000 say. Default: the provider's own."""
    region: str | None = None
    """Region of the bucket. Default: AWS_REGION, else us-east-1."""
    credentials: Literal["auto", "anonymous", "environment"] = "auto"
    """anonymous: requests are not signed; environment: AWS_ACCESS_KEY_ID and the like, or the machine's role. auto: by
    the environment where it has keys, else anonymous."""
    connections: int = 16
    """Files that one process fetches at once."""
    timeout: float = 30.0
    """Seconds without an answer, or without more of it, after which a request counts as failed."""
    retries: int = 5
    """Times that a request is tried again, after longer and longer waits, when the server or the way there fails."""


@dataclass
class CropConfig:
    mode: Literal["auto", "none", "centre", "foreground", "body"] = "auto"
    """Crop before caching. auto: what the project recommends; foreground: box of what is above the threshold;
    body: box of the largest object after Otsu's threshold."""
    size: tuple[int, ...] | None = None
    """centre: size of the box in voxels, one number per axis."""
    margin: int = 4
    """foreground, body: voxels kept around the box."""
    threshold: float = 0.0
    """foreground: values above it are foreground."""


@dataclass
class PrecisionConfig:
    mode: Literal["auto", "float32", "tf32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 where the device has it, float16 with loss scaling on older GPUs, float32 on CPU."""


@dataclass
class TrainConfig:
    epochs: int = 100
    """Passes over the training samples (or of `steps_per_epoch` steps)."""
    steps_per_epoch: int | None = None
    """Optimizer steps an epoch. Default: one pass over the samples."""
    batch_size: int = 32
    """Samples per optimizer step and device; split into micro-batches by `accumulate`."""
    accumulate: int = 1
    """Micro-batches per optimizer step; more than 1 only in projects whose batches may be cut (no BatchNorm)."""
    workers: int = 0
    """Processes that fill batches. 0: the training process does, which is fastest for memory maps."""
    prefetch: int = 2
    """Batches kept ready in advance."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    warmup: float = 0.02
    """Share of the steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """Course of the learning rate after warm-up, towards 0."""
    clip: float | None = None
    """Gradients are scaled down to this global norm."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights; validation and prediction then use the average."""
    patience: int | None = None
    """Stop after this many validations without a better monitored metric."""
    seed: int = 0
    """Every random number of the run derives from it."""
    deterministic: bool = False
    """Bit-identical results for the same device, threads and versions, at some cost in speed."""
    device: str = "auto"
    """auto (the GPU if there is one), cpu, cuda, cuda:1."""
    devices: int = 1
    """PyTorch only: GPUs that train together, each in a process of its own (--devices N for short). Under torchrun or
    srun: as many as they started."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """With several devices. ddp: each has the whole network; fsdp: each keeps a part of every weight, its gradient and
    its optimizer state. auto: ddp, or fsdp where all that would take more than a quarter of a device's memory."""
    steps_per_execution: int = 1
    """Keras only: steps that go to the device at once. More than 1 saves time where a step takes about a millisecond;
    logs, checkpoints and signals then wait for the end of such a block."""
    threads: int | None = None
    """CPU threads of the framework. Default: the framework's own choice."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the step: torch.compile, or XLA for Keras. auto: PyTorch where the project measured it faster; Keras on
    every GPU and never on a CPU, where XLA is many times slower."""
    channels_last: Literal["auto", "on", "off"] = "auto"
    """PyTorch only: channels-last memory layout for convolutions. auto: where the project measured it faster."""


@dataclass
class ValidateConfig:
    every: int = 1
    """Validate after every so many epochs (and after the last)."""
    batch_size: int | None = None
    """Default: the training batch size."""


@dataclass
class CheckpointConfig:
    every: int = 1
    """Save after every so many epochs (and after the last)."""
    every_steps: int | None = None
    """Also save after every so many steps."""
    keep: int = 3
    """Checkpoints kept besides the best one."""


@dataclass
class HealthConfig:
    mode: Literal["stop", "warn", "off"] = "stop"
    """What a finding of level error does: stop the run with exit code 3, or only warn."""
    constant_after: int = 3
    """Validations in a row with the same decision everywhere before the run is stopped."""
    constant_steps: int = 100
    """Optimizer steps before which such a run is only warned of, not stopped."""
    memory: Literal["refuse", "warn", "off"] = "refuse"
    """What a training is that needs more memory or disk than there is: refused before its first step, or warned of.
    off: nobody looks, nor is a step tried with a few samples to find out."""


@dataclass
class LogConfig:
    every: int = 50
    """Steps between lines of the log; reading the device's numbers more often costs time."""
    snapshots_every: int = 100
    """Steps between the pictures that some projects draw of what their network makes of a few samples."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra runner-core[tensorboard])."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also log to Weights & Biases (needs the extra runner-core[wandb]). offline: files in the run folder, for
    `wandb sync`; online: to the server, with the key that `wandb login` kept."""
    mlflow: str | None = None
    """Also log to MLflow (needs the extra runner-core[mlflow]): a folder, or a server's http(s) address."""
    experiment: str | None = None
    """W&B's project and MLflow's experiment that the run belongs to. Default: the project's name."""


@dataclass
class RunConfig:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    crop: CropConfig = field(default_factory=CropConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    log: LogConfig = field(default_factory=LogConfig)
