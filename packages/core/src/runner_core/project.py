"""What a project is: one class, in the order in which data flows through it.

Subclass `Project` and write what has no default: `Config`, `presets`, `records`, `decode`, `prepare`, `samples`,
`model`, `step`, `phantom`. Everything else has a working default. The module that holds the class must import no
framework at its top: worker processes that build the cache, `runner P config` and `--help` import it, and each
would wait seconds for torch. Import the framework inside the methods that need it.

The methods from `model` to `after_step` receive the tensors of the project's own framework; the rest is NumPy.

With Keras they are traced once and compiled: write them with `keras.ops`, without Python branches on tensors. The
`model` that `step` and `infer` receive is the network bound to training or to evaluation: call it without `training`,
anything else of it (its layers, say) can be reached through it.
Random numbers come from layers, from `rng` or from `keras.random`: what `tf.random` draws is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol

import numpy as np
from typing_extensions import TypeVar

from runner_core.config import RunConfig
from runner_core.location import Location, Url
from runner_core.protocols import (
    Array,
    Arrays,
    Finding,
    Infer,
    Json,
    Metric,
    Optimisation,
    Precision,
    Progress,
    Samples,
    Step,
    Store,
    Tensors,
)

if TYPE_CHECKING:
    from runner_core.pipeline import RecordPipeline

Place_co = TypeVar("Place_co", bound=Location, default=Path, covariant=True)


@dataclass(frozen=True)
class Record(Generic[Place_co]):
    """One stored item: a core, a scan, a patient, a volume, a field.

    `key` is unique in the data set; `group` (patient, scroll, plate) is never cut by a split; `files` maps roles
    ("image", "mask") to files or folders; `split`, when the data set's own folders say it: train, validation or
    test.

    The files of a `Record` are on this machine; those of a `Record[Location]`, which a project that is `remote` may
    find, at URLs too: before a method of the project reads them, they have been fetched.
    """

    key: str
    group: str
    files: Mapping[str, Place_co]
    split: str | None = None


AnyRecord = Record[Any]
"""With its files wherever they are."""


def at_url(record: AnyRecord) -> bool:
    """Is any file of the record at a URL?"""
    return any(isinstance(place, Url) for place in record.files.values())


@dataclass(frozen=True)
class Original:
    """What a file itself holds, where `decode` gives it in another grid: its values, the size of a voxel (mm) per axis,
    and the type in which the file has them (as NumPy names it), where that is not the array's own."""

    array: Array
    spacing: tuple[float, ...]
    dtype: str = ""


@dataclass
class Decoded:
    """A record read from its files, before crop and prepare.

    The leading `len(spacing)` axes of every array in `arrays` are the grid that the cropper may cut. The first of them
    is the image: by it `check` knows copies. `guide` names the array that the cropper looks at. `meta` is JSON and is
    kept with the prepared arrays (an affine, an original shape: whatever brings a prediction back).
    """

    arrays: Arrays
    spacing: tuple[float, ...]
    guide: str
    meta: dict[str, Json] = field(default_factory=dict)
    original: Original | None = None
    """Of the first of `arrays`, where it was resampled: what `runner P check` tells. Nothing else looks at it."""


@dataclass
class Prepared:
    """What the cache stores of a record. `meta["box"]` holds the crop box as {start, stop, shape}."""

    arrays: Arrays
    meta: dict[str, Json]


@dataclass(frozen=True)
class Table:
    """A table that `evaluate` shows beside the scores, and writes to scores-NAME.csv. NaN: a cell without a value."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True)
class Predicted:
    """A record and what was predicted of it, for `Project.judge`."""

    record: AnyRecord
    prediction: Any
    baseline: Any = None
    """The trivial method's prediction; None where there is none."""
    untrained: Any = None
    """That of the network before its first step, where `Project.untrained` asks for it."""
    unseen: bool = True
    """Was neither the record nor another one of its group trained on?"""


