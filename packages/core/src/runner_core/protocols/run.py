"""What a run is computed in, keeps, measures, watches and tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from runner_core.protocols.values import Json, Tensors

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
