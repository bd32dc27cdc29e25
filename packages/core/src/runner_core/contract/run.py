"""Devices, precision, checkpoints, metrics, health rules, speed and sinks of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract.values import Arrays, Json, Tensors

# ---------------------------------------------------------------- precision


@dataclass(frozen=True)
class Device:
    """The device that a run computes on.

    `kind` is cpu, or what the framework calls its GPUs: cuda (AMD's too), xpu, mps. `memory_bytes` is the memory of
    one device (the host's RAM for cpu).
    """

    kind: str
    index: int = 0
    count: int = 1
    """Number of such devices that this process may use, itself included."""
    name: str = ""
    memory_bytes: int = 0
    bfloat16: bool = False
    tf32: bool = False
    matrix_bfloat16: bool = False
    """True for a CPU with instructions for products of bfloat16 matrices (Intel's AMX)."""
    note: str = ""
    """A message to the user about it: a GPU that the framework cannot see, for example."""


@dataclass(frozen=True)
class Precision:
    """A precision policy as a value; each engine applies it.

    `compute`: dtype of matrix products and convolutions; `keep_float32`: names of submodules (prefixes) that stay
    float32; `loss_scaling`: float16 needs it. Parameters and optimizer state are always float32.
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
    """Content of a checkpoint: `values` is JSON, `tensors` maps dotted names to the engine's tensors.

    The network's own tensors are named `model.` plus their name in the network. `numpy.asarray` turns all into arrays.
    """

    values: dict[str, Json]
    tensors: Tensors = field(default_factory=dict)
    divided: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of the tensors of which `tensors` holds only this process's rows, by name."""
    parts: int | None = None
    """Number of processes, the first ones, that hold such rows; the others hold copies. None: all hold rows."""


class CheckpointFormat(Protocol):
    """Writes the content of a checkpoint folder and reads it back; the core does everything around it."""

    def write(self, folder: Path, state: State) -> None:
        """Write `state` into `folder`, which exists and is empty; the core renames it when all is written."""
        ...

    def read(self, folder: Path, device: str = "cpu") -> State:
        """Return the state that `write` wrote, bit for bit; on `device` if the framework can read tensors there."""
        ...


@runtime_checkable
class DividedFormat(Protocol):
    """A `CheckpointFormat` with which each of several processes can write its rows of divided tensors.

    Without it, the first process gathers whole tensors and writes them alone.
    """

    def write_part(self, folder: Path, state: State, number: int, count: int) -> Sequence[Path]:
        """Write what process `number` of `count` holds, and return the files; the others write into the same folder.

        Only the first has values and undivided tensors. `read` returns whole tensors.
        """
        ...

    def read_rows(self, folder: Path) -> State:
        """Return the state as `read` does, except that `Trainer.load_state` reads its rows of divided tensors later."""
        ...


# ---------------------------------------------------------------- metrics, health, sinks


class Metric(Protocol):
    """Accumulates on the device; `compute` is the only read, once an epoch."""

    def reset(self) -> None:
        """Forget everything: a validation begins."""
        ...

    def update(self, prediction: Any, batch: Tensors) -> None:
        """Add a batch; must not wait for the device.

        `prediction` is the prediction of the project's `step`, `batch` the result of `on_device`.
        """
        ...

    def compute(self) -> dict[str, float]:
        """Return values by name. They do not depend on how the samples were cut into batches."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """A `Metric` whose parts of several processes can be joined: each process then validates only its share.

    One metric without these two makes every process validate the whole split.
    """

    def state(self) -> Arrays:
        """Return what was added since `reset`, by name; waits for the device. Empty if nothing was."""
        ...

    def merge(self, states: Sequence[Arrays]) -> None:
        """Replace what was added by these states of all processes together, in any order."""
        ...


def added(states: Sequence[Arrays]) -> Arrays:
    """Return the sums of states of the same names, for metrics that only count or add; empty states are left out."""
    names = dict.fromkeys(name for state in states for name in state)
    return {name: np.sum([state[name] for state in states if name in state], axis=0) for name in names}


@dataclass(frozen=True)
class Finding:
    """Result of a health rule or a data check. `level`: note, warning, or error (stops the run, exit 3)."""

    rule: str
    level: Literal["note", "warning", "error"]
    message: str
    timed: bool = False
    """True if the finding follows from the clock or the machine (a slow loader, a full disk); the next run may lack
    it."""


LEFT_OUT = "left out"
"""Rule of the findings about data that exist but are not used; a training shows these notes too."""
_collected: ContextVar[list[Finding] | None] = ContextVar("left_out", default=None)


def leave_out(text: str, level: Literal["note", "warning"] = "note") -> None:
    """Say that `records` or `inputs` found something but did not take it, and why: one line.

    `check`, `predict` and the start of a training show the line; other commands drop it. Use the level "warning" if the
    user should probably mend the data.
    """
    if (found := _collected.get()) is not None:
        found.append(Finding(LEFT_OUT, level, text))


@contextmanager
def collect_left_out() -> Iterator[list[Finding]]:
    """Collect what `leave_out` is given in this block.

    A block within another keeps its own lines: a project may look through files for another purpose without a word.
    """
    found: list[Finding] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


@dataclass(frozen=True)
class HealthEvent:
    """A moment of a run. Which `facts` it has depends on `moment`; most are absent where they cannot be known.

    start (before the first step of a new run):
      - `leaked_records`: for the splits train and validation, keys of records of the other split that its samples read.

    first_step:
      - `precision_asked` (str), `precision_seen` ({dtype: number of layers}; empty if no layer was seen).
      - `weights`: a checksum that changes with any bit of the trained weights; None while every learning rate is 0.

    log (at every train line, about the steps since the last one):
      - `loss`, and each loss term by the name that `Health.lower_bounds` and `Health.chance_losses` use.
      - `learning_rate`: the highest of all parameter groups; `learning_rate_lowest` where they differ.
      - `gradient_norm`; `clipped`: the share of steps that were clipped, if gradients are clipped.
      - `gradient_norms`: for each loss term whose gradient was measured, how often, and the largest norm.
      - `detached`: terms that the loss is made of but that have no gradient.
      - `ignored`: of the voxels that `Health.ignored` marks: their `share`; `gradient`, the largest there
        as a share of the largest anywhere; and the `metrics` that change with the prediction there.
      - `weights_without_gradient`: the trained `weights` that had no gradient in any of so many `looks`, by name, with
        how many numbers each has. These four are known in the first process only.
      - From the clock, for findings that are `timed`: `seconds`, `data_wait_share`, `gpu_busy` (0…1)
        and the GPU's other numbers (`gpu_watts`, `gpu_celsius`, …).

    validation:
      - the metrics, and `weights`.
      - `decision_min` and `decision_max`: extremes of `Health.decision` over the split; `decision_mark_min` and
        `decision_mark_max`: those of one number per sample, equal only if the whole decision is.
      - `gradient_norms`: as in the log lines since the last validation.

    checkpoint (once in each start, for the first checkpoint of a validated network; rules with a memory do not
    get it):
      - `weights_differ`: names that the loaded network does not give back equal; `prediction_differs`: the largest
        difference on a few samples, as a share of the prediction's range; or `refused`: why it cannot be read.

    end: the facts of the last validation.
    """

    moment: Literal["start", "first_step", "log", "validation", "checkpoint", "end"]
    step: int
    epoch: int
    facts: Mapping[str, Any]


class HealthRule(Protocol):
    """Watches a run and reports when it only looks healthy.

    A rule that counts from event to event keeps its counts in an attribute `memory`, a dict that JSON can hold (text
    keys). Every checkpoint saves it by the rule's name, and a resumed run goes on with it. Past validations are
    replayed only to rules without a `memory`.
    """

    name: str
    """Name in findings and in the log."""

    def observe(self, event: HealthEvent) -> Finding | None:
        """Return what is wrong now, if anything. Called at every event; keep it cheap."""
        ...


# ---------------------------------------------------------------- speed


@dataclass(frozen=True)
class Remedy:
    """Something that makes training faster, with the settings that apply it or the settings that do without it.

    `profile` advises remedies that have `settings`, and `tune` tries them. `ablate` measures those that have `off`: a
    project lists what makes it fast in `optimisations`.
    """

    name: str
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings that apply it, by dotted name."""
    why: str = ""
    """One sentence: the evidence for it in the profile; of an optimisation, what it does and what happens without."""
    saves: float | None = None
    """Estimated share of a sample's time that it saves (0…1); None: unknown before it is tried."""
    same: bool = True
    """True if the network learns the same with it and without it; then losses must agree. Another batch size does
    not."""
    off: Mapping[str, Json] = field(default_factory=dict)
    """Settings that do without it, by dotted name. If the run has these values anyway, nothing is switched off."""
    plain: Mapping[str, Json] = field(default_factory=dict)
    """Of an optimisation by kernels of its own: settings under which the framework's plain operations compute the same
    gradients. A training and `verify-kernels` compare its kernels with these."""
    part: Literal["data", "network", "loss", ""] = ""
    """The part that an optimisation makes faster: bringing batches (data), the network, or the loss."""


class Sink(Protocol):
    """A tracker. A sink that raises is dropped with one warning; it never stops training.

    Sinks are made before the data are opened, so that a missing package or key is refused at once. In a resumed run
    they are made before the log is cut back. Open files and connections at the first event: a run that is refused has
    none.
    """

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """Receive an event after `step` optimizer steps.

        `values` depend on `kind`; most include `epoch`:

        - start: `steps`, `samples`, `precision` of a new run; nothing in a resumed run;
        - precision: `asked`, and the dtypes that layers were `seen` to compute in;
        - train: every `log.every` steps, the loss, its terms, the learning rate;
        - data: after train, if records are fetched as they are used: `bad`, the number of samples until now that were
          taken from another record because theirs could not be read (bad_samples.jsonl lists them); under `timing`, the
          data rate that training needs and the rate of the link;
        - losses: after train, if gradients were measured since the last (in the steps 1 … 5, 10, 20, 50, 100, …; in
          torch also in the first five steps of a term that begins late): `gradient_norm`, the largest norm of each
          term's unweighted gradient at the network's output;
        - validation: the metrics, and whether they are the `best` so far;
        - watch: at the beginning and after a validation, the arrays of `Pictures.watch`: `arrays` by name, as nested
          lists;
        - checkpoint: whether it is the `best`;
        - health: `rule`, `level`, `message` of a finding;
        - speed: the same under `timing`, for a finding that follows from the clock;
        - end: `status`.

        Values that vary from run to run (seconds, samples/s, memory) are in `values["timing"]`.
        """
        ...

    def figure(self, name: str, step: int, png: Path) -> None:
        """Receive a picture: the file `png`, drawn of the network after `step` steps."""
        ...

    def close(self) -> None:
        """Close the sink: the run has ended, for whatever reason, and no event follows."""
        ...


def matches(precision: Precision, seen: dict[str, int]) -> bool:
    """Return whether all observed layers computed in the dtype that the policy asks for.

    `seen` maps dtype names ("bfloat16", "torch.bfloat16") to numbers of layers, without those of `keep_float32`. tf32
    layers return float32.

    >>> matches(Precision("bfloat16"), {"torch.bfloat16": 9})
    True
    >>> matches(Precision("bfloat16"), {"torch.bfloat16": 9, "torch.float32": 1})
    False
    """
    expected = "float32" if precision.compute == "tf32" else precision.compute
    return all(dtype.rpartition(".")[2] == expected for dtype in seen)


class Damaged(BadInput):
    """A checkpoint folder is torn or altered; the message says which file."""


class OtherWeights(BadInput):
    """Weights that do not fit the network."""


def why(error: Exception) -> str:
    """Return the error's statement about a file's content."""
    if isinstance(error, KeyError):
        return f"it lacks `{error.args[0]}`"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def remedy(path: Path) -> str:
    """Return advice about a damaged checkpoint."""
    older = [p for p in path.parent.glob("step-*") if p.name < path.name]
    if older:
        return "Delete this checkpoint's folder to go on from the one before it"
    return "There is no checkpoint before it: start a new run"