@dataclass(frozen=True)
class Judgement:
    """What a set of records says together, from `Project.judge`. Scores by name, NaN where there is none.

    They join the means of `Project.score` in tables, summary and scores.json. Where `score` gives none, the first of
    `scores` is the headline, for which larger or smaller is better as for `Project.monitor`.
    """

    scores: Mapping[str, float]
    baseline: Mapping[str, float] = field(default_factory=dict)
    """The same of the trivial method (`Project.baseline`)."""
    further: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The same of other methods by their names ("untrained network"), shown side by side. A trained network that is no
    better than one of them, or than the trivial method, by the headline, is warned of."""
    tables: Sequence[Table] = ()
    """After those of `Project.tables`."""
    pictures: Mapping[str, Array] = field(default_factory=dict)
    """Pictures (H, W, 3) uint8 by name, drawn as NAME.png."""


@dataclass(frozen=True)
class Annotation:
    """How a record is labelled, for `runner P check`: voxels (pixels) by class, those that it lacks with 0."""

    counts: Mapping[str, int]
    ignored: int | None = None
    """Voxels at which neither loss nor metric looks. None: in this project they look at all of them."""
    voxels: int | None = None
    """How many they look at, where that is not the sum of `counts`: classes overlap, or leave some out."""

    @property
    def annotated(self) -> int:
        """Voxels that are not ignored."""
        return sum(self.counts.values()) if self.voxels is None else self.voxels


@dataclass
class NoOptions:
    """A project whose `predict` command has no flags of its own."""


Statistics = dict[str, Any]
"""What `fit` learned from the training records: JSON values and NumPy arrays; travels with every checkpoint."""


class Project(Protocol):
    """A model, a dataset and the settings under which it trains fastest, for one framework."""

    name: ClassVar[str]
    """Its name on the command line (the same as the entry point's)."""
    framework: ClassVar[Literal["torch", "keras"]]
    """What `model`, `step` and all between them are written in; it chooses the engine."""
    Config: ClassVar[type[RunConfig]]
    """Its settings: `RunConfig`, or a subclass with sections of its own. The text below each field is its help."""
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]]
    """Named defaults; `default` and `demo` (the phantom, about a minute on 2 cores) must be there."""
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    """The validation metric that chooses the best checkpoint, and its direction."""
    least: ClassVar[Mapping[str, float]] = {}
    """What terms of the loss cannot be below, by name: 0 of a cross-entropy, of Dice, of a distance. A run in which one
    is, for its sign or its labels are wrong, is stopped."""
    splittable: ClassVar[bool] = False
    """May a batch be cut into micro-batches without changing the objective?

    Not with BatchNorm, nor with losses over the batch. Only where it may can `train.accumulate` be set, and is the
    micro-batch halved, instead of the run stopped, when memory runs out."""
    recompute: ClassVar[str] = ""
    """The setting (on or off) by which the network keeps fewer activations and computes them again for the gradient, by
    dotted name: for advice where memory is short."""
    faster_with: ClassVar[tuple[str, ...]] = ()
    """What was measured to make it faster on a GPU ("compile", "channels_last"); `auto` settings follow it."""
    optimisations: ClassVar[tuple[Optimisation, ...]] = ()
    """What makes it fast besides what the core does for all, for `runner P ablate`."""
    remote: ClassVar[bool] = False
    """May the data be at a URL? `records` and `inputs` are then given a `Url` where the user named one."""
    of_data: ClassVar[tuple[str, ...]] = ()
    """Settings that say what the data are (a table of the files, a pattern of their names), not what the network is, by
    dotted name: a trained network may be used with others, and with other data the run's are left out."""
    samples_setting: ClassVar[str] = ""
    """The setting that says how many samples an epoch takes of a record, for advice where fetching them is too slow."""
    prepare_version: ClassVar[int] = 1
    """Raise it whenever `decode` or `prepare` changes what it returns: caches are then built anew."""
    phantom_version: ClassVar[int] = 1
    """Raise it whenever `phantom` writes something else: phantoms are kept between runs."""
    crop: ClassVar[str] = "none"
    """The cropper that `crop.mode: auto` means for this project."""
    shown: ClassVar[tuple[str, ...]] = ()
    """The scores that tables on screen and in the report have room for; none named: all. Files hold every one."""
    snapshot_samples: ClassVar[int] = 0
    """Samples in the batch that `snapshots` draws; 0: nothing is drawn."""
    untrained: ClassVar[bool] = False
    """Does `judge` want predictions of the network before its first step, too? Each record is then predicted twice."""
    PredictOptions: ClassVar[type] = NoOptions
    """Dataclass of the `predict` command's extra flags, all with defaults."""
    predict_options: Any
    """An instance of `PredictOptions`: what the user chose while `predict` and `write` run, else the defaults."""
    config: RunConfig
    """The run's settings, an instance of `Config`."""
    statistics: Statistics
    """What `fit` learned from the training records, from before `model` is called: in a training, and of the run's own
    in every command that uses its network. Empty before."""
    pipeline: RecordPipeline
    """Decodes and crops a record as it was for training (`pipeline.decode_cropped(record)`), for `predict`."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.predict_options = self.PredictOptions()
        self.statistics = {}

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Any) -> Sequence[AnyRecord]:
        """Every record below `root` (a Path; a Url too where the project is `remote`), without reading more than names
        and headers.

        Raises BadInput naming the folder and the layout that was looked for when there is none.
        """
        ...

    def decode(self, record: Record) -> Decoded:
        """Read a record's files. Raises BadInput naming the file and what is wrong with it.

        Records without labels (for `predict`) lack the label's role in `record.files`: leave that array out.
        """
        ...

    def prepare(self, decoded: Decoded) -> Arrays:
        """That record alone → the arrays to store, small and ready to gather. Pure: no statistics of other records."""
        ...

    def prepare_settings(self) -> Mapping[str, Json]:
        """The settings that `decode` and `prepare` read: part of the cache's key."""
        return {}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """Statistics of the training records (numbers in `store`): z-scores, class weights."""
        return {}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """What the model sees of these records. `runner_core.samples` has the usual ones (rows, patches).

        `records`: their numbers in `store`; `split`: train or validation.
        """
        ...

    def augment(self, sample: Arrays, rng: np.random.Generator) -> None:
        """Change one training sample in place, on the host. Prefer `on_device`: this runs Python per sample."""
        return None

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Stored dtypes → what the model reads: decode bits, scale, warp; on the device, whole batch at once.

        `rng`: the engine's generator (torch.Generator on the device; for keras a `keras.random.SeedGenerator`),
        or None in validation and inference: then nothing random may happen. `batch["record"]` (int64) holds the
        record number of each sample in the store; it is absent in inference.

        The first axis of every tensor is the batch's, before and after (0-d tensors apart), so that a batch can be
        cut into micro-batches: constants belong in `statistics` or the model.
        """
        return batch

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        """A fresh network in float32 (torch.nn.Module or keras.Model)."""
        ...

    def initialise(self, model: Any) -> None:
        """Weights that a training begins with besides those that `model` gives (pretrained ones): put them into the
        network. Not called of a network that is given a checkpoint's weights to predict with."""
        return None

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        """Loss, its named terms and the prediction of a batch, for training and validation alike.

        With several devices the batch is one device's, and so should be a loss that is a mean over samples; where it
        looks at the whole batch, `runner_core.engines.torch.ranks` gathers that. `model` is the network itself.

        In validation `progress` says that training is over (`fraction` is 1), at whatever step it takes place, so
        that losses whose weights change with progress can be compared between validations.
        """
        ...

    def uninformed(self) -> Mapping[str, float]:
        """What the loss and its terms are, by name (`loss` is the whole), for a network that answers the same
        whatever it sees: ln K, ln 2. A run in which all that are named stay there is warned of."""
        return {}

    def ignored(self, batch: Tensors) -> Any | None:
        """Where neither loss nor metrics may look: True in a boolean tensor that can be broadcast to the prediction
        of `step`; None: they look everywhere. `batch` is what `on_device` returned. A health rule checks, in a few
        steps, that the loss has no gradient there."""
        return None

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """What prediction needs of a batch; default: {"prediction": model(batch["image"])}."""
        return {"prediction": model(batch["image"])}

    def decision(self, prediction: Any) -> Any:
        """The output as its user sees it (class, mask, dose): a run whose decision never varies is stopped."""
        return prediction

    def parameter_groups(self, model: Any) -> Any:
        """Parameter groups for the optimizer; default: all trainable parameters in one."""
        return None

    def optimizer(self, groups: Any) -> Any:
        """The optimizer over `groups`; default None: AdamW with `train.learning_rate` and `train.weight_decay`."""
        return None

    def schedule(self, progress: Progress) -> float | None:
        """Factor on the learning rate; default None: `train.warmup` and `train.schedule`."""
        return None

    def adjust(self, groups: Sequence[dict[str, Any]], progress: Progress) -> None:
        """Set what else changes of the optimizer's groups over the training: a weight decay, a group that waits. Called
        before each step, after the learning rates (`lr`) were set; a function of `progress` alone. PyTorch only."""
        return None

    def after_step(self, model: Any, progress: Progress) -> None:
        """Called after each optimizer step: for an EMA teacher, say.

        In float16 also after a step that changed nothing, because a gradient overflowed.
        """
        return None

    def shard_units(self, model: Any) -> Sequence[Any]:
        """Submodules whose weights sharded training (`train.strategy` fsdp) gathers one by one, the innermost first:
        the blocks of a transformer; default: none, and all weights are gathered for the whole step. Each is called as
        a module, not by a method of its own."""
        return ()

    def metrics(self) -> Sequence[Metric]:
        """Metrics of the validation, accumulated on the device; `loss` and its terms are always there."""
        return ()

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        """The same metrics by their definition, in NumPy: the contract test compares them. Nothing else calls this.

        `prediction` and `batch` are what `step` returned and was given, as arrays: all validation samples at once.
        """
        raise _not_written(self, "plain_metrics")

    def watch(self, model: Any) -> Mapping[str, Array]:
        """Small arrays of the network that are worth seeing over the training: positions of filters, temperatures.

        NumPy, finite, at most 10,000 numbers: the log keeps them from the beginning and every validation. `model`
        is the network itself as validation sees it, in evaluation mode; with torch, without gradients.
        """
        return {}

    def pictures(self, watched: Sequence[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
        """Pictures (H, W, 3) uint8 by name, drawn once at the end of training into figures/NAME.png.

        `watched`: (optimizer step, what `watch` gave, as float64) at the run's beginning and at every validation,
        however often it was resumed.
        """
        return {}

    def snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        """Pictures (H, W, 3) uint8 by name of what the network makes of a few samples, drawn while it trains: at the
        beginning and every `log.snapshots_every` steps, into figures/NAME-STEP.png and every tracker.

        `batch`: always the same `snapshot_samples` samples, the first of the validation split (of the training split
        where nothing validates), after `on_device` without `rng`. `model` as validation sees it, in evaluation mode:
        the network, with torch without gradients; with Keras bound to evaluation, and not compiled. Training does not
        notice, whatever is drawn here from the framework's generators.
        """
        return {}

    # ------------------------------------------------------------ whole records

    def inputs(self, path: Any) -> Sequence[AnyRecord]:
        """What `predict` is given (a file or a folder: a Path; a Url too where the project is `remote`) → records,
        labels not needed; default: `records`."""
        return self.records(path)

    def predict(self, record: Record, infer: Infer) -> Any:
        """Whole-record prediction in the record's own grid.

        `infer` runs the network on arrays as the cache would hold them, in batches of any length; it must give the
        same for the same record. What is returned, `write`, `score`, `remarks` and `figure` are given.
        """
        raise _not_written(self, "predict")

    def write(self, record: Record, prediction: Any, out: Path) -> Sequence[Path]:
        """Write a prediction in the field's format into folder `out`; the files written."""
        raise _not_written(self, "write")

    def collect(self, files: Sequence[Path], out: Path) -> Sequence[Path]:
        """Make fewer files, in folder `out`, of all that `write` wrote in a `predict`: one table of all records, say.
        Those written; `files` are removed then. A project that leaves this method out keeps them."""
        return files

    def grid(self, file: Path) -> Json:
        """Shape and placement (affine, spacing) of a file of a record, or of one that `write` wrote: JSON, or None
        of files that have none. The contract test compares the two. Nothing else calls this."""
        return None

    def remarks(self, record: Record, prediction: Any) -> Sequence[Finding]:
        """Notes and warnings for the user of a prediction: it is empty, absurd, or cannot be scored in part."""
        return ()

    def score(self, record: Record, prediction: Any) -> Mapping[str, float]:
        """Whole-record scores against the record's own labels; NaN where there is nothing to score."""
        return {}

    def pooled(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Scores over a set of records that are not the mean over those with a finite one: they replace such means."""
        return {}

    def tables(self, scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> Sequence[Table]:
        """Further tables over a set of records (by organ, by class), with the trivial method's scores, if any."""
        return ()

    def baseline(self, record: Record, statistics: Statistics) -> Any | None:
        """A trivial method's prediction (Otsu, the mean dose that `fit` found), scored beside the network's."""
        return None

    def scored(self, sides: Mapping[str, Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
        """The records that the end of training and `evaluate` score unless told otherwise; default: the validation's.

        `sides`: the records of train, validation and test as this run was split.
        """
        return sides.get("validation", ())

    def judge(self, predicted: Sequence[Predicted]) -> Judgement | None:
        """Scores of a set that need all its predictions at once: k-NN, a linear probe; None where it has too few.

        A project that has this method has the predictions of all scored records kept in memory: embeddings, say, not
        volumes. What is random must be seeded.
        """
        return None

    def figure(self, record: Record, prediction: Any) -> Array | None:
        """A picture (H, W, 3) uint8 of the record with its prediction (and truth, if labelled)."""
        return None

    def check(self, record: Record) -> Sequence[Finding]:
        """Faults of one record that decoding does not refuse; `runner P check` lists them all."""
        return ()

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """How a record is labelled: `runner P check` shows class balance and annotated share. None: it has no labels,
        or none that are classes."""
        return None

    def check_set(self, records: Sequence[AnyRecord]) -> Sequence[Finding]:
        """Faults that no record shows alone: axes that differ, a class that nobody has. Cheap, for it reads them all:
        headers, labels. `runner P check` lists them, an error by its exit code too."""
        return ()

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        """Write the network for use without runner; the files written. Default: the engine's own format."""
        return ()

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        """Write a generated data set in the project's real file formats.

        Two groups or more, so that it can be split; small enough to train on in a minute with the preset `demo`. All
        that is random comes from `rng`: the same files each time.
        """
        ...


def _not_written(project: Project, method: str) -> Exception:
    from runner_core._errors import BadInput

    return BadInput(f"project {project.name} cannot do this: it has no `{method}` method")


def overrides(project: Project, method: str) -> bool:
    """Does the project have its own `method`, rather than the default one?"""
    return getattr(type(project), method) is not getattr(Project, method)
