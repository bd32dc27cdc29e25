"""What the capabilities promise each other: the types behind the hooks.

Nothing here imports a framework: `Tensors` maps names to the engine's own tensors (torch or Keras),
`Arrays` maps names to NumPy arrays on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from runner_core.engines.phases import Phases
    from runner_core.memory.footprint import Footprint
    from runner_core.project import AnyRecord, Decoded, Prepared
    from runner_core.setup import Data, Setup
    from runner_core.team import Place, Team

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array on the host."""
Arrays = dict[str, Array]
"""Arrays by name."""
Tensors = dict[str, Any]
"""The engine's own tensors (torch, Keras) by name."""
Json = Any
"""What JSON holds: text, numbers, booleans, None, lists, and mappings with text keys."""


# ---------------------------------------------------------------- crop


@dataclass(frozen=True)
class Box:
    """A region of a grid: `start` and `stop` per axis (voxels, half open) within `shape`.

    `crop` takes it out of an array whose leading axes are the grid; `restore` puts it back into a full
    array, so that a prediction returns to the grid it came from.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    shape: tuple[int, ...]

    def crop(self, array: Array) -> Array:
        """View of `array` inside the box; axes after the grid's are kept."""
        return array[tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))]

    def restore(self, array: Array, fill: float = 0) -> Array:
        """`array` (the box's shape, plus trailing axes) inside a grid of `shape`, `fill` elsewhere."""
        full = np.full(self.shape + array.shape[len(self.shape) :], fill, dtype=array.dtype)
        self.crop(full)[...] = array
        return full


class Cropper(Protocol):
    """Chooses the box of a record that is worth caching. Pure: the same array gives the same box."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Name, version and parameters: part of the cache's key."""
        ...

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        """`guide`: the array to look at, grid axes first; `spacing`: size of a voxel per grid axis (mm)."""
        ...


# ---------------------------------------------------------------- cache


class Pipeline(Protocol):
    """record → decode → crop → prepare, for one project under one set of settings."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything that changes prepared arrays: project, versions, settings of decode, crop, prepare."""
        ...

    def decode(self, record: AnyRecord) -> Decoded:
        """What the project's `decode` returns; files at URLs are fetched for it."""
        ...

    def __call__(self, record: AnyRecord) -> Prepared:
        """Decoded, cropped and prepared. Raises BadInput naming the file at fault."""
        ...


class StoredArray(Protocol):
    """One named array of every record, concatenated along the first axis where trailing shapes agree."""

    dtype: np.dtype[Any]
    shapes: Sequence[tuple[int, ...]]

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        """Array (or a region of it) of record number `record`; a read-only view where that is free."""
        ...

    def take(self, rows: Array, out: Array) -> None:
        """Gather rows (int64) of the concatenation into `out` (len(rows), *trailing), without copies between."""
        ...


class Store(Protocol):
    """Prepared arrays of every record, opened for reading. Picklable: a worker process opens it anew."""

    keys: Sequence[str]
    """The records' keys: record number n is `keys[n]`."""
    meta: Sequence[Mapping[str, Json]]
    """What `Decoded.meta` and the crop left of each record."""
    arrays: Mapping[str, StoredArray]
    """The prepared arrays by name."""
    device: bool
    """True when the user asked that the whole set live on the accelerator (`cache.mode: device`)."""
    identity: str
    """Digest of what the arrays were made of: the records' files, in order, and the pipeline's settings."""

    def close(self) -> None:
        """Let go of files and memory."""
        ...


class Streamed(Store, Protocol):
    """A store whose records are fetched and prepared ahead of their use; only the newest are kept.

    Every record has arrays of the same shapes. A record can also be read without `expect` and `usable`: the read then
    waits, and raises BadInput where the record is bad.
    """

    streamed: Literal[True]
    block: int
    """Records that may be in use around each other: about half of what is kept."""

    def begin(self, folder: Path) -> None:
        """A run with this folder begins, or goes on: bad records are written to, and replayed from, its
        bad_samples.jsonl. Called before the store goes to worker processes."""
        ...

    def expect(self, records: Array) -> None:
        """These records (int64) are used soon, in this order. Only queues them."""
        ...

    def usable(self, records: Array, positions: Array, epoch: int, among: Array) -> Array:
        """`records` (n,) int64 of the samples at `positions` (n,) int64 in `epoch`'s sequence, with each bad one
        replaced by one of `among`. Waits until all are there; they stay until the next call.

        Raises BadInput when too many are bad."""
        ...

    def counters(self) -> dict[str, float]:
        """What this process did since the last call: `files`, `bytes` and `retries` of its requests, and the
        `fetched_seconds` in which at least one was under way; of the records that batches wanted the `hits`, which
        were there, the `misses`, which were not, the `waited_seconds` for those and the `bad`, which were replaced."""
        ...


