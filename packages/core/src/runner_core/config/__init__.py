"""Settings that every project shares; a project's `Config` subclasses `RunConfig` and adds its own sections.

Sources, weakest first: preset, YAML file, flags (`runner_core.plugins.settings`). The docstring under each field is its
help text. This module imports no framework.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from runner_core.config.bounds import AtLeast, Between, MoreThan, Within


@dataclass
class DataConfig:
    split: str = "auto"
    """How records are split into training and validation sets, always by group (patient, scroll, plate). auto: the
    split that the data's folders name, else random groups with a share of the records. group:A[,B]: these groups
    validate. none: train on everything, validate on nothing. Or a YAML file with the keys train, validation, test."""
    validation_fraction: Annotated[float, Between(0, 1)] = 0.2
    """Share of the records that validate under split auto. Groups stay whole, so the share is as near as they allow;
    at least one group validates."""


@dataclass
class FilesConfig(DataConfig):
    """Data settings for records whose files a table or patterns of names may list."""

    manifest: Path | None = None
    """Table of the files (CSV, TSV or parquet) with a row for each record."""
    pattern: tuple[str, ...] = ()
    """Patterns of paths below --data that say what a file is."""

    def __post_init__(self) -> None:
        if self.manifest is not None:  # a run may be used from another folder
            self.manifest = Path(os.path.expanduser(self.manifest)).absolute()


@dataclass
class PairsConfig(FilesConfig):
    """Data settings for records that are pairs of files, an image and its label."""

    manifest: Path | None = None
    """Table of the files (CSV, TSV or parquet). Each image has a row with the columns image and label, and optionally
    id, group and split. Paths in the table are relative to --data or absolute; the table's own path is relative to the
    current folder. Default: the layouts that the project knows."""
    pattern: tuple[str, ...] = ()
    """Two path patterns below --data, one for images and one for labels, such as scans/{id}.nii.gz
    masks/{id}_mask.nii.gz. An image and its label share {id}. {group} and {split} are optional; * matches anything.
    Default: the layouts that the project knows."""


@dataclass
class CacheConfig:
    mode: Literal["auto", "memmap", "blosc2", "memory", "device", "stream", "off"] = "auto"
    """Storage of prepared arrays. auto: memmap (memory-mapped files), blosc2 if disk space is short, stream if the
    data are at a URL. stream: records are fetched and prepared ahead of use; the newest stay on disk, up to max_gb."""
    dir: Path | None = None
    """Folder of the caches, shared by all runs. Default: $XDG_CACHE_HOME/runner or ~/.cache/runner."""
    max_gb: Annotated[float, AtLeast(0)] | None = None
    """Refuse to build a cache larger than this (GB = 1e9 bytes). Default: free disk space, less 5 %. With stream:
    the cache never grows larger; default: half of the free disk space."""
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes that build the cache; 0: one per core."""
    ahead: bool = True
    """stream: fetch records before a batch asks for them. Turned off, training waits for the records of each batch;
    use that for comparison."""


@dataclass
class RemoteConfig:
    """Access to data at a URL (s3://, gs://, az://, https://)."""

    endpoint: str | None = None
    """Address of an S3-compatible server, for example http://127.0.0.1:9000. Default: the provider's own."""
    region: str | None = None
    """Region of the bucket. Default: AWS_REGION, else us-east-1."""
    credentials: Literal["auto", "anonymous", "environment"] = "auto"
    """anonymous: do not sign requests. environment: use AWS_ACCESS_KEY_ID and the like, else the profile in ~/.aws
    (AWS_PROFILE, else default; SSO and roles need the package boto3), else the machine's role. auto: environment if
    it has keys or AWS_PROFILE, else anonymous."""
    connections: Annotated[int, AtLeast(1)] = 16
    """Files that one process fetches at the same time."""
    timeout: Annotated[float, MoreThan(0)] = 30.0
    """Seconds without an answer, or without further data, after which a request counts as failed."""
    retries: Annotated[int, AtLeast(0)] = 5
    """Number of times that a failed request is repeated, with growing waits, when the server or the connection
    fails."""