def is_streamed(store: Store) -> TypeGuard[Streamed]:
    return bool(getattr(store, "streamed", False))


@dataclass(frozen=True)
class CachePlan:
    """What a cache will take, computed before it is built."""

    mode: str
    records: int
    ready: int
    """Records that need no preparation because they are there already."""
    disk_bytes: int
    ram_bytes: int
    device_bytes: int
    folder: Path | None
    notes: tuple[str, ...] = ()


class Cache(Protocol):
    """Keeps prepared arrays: `plan` says what it will take, `open` builds what is missing and opens it."""

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        """What the cache of these records takes on disk, in RAM and on the device; writes nothing."""
        ...

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        """The store of these records, in their order; `say` tells the user what is being done.

        Raises OutOfSpace before anything is written when the plan does not fit, DataErrors when records
        cannot be prepared (all of them listed)."""
        ...


# ---------------------------------------------------------------- samples


class SampleSpec(NamedTuple):
    """Shape (without the batch axis) and dtype of one array of a sample."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Samples(Protocol):
    """The samples of one split: a pure function of (seed, epoch, position, index). Picklable."""

    @property
    def spec(self) -> Mapping[str, SampleSpec]:
        """The arrays of one sample by name; among them `record` (int64), the record's number in the store, where a
        metric or `on_device` asks for it."""
        ...

    def __len__(self) -> int:
        """Samples of an epoch that takes each once."""
        ...

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Write samples `indices` (int64) into `out`: per name an array (len(indices), *shape).

        `positions` (int64): their places in the epoch's sequence. What is random takes its generator from them
        (`sample_rng(seed, epoch, position, stream=1)`), so that a sample drawn twice in an epoch differs.
        """
        ...


@runtime_checkable
class StreamedSamples(Samples, Protocol):
    """Samples that know what they will need, and what it took. Those of `runner_core.samples` are, of any store; of one
    that is not streamed they say so by `streaming`, and are asked nothing of this."""

    @property
    def streaming(self) -> bool:
        """Are records fetched as they are used?"""
        ...

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """The epoch's sequence: `count` sample numbers (int64), in place of `sampling.order`."""
        ...

    @property
    def ahead(self) -> int:
        """Samples to come that it is good to know of."""
        ...

    def expect(self, indices: Array) -> None:
        """These samples will be filled soon, in this order. Does not wait."""
        ...

    def counters(self) -> dict[str, float]:
        """What filling took in this process since the last call: those of the store, and `replaced`, the samples that
        were taken of another record."""
        ...


# ---------------------------------------------------------------- precision


@dataclass(frozen=True)
class Device:
    """Where a run computes. `kind`: cpu, cuda; `memory_bytes`: of one device (the host's RAM for cpu)."""

    kind: str
    index: int = 0
    name: str = ""
    memory_bytes: int = 0
    bfloat16: bool = False
    tf32: bool = False
    note: str = ""
    """What the user should know about it: a GPU that the framework cannot see, say."""


@dataclass(frozen=True)
class Precision:
    """A precision policy as a value; each engine applies it.

    `compute`: dtype of matrix products and convolutions; `keep_float32`: names of submodules (prefixes) that
    stay float32; `loss_scaling`: float16 needs it. Parameters and optimizer state are always float32.
    """

    compute: Literal["float32", "tf32", "bfloat16", "float16"]
    keep_float32: tuple[str, ...] = ()
    reason: str = ""

    @property
    def mixed(self) -> bool:
        return self.compute in ("bfloat16", "float16")

    @property
    def loss_scaling(self) -> bool:
        return self.compute == "float16"


# ---------------------------------------------------------------- checkpoints


@dataclass
class State:
    """All that a checkpoint holds: `values` is JSON, `tensors` maps dotted names to the engine's tensors.

    The network's own are named `model.` and their name in it. All turn into arrays by `numpy.asarray`.
    """

    values: dict[str, Json]
    tensors: Tensors = field(default_factory=dict)


class CheckpointFormat(Protocol):
    """What is written into a checkpoint folder, and read back. The core owns everything around it."""

    def write(self, folder: Path, state: State) -> None:
        """Write `state` into `folder`, which is there and empty; the core renames it when all is written."""
        ...

    def read(self, folder: Path, device: str = "cpu") -> State:
        """What `write` wrote, bit for bit; tensors on `device` where the framework can read them there."""
        ...


# ---------------------------------------------------------------- metrics, health, sinks


class Metric(Protocol):
    """Accumulates on the device; `compute` is the only read, once an epoch."""

    def reset(self) -> None:
        """Forget everything: a validation begins."""
        ...

    def update(self, prediction: Any, batch: Tensors) -> None:
        """Add a batch. `prediction` is that of the project's `step`, `batch` what `on_device` returned. Must not wait
        for the device."""
        ...

    def compute(self) -> dict[str, float]:
        """Values by name. They do not depend on how the samples were cut into batches."""
        ...


@dataclass(frozen=True)
class Finding:
    """What a health rule or a data check found. `level`: note, warning, or error (stops the run, exit 3)."""

    rule: str
    level: Literal["note", "warning", "error"]
    message: str
    timed: bool = False
    """Does it follow from the clock (a loader too slow, an idle GPU)? Then the next run need not have it."""


@dataclass(frozen=True)
class HealthEvent:
    """What a rule sees. `facts` by `moment`; most of them are there only where they can be known:

    - start, before the first step of a new run: `strangers` (of the splits train and validation, keys of records of the
      other that their samples read);
    - first_step: `precision_asked` (str), `precision_seen` ({dtype: number of layers}; none where no layer was seen),
      `weights` (a number that is another once any bit of the weights is that are trained; None while the learning rate
      of all is 0);
    - log, at every train line, of the steps since the last: `loss`, one entry per loss term (by the names that
      `Project.least` and `Project.uninformed` use), `learning_rate`, `highest_rate` (of all groups of parameters),
      `gradient_norm` and `clipped` (the share of steps that were; when clipping); `pulls` (of each loss term whose
      gradient norm was measured: how often, and the largest), `detached` (terms of which the loss is made, but that
      have no gradient), `ignored` (of the voxels that `Project.ignored` marks: their `share`, the loss's largest
      gradient there as a share of the largest anywhere, `pull`, and the `metrics` that change with the prediction
      there), `untaught` (the `weights` that are trained and had no gradient in any of so many `looks`, by name, with
      how many numbers each is), these by one process alone. By the clock, for findings that are `timed`: `seconds`,
      `data_wait_share`, `gpu_busy` (0…1);
    - validation: the metrics, `weights`, `decision_min` and `decision_max` (extremes of `Project.decision` over the
      split), `decision_mark_min` and `decision_mark_max` (of a number for each sample, the same only where the whole
      decision is), `pulls` (of the terms that the project's `step` measures);
    - checkpoint, once in each start, for the first of a network as it was validated, and not to rules with a memory:
      `weights_differ` (names that are not the same in the network that it gives back), `prediction_differs` (the
      largest difference on a few samples, as a share of what the prediction spans), or `refused` (why it cannot be
      read);
    - end: those of the last validation.
    """

    moment: Literal["start", "first_step", "log", "validation", "checkpoint", "end"]
    step: int
    epoch: int
    facts: Mapping[str, Any]


class HealthRule(Protocol):
    """Watches a run, and says when it is not what it looks like.

    A rule that counts from event to event keeps what it counts in an attribute `memory`, a dict that JSON holds (text
    keys): it is in every checkpoint, by the rule's name, and a resumed run goes on with it. The past validations are
    replayed only to rules without one.
    """

    name: str
    """What findings and the log call it."""

    def observe(self, event: HealthEvent) -> Finding | None:
        """What is wrong now, if anything. Called at every event; keep it cheap."""
        ...


# ---------------------------------------------------------------- speed