@dataclass
class CropConfig:
    mode: Literal["auto", "none", "centre", "foreground", "body"] = "auto"
    """Crop before caching. auto: the crop that the project recommends. centre: a box of fixed size. foreground: the
    box around all values above the threshold. body: the box around the largest object after Otsu's threshold."""
    size: tuple[int, ...] | None = None
    """centre: size of the box in voxels, one number per axis."""
    margin: Annotated[int, AtLeast(0)] = 4
    """foreground, body: number of voxels kept around the box."""
    threshold: float = 0.0
    """foreground: values above it are foreground."""


@dataclass
class PrecisionConfig:
    mode: Literal["auto", "float32", "tf32", "bfloat16", "float16"] = "auto"
    """Type in which layers compute. auto: bfloat16 if the GPU supports it, float16 with loss scaling on older
    GPUs, float32 on a CPU, or bfloat16 if it has AMX and the project gains by it."""


@dataclass
class TrainConfig:
    epochs: Annotated[int, AtLeast(1)] = 100
    """Passes over the training samples (or over `steps_per_epoch` steps)."""
    steps_per_epoch: Annotated[int, AtLeast(1)] | None = None
    """Optimizer steps per epoch. Default: one pass over the samples."""
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Samples per optimizer step and device; split into micro-batches by `accumulate`."""
    accumulate: Annotated[int, AtLeast(1)] = 1
    """Micro-batches per optimizer step. More than 1 only if the project allows a batch to be cut (no BatchNorm)."""
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes that fill batches. 0: the training process fills them itself, which is fastest for memory maps."""
    prefetch: Annotated[int, AtLeast(0)] = 2
    """Number of batches prepared in advance."""
    learning_rate: Annotated[float, MoreThan(0)] = 1e-3
    """Peak learning rate."""
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """adamw: Adam with decoupled weight decay. sgd: gradient descent with Nesterov's momentum, which needs a learning
    rate about ten times as high. muon: orthogonalised momentum for the matrices of hidden layers, where a project says
    which these are (dinocell), AdamW for the rest; PyTorch 2.9 or later. Not for projects with an optimizer of their
    own (openkbp)."""
    momentum: Annotated[float, Within(0, 1)] = 0.99
    """sgd: momentum; at 0 plain gradient descent."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Weight decay: decoupled for adamw; for sgd in PyTorch a part of the gradient (L2), in Keras decoupled."""
    warmup: Annotated[float, Within(0, 1)] = 0.02
    """Share of the steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "cosine", "linear", "poly", "wsd"] = "cosine"
    """Shape of the learning rate's decay towards 0 after warm-up. poly: nnU-Net's, the remaining share of the steps
    to the power of 0.9. wsd (warm-up, stable, decay): constant, then linear over the last steps (`decay`). A finished
    wsd run can go on with more epochs, from before its decay, unless the project has a schedule of its own
    (dinocell)."""
    decay: Annotated[float, Within(0, 1)] = 0.2
    """wsd: share of the steps, at the end, over which the learning rate falls to 0."""
    clip: Annotated[float, MoreThan(0)] | None = None
    """Scale gradients down to this global norm. Default: no clipping."""
    ema: Annotated[float, Between(0, 1)] | None = None
    """Decay of an exponential moving average of the weights; validation and prediction then use the average.
    Default: no average."""
    patience: Annotated[int, AtLeast(1)] | None = None
    """Stop after this many validations without improvement of the monitored metric. Default: never."""
    seed: Annotated[int, Within(0, 2**64 - 1)] = 0
    """Seed from which every random number of the run derives."""
    deterministic: bool = False
    """Bit-identical results for the same device, threads and versions, at some cost in speed."""
    device: str = "auto"
    """auto (the GPU if there is one), cpu, cuda, or one GPU such as cuda:1. A PyTorch built for Intel's or Apple's GPUs
    takes xpu or mps instead of cuda."""
    devices: Annotated[int, AtLeast(1)] = 1
    """Number of GPUs that train together (--devices N for short), with `train.device cpu` parts of the processor.
    PyTorch has a process for each, Keras one for all of a machine. Under torchrun, srun and other launchers: the
    number of processes they started, each with one."""
    patience_seconds: Annotated[float, AtLeast(5)] = 300.0
    """With several processes: seconds after which a process that is silent, or stays behind in a step, ends the
    training with exit code 75. Preparing data, validating and saving may take longer."""
    strategy: Literal["auto", "ddp", "fsdp", "hsdp"] = "auto"
    """PyTorch only: how several devices share the network. ddp: each has the whole network. fsdp: each keeps a part of
    every weight, its gradient and its optimizer state. hsdp: so do the devices of each machine
    (`exchange.shard_devices`), and between machines goes only the sum of each part of the gradients. auto: ddp, or
    fsdp if all these would take more than a quarter of a device's memory."""
    steps_per_execution: Annotated[int, AtLeast(1)] = 1
    """Keras only: steps that go to the device at once. More than 1 saves time if a step takes about a millisecond;
    logs, checkpoints and signals then wait for the end of such a block."""
    threads: Annotated[int, AtLeast(1)] | None = None
    """CPU threads of the framework. Default: the framework's own choice."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the step: torch.compile, or XLA for Keras. auto: on for Keras on a GPU, else off. Presets turn it on
    if it was measured to help; `runner PROJECT tune` measures it on your data."""
    kernels: Literal["check", "warn", "off"] = "check"
    """Before the first step, compare the gradients of everything beyond plain float32 (compile, precision,
    channels_last, a GPU's kernels, a project's own) with plain operations, on this network and its first batch; the
    result is remembered. check: do without what is wrong, where a setting can. warn: only warn. off: do not compare."""
    channels_last: Literal["auto", "on", "off"] = "auto"
    """PyTorch only: channels-last memory layout for convolutions. auto: off. Presets turn it on if it was measured
    to help; `runner PROJECT tune` measures it on your data."""