@dataclass(frozen=True)
class Optimisation:
    """Something that makes a project fast, and the settings that do without it: what `runner P ablate` switches off.

    `off`: settings by dotted name; where they are what the run has anyway, there is nothing to switch off.
    """

    name: str
    off: Mapping[str, Json]
    part: Literal["data", "network", "loss"]
    """Which of the three it makes faster: bringing batches, the network, the loss."""
    about: str
    """What it does, and what is done without it, in one sentence."""
    same: bool = True
    """Does the network learn the same without it? Then the losses of both must agree."""


@dataclass(frozen=True)
class Fix:
    """A remedy that might make a run faster: what `profile` advises and `tune` tries."""

    name: str
    settings: Mapping[str, Json]
    """By dotted name."""
    why: str
    """What in the report speaks for it, in one sentence."""
    saves: float | None = None
    """Estimated share of the time of a sample that it saves (0…1); None: nobody knows before it is tried."""
    same: bool = True
    """Does every step learn the same? Not with another batch size."""


class Sink(Protocol):
    """A tracker. A sink that raises is dropped with one warning; it never stops training.

    It is made before the data are opened, so that what it lacks (a package, a key) is refused at once, and in a resumed
    run before the log is cut back: open files and connections at the first event. A run that is refused has none.
    """

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """Something happened after `step` optimizer steps. `values` by `kind`, most with `epoch`:

        - start: `steps`, `samples`, `precision` of a new run; nothing where a run goes on;
        - precision: `asked`, and what layers were `seen` to compute in, by dtype;
        - train: every `log.every` steps, the loss, its terms, the learning rate;
        - data: after train, where records are fetched as they are used: `bad`, samples until now that were taken of
          another record because theirs could not be read (bad_samples.jsonl lists them); under `timing`, what training
          needs and what the link gives;
        - losses: after train, where the project has measured since the last: `gradient_norm` by term, weighted, with
          respect to the prediction; under `timing`, `milliseconds` by term;
        - validation: the metrics, and whether they are the `best` so far;
        - watch: at the beginning and after a validation, what the project watches: `arrays` by name, as nested lists;
        - checkpoint: whether it is the `best`;
        - health: `rule`, `level`, `message` of a finding;
        - speed: the same under `timing`, of a finding that follows from the clock;
        - end: `status`.

        What varies from run to run (seconds, samples/s, memory) is in `values["timing"]`.
        """
        ...

    def figure(self, name: str, step: int, png: Path) -> None:
        """A picture was drawn: the file `png`, of the network after `step` steps."""
        ...

    def close(self) -> None:
        """The run has ended, whatever way: nothing is told after this."""
        ...


# ---------------------------------------------------------------- engines


class Progress(NamedTuple):
    """Where training stands: `step` optimizer steps done of `steps`, in `epoch` (0-based).

    In a compiled step (keras) `step` and `epoch` are 0-d float32 tensors: compute with them, do not branch on them.
    """

    step: int
    steps: int
    epoch: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


class Cost(NamedTuple):
    """What one term of the loss costs, and how hard it pulls."""

    gradient: Any
    """Norm of its weighted gradient with respect to the prediction: a number or a 0-d tensor."""
    seconds: Any
    """For the term and that gradient, the device's work included: a number or a 0-d tensor."""


class Step(NamedTuple):
    """What a project's `step` returns: the loss, its named terms (unweighted), and, where the project scores
    batches, the prediction that its metrics read.

    `costs`: what each term costs (seconds) and the norm of its weighted gradient with respect to the prediction, at
    the steps at which the project measures them; else empty. In torch `runner_core.engines.torch.costs.measured`
    measures a term. The newest since the last train line are logged, of accumulated micro-batches those of the last;
    in validation, and in Keras, they are not looked at.
    """

    loss: Any
    terms: Mapping[str, Any] = {}
    prediction: Any = None
    costs: Mapping[str, Cost] = {}


class HostBatch(NamedTuple):
    """A batch in a buffer of the ring. `release()` tells the ring that the buffer may be refilled."""

    arrays: Arrays
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    release: Callable[[], None]


Infer = Callable[[Arrays], Arrays]
"""Runs the trained network on host arrays of any batch length: `on_device`, then `Project.infer`, in evaluation
mode, under the run's precision; returns host arrays (float32 where the network computed in less)."""