@dataclass
class ExchangeConfig:
    """Settings of what several devices tell each other in a step; PyTorch only."""

    gradients: Literal["auto", "step", "micro_batch"] = "auto"
    """With micro-batches (train.accumulate): when gradients are exchanged. step: once per optimizer step, after the
    last micro-batch. micro_batch: after each, which with fsdp keeps only a part of the gradients on each device. auto:
    step with ddp, micro_batch with fsdp; with hsdp, micro_batch within a machine and step between machines."""
    unused: Literal["auto", "find", "none"] = "auto"
    """ddp: whether each step looks for weights that it did not use. find: in every step. none: every step uses all
    weights, and one that does not ends the run. auto: no step if the first one used all weights in every process, until
    one does not; else find, also with train.deterministic or train.compile on."""
    gather: Literal["float32", "bfloat16"] = "float32"
    """fsdp, hsdp: type in which the weights of linear layers and convolutions are gathered. bfloat16 halves these bytes
    and changes no number, because precision.mode bfloat16, which it needs, rounds them anyway; each layer of 65,536 or
    more weights is then gathered apart, and the network must call it as a module. All other weights, and the optimizer,
    stay in float32."""
    reduce: Literal["float32", "bfloat16"] = "float32"
    """Type in which gradients are summed over the devices. bfloat16 halves these bytes, and rounds each gradient and
    each sum to 8 bits."""
    features: Literal["scatter", "all"] = "scatter"
    """How the gradients of features that a loss gathered from all devices (`ranks.gathered`) are summed. scatter: each
    device receives the sum of its own part, half the bytes. all: each receives the sums of all parts."""
    shard_devices: Annotated[int, AtLeast(2)] | None = None
    """hsdp: number of devices, neighbours by number, that share one copy of the network. Default: those of a
    machine."""


@dataclass
class ValidateConfig:
    every: Annotated[int, AtLeast(1)] = 1
    """Epochs between validations; the last epoch always validates."""
    batch_size: Annotated[int, AtLeast(1)] | None = None
    """Samples per validation batch. Default: the training batch size."""
    records: Annotated[int, AtLeast(1)] | None = None
    """Number of validation records that each validation and the final scoring use, taken from every group in turn.
    Default: all. `evaluate` always uses all."""


@dataclass
class CheckpointConfig:
    every: Annotated[int, AtLeast(1)] = 1
    """Epochs between checkpoints; the last epoch always saves one."""
    every_steps: Annotated[int, AtLeast(1)] | None = None
    """Steps between additional checkpoints. Default: none."""
    keep: Annotated[int, AtLeast(1)] = 3
    """Number of checkpoints to keep besides the best one."""
    background: bool = True
    """Write checkpoints while training goes on, from a copy of the state in host memory. False: training waits."""