class Trainer(Protocol):
    """A model under training. The core's loop calls it; everything framework-specific is behind it."""

    block: int
    """Steps that go to the device at once: 1 where each goes by itself."""
    strategy: str
    """single, or how several processes share a network: ddp, fsdp."""

    def train_step(self, batch: HostBatch, step: int) -> None:
        """One optimizer step (all its micro-batches); releases the batch. Does not wait for the device."""
        ...

    def read_log(self) -> dict[str, Any]:
        """Mean loss and terms since the last call, learning rate, gradient norm, `precision_seen`, and the `facts` that
        only health rules want to know (`HealthEvent`, log); waits for the device. `nonfinite_step` and `nonfinite_term`
        are there when a loss was NaN or infinite, `losses` (the values of that event) when the project's `step`
        returned costs."""
        ...

    def losses(self) -> list[float]:
        """The loss of each step since the last `read_log`; waits for the device. Only measuring asks for it."""
        ...

    def notes(self) -> list[str]:
        """What the engine has to tell the user since the last call (memory that ran out, say)."""
        ...

    def checksum(self) -> int | None:
        """Another number once any bit of the weights that are trained is another; None while the learning rate of all
        is 0. Waits for the device."""
        ...

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Metrics and mean loss over the split, with EMA weights where the run keeps them."""
        ...

    def watch(self) -> Arrays:
        """What `Project.watch` gives, with EMA weights where the run keeps them; copies on the host."""
        return {}

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """What `Project.snapshots` draws of these host arrays (a batch of samples), with EMA weights where the run
        keeps them, in the first of several processes; nothing that training goes by changes. Raises BadInput for what
        are no pictures, Unhealthy when a loss or a weight is not finite."""
        return {}

    def state(self) -> State:
        """All that continues training exactly. Raises Unhealthy when a loss or a weight is not finite: no
        checkpoint ever holds NaN."""
        ...

    def load_state(self, state: State) -> None:
        """Go on from a checkpoint, as if it had never been left."""
        ...

    def recalled(self, setup: Setup, state: State, arrays: Arrays) -> dict[str, Any] | None:
        """`HealthEvent`'s facts of a checkpoint: the network that `Engine.load` makes of `state` beside the one that
        validation saw, on these samples. `setup` has a project of its own. None where memory does not suffice for both;
        training does not notice."""
        ...

    def phases(self) -> Phases | None:
        """What takes this trainer's steps apart, for `runner P profile`; None: nothing can."""
        return None

    def idle(self) -> bool:
        """True when the device has nothing queued, so that waiting for a batch now costs time (always on a CPU)."""
        ...

    def footprint(self, arrays: Arrays) -> Footprint:
        """What training takes of memory, found out before the first step. `arrays`: a few samples in host memory, which
        an engine may try. Nothing that training goes by changes."""
        ...

    def peak_memory(self) -> int:
        """Bytes of device memory that were in use at most; 0 where the host is the device."""
        ...


class Trained(NamedTuple):
    """The network of a checkpoint. `statistics`: what the project's `fit` learned from its training records."""

    network: Any
    infer: Infer
    statistics: dict[str, Any]


class Engine(Protocol):
    """A framework: makes trainers and predictors of a project's network.

    Before it calls the project's `model` it sets `Project.statistics`: to those of the data that are trained on, or to
    those that the checkpoint holds.
    """

    name: str
    """torch, keras: for messages and summaries."""

    def device(self) -> Device:
        """Where `train.device` says to compute; BadInput when that is not there."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Host memory that copies to the device fast (page-locked on CUDA)."""
        ...

    def join(self, place: Place) -> Team:
        """Meet the other processes of a training, each of which calls this first; waits for all. BadInput where there
        is no device for each."""
        ...

    def pin(self, memory: Array) -> None:
        """Page-lock memory that is there already (uint8, shared with worker processes) where copies gain by it."""
        ...

    def trainer(self, setup: Setup, data: Data, steps: int) -> Trainer:
        """A fresh model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`."""
        ...

    def load(self, setup: Setup, state: State) -> Trained:
        """The network of a checkpoint (EMA weights where there are some), ready to predict."""
        ...

    def untrained(self, setup: Setup, state: State) -> Trained:
        """The network as it was before the first step of the run whose checkpoint this is, made anew from its seed."""
        ...

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Write the network of a checkpoint for use without runner: as `Project.export` does, else the engine's
        own format (weights and a JSON description); the files written."""
        ...

    def versions(self) -> dict[str, str]:
        """Versions of the framework and of what it computes with, for summaries and checkpoints."""
        ...