@dataclass
class HealthConfig:
    mode: Literal["stop", "warn", "off"] = "stop"
    """Reaction to an error that a health rule finds. stop: end the run with exit code 3. warn: only warn. off: apply
    no health rules."""
    constant_after: Annotated[int, AtLeast(1)] = 3
    """Number of validations in a row with the same decision everywhere that stops the run."""
    constant_steps: Annotated[int, AtLeast(0)] = 100
    """Optimizer step from which on a network that decides the same everywhere is an error. A shorter run only warns,
    also at its end, and exits with 0."""
    memory: Literal["refuse", "warn", "off"] = "refuse"
    """If a run would not fit into memory or on disk: refuse it, warn, or do not check. off also skips the trial step
    with a few samples that finds out."""


@dataclass
class LogConfig:
    every: Annotated[int, AtLeast(1)] | None = None
    """Steps between lines of the log; reading the device's numbers more often costs time. Default: 50, or fewer in a
    run of fewer than 1,000 steps, so that its curves have 20 points."""
    snapshots_every: Annotated[int, AtLeast(1)] | None = None
    """Steps between the pictures of what the network makes of a few samples. Default: about 20 times in the run, or
    less often if that would cost more than 1 % of the training."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the package tensorboard)."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also log to Weights & Biases (needs the package wandb). offline: files in the run folder, for
    `wandb sync`. online: to the server, with the key that `wandb login` saved."""
    mlflow: str | None = None
    """Also log to MLflow (needs the package mlflow-skinny): a folder, or the http(s) address of a server."""
    experiment: str | None = None
    """Name of the run's W&B project or MLflow experiment. Default: the project's name."""
    price_per_kwh: Annotated[float, AtLeast(0)] | None = None
    """Price of a kilowatt-hour, in any currency: summary.json then says what the energy of the training cost."""


@dataclass
class PredictConfig:
    """Settings of whole-record prediction; a project's section `predict` subclasses it."""

    views: tuple[str, ...] = ()
    """Test-time augmentation: average each prediction over these views of the record too, by their names (mirrors,
    turns). all: every view that the project declares. none: the record alone. Takes as many times longer as there are
    views. `runner PROJECT select` measures whether it is worth that."""


@dataclass
class RunConfig:
    """All settings of a run."""

    extensions: ClassVar[Mapping[str, type]] = {}
    """Sections of extensions, which follow those of the project, and their classes."""
    data: DataConfig = field(default_factory=DataConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    crop: CropConfig = field(default_factory=CropConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    log: LogConfig = field(default_factory=LogConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)

    def faults(self) -> Iterable[str]:
        """Yield a message for each combination of settings that cannot work, in a project's own class.

        The bounds of a single setting are at its field.
        """
        return ()

    def without_effect(self) -> Iterator[str]:
        """Yield a sentence for each setting that is not at its default and changes nothing beside the others."""
        train, default = self.train, TrainConfig()
        if train.momentum != default.momentum and train.optimizer != "sgd":
            yield f"train.momentum {train.momentum:g} has no effect: train.optimizer is {train.optimizer}, not sgd"
        if train.decay != default.decay and train.schedule != "wsd":
            yield f"train.decay {train.decay:g} has no effect: train.schedule is {train.schedule}, not wsd"
        yield from self.exchanges_without_effect(train.strategy)

    def exchanges_without_effect(self, strategy: str) -> Iterator[str]:
        """Yield such sentences about `exchange` with this `train.strategy`; of auto, with what it became."""
        exchange = self.exchange
        if strategy == "auto":  # it is known once there is a network
            return
        if exchange.shard_devices is not None and strategy != "hsdp":
            yield f"exchange.shard_devices has no effect: train.strategy is {strategy}, not hsdp"
        if exchange.gather != "float32" and strategy == "ddp":
            yield f"exchange.gather {exchange.gather} has no effect: train.strategy is ddp, which gathers none"
        if exchange.unused != "auto" and strategy != "ddp":
            yield f"exchange.unused {exchange.unused} has no effect: train.strategy is {strategy}, not ddp"
