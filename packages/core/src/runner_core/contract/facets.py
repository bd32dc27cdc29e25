"""Facets: small frozen objects in which a project declares what few projects need.

`Project.dataset` is a `DataSet`. The methods `learning`, `health`, `checks`, `combining`, `judging`, `pictures` and
`standalone` of `Project` return the others. A field that a project leaves out has the core's behaviour, so a project
names only what it needs:

    def learning(self) -> Learning:
        return Learning(splittable=True, parameter_groups=parameter_groups)

The fields hold plain values, methods of the project or functions of its other modules. The core asks for a facet when
it sets something up, not in each step. Import a framework within a function, as in the project's own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runner_core.base.location import Location
from runner_core.contract.data import Cropped
from runner_core.contract.layers import Label, Layer
from runner_core.contract.records import Annotation, AnyRecord, Decoded, Judgement, Predicted, Record, Table
from runner_core.contract.run import Finding, Remedy
from runner_core.contract.values import Array, Arrays, Infer, Json, Progress, Scalar, Tensors
from runner_core.contract.views import View, averaged


@dataclass(frozen=True)
class NoOptions:
    """The default of `Project.predict_options`: no extra flags."""


@dataclass(frozen=True)
class PairFiles:
    """Files of a project that reads pairs, an image and its label (`list_pairs`): `DataSet.pairs`."""

    is_image: Callable[[Path], bool]
    """`is_image(path)` tells by name whether the project could read a file or folder."""
    stem: Callable[[Path], str]
    """`stem(path)` returns a file's name without its suffix."""
    labelled: bool = True
    """False if an image may have its label inside, or none."""


@dataclass(frozen=True)
class GuessedTable:
    """A table of a folder's files, as guessed from their names: `runner P init-data` writes and shows it."""

    rows: Sequence[Mapping[str, str | Path]]
    """Column → cell. A path is written relative to the table's folder, if it lies below it."""
    what: str
    """What a row is, in the singular: image, patient."""
    shown: Sequence[str]
    """What each row holds, in words; the first few are shown."""
    notes: Sequence[str] = ()
    """How it was guessed, in lines."""
    left_out: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Why files are left out, and which."""
    more: str = ""
    """What follows the number of rows: ", 4 with a label"."""
    help: str = ""
    """What to do if nothing was found; it follows the message in a line of its own."""


@dataclass(frozen=True)
class DataSet:
    """Facts about a project's data that the core needs before it reads any: `Project.dataset`."""

    prepare_version: int = 1
    """Raise it whenever `decode` or `prepare` changes what it returns: caches are then built anew."""
    phantom_version: int = 1
    """Raise it whenever `phantom` writes something else: phantoms are kept between runs."""
    crop: str = "none"
    """The cropper that `crop.mode: auto` chooses for this project."""
    labels: tuple[str, ...] = ()
    """Roles in `Record.files`, and names in `Record.values`, that hold labels: "mask", "dose", "class". `predict` and
    `baseline` get records without them."""
    remote: bool = False
    """True if the data may be at a URL. `records` and `inputs` then get a `Url` if the user named one."""
    settings: tuple[str, ...] = ()
    """Dotted names of settings that describe the data (a table of the files, a pattern of their names), not the
    network. A trained network may be used with other values of them. If it is used with other data, the preset's
    values replace the run's."""
    places: tuple[str, ...] = ()
    """Dotted names of settings that name a file or folder, which may have been moved when a trained network is used: it
    may be named anew, if the run has one."""
    pairs: PairFiles | None = None
    """The files that `runner P init-data` lists in a table, for a project with `data.manifest` (`PairsConfig`)."""
    guess: Callable[[Path], GuessedTable] | None = None
    """`guess(folder)` returns the table that `runner P init-data` writes, if records are no pairs (`FilesConfig`)."""
    samples_setting: str = ""
    """Dotted name of the setting that says how many samples an epoch takes from a record. It is advised if fetching is
    too slow."""


@dataclass(frozen=True)
class Learning:
    """A project's own way to train, where it differs from the core's: `Project.learning`.

    The functions receive the tensors of the project's framework, except `augment`.
    """

    splittable: bool = False
    """True if a batch can be cut into micro-batches without changing the objective.

    False for a network with BatchNorm and for losses over the whole batch. If True, `train.accumulate` may be more than
    1, and the micro-batch is halved when memory runs out. If False, the run stops when memory runs out. If only some
    settings forbid it, let the `faults` of `Config` refuse `train.accumulate` and name the setting."""
    recompute: str = ""
    """Dotted name of the on/off setting with which the network keeps fewer activations and computes them again for the
    gradient. The memory plan suggests it."""
    optimisations: tuple[Remedy, ...] = ()
    """Optimisations that this project has beyond those of the core. `runner P ablate` measures each."""
    augment: Callable[[Arrays, np.random.Generator], None] | None = None
    """`augment(sample, rng)` changes one training sample in place, on the host.

    It runs Python for each sample, in worker processes, which receive it pickled: take a method or a function of a
    module, no lambda. Prefer `on_device`, unless a library for the host does what you need."""
    initialise: Callable[[Any], None] | None = None
    """`initialise(model)` loads pretrained weights into a network that `Project.model` returned.

    Only a training calls it. A network that gets a checkpoint's weights for prediction does not need it."""
    adapt_weights: Callable[[Any, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    """`adapt_weights(model, weights)` returns a file's weights under the network's names and in its shapes.

    It is for what `train --from` may name: files of a model zoo, and runs whose network had other inputs. `weights` are
    as the file or the run has them. If it returns None, names and shapes are compared as they are."""
    parameter_groups: Callable[[Any], Any] | None = None
    """`parameter_groups(model)` returns parameter groups for the optimizer, in Keras the variables that it changes.

    Without it, or if it returns None, there is one group with all trainable parameters. Groups of PyTorch with
    `"hidden": True` have the matrices that `train.optimizer muon` is for."""
    optimizer: Callable[[Any], Any] | None = None
    """`optimizer(groups)` returns the optimizer over `groups`.

    Without it, or if it returns None, it is that of `train.optimizer`."""
    schedule: Callable[[Progress], float | None] | None = None
    """`schedule(progress)` returns a factor on the learning rate.

    Without it, or if it returns None, `train.warmup` and `train.schedule` give the factor."""
    adjust: Callable[[Sequence[dict[str, Any]], Progress], None] | None = None
    """`adjust(groups, progress)` changes other values of the optimizer's groups: lets weight decay rise, for example.

    It is called before each step, after the learning rates (`lr`) were set, and must depend on `progress` alone. Only
    PyTorch has it."""
    after_step: Callable[[Any, Progress], None] | None = None
    """`after_step(model, progress)` does what follows each optimizer step: it updates an EMA teacher, for example.

    In float16 it is also called after a step that changed nothing because a gradient overflowed."""
    clip_units: Callable[[Any], Sequence[Any]] | None = None
    """`clip_units(model)` returns submodules whose gradients are clipped each to `train.clip`, all others together.

    Without it, or if it returns none, the gradients of the whole network have one norm. Only PyTorch has it."""
    shard_units: Callable[[Any], Sequence[Any]] | None = None
    """`shard_units(model)` returns the submodules whose weights sharded training (fsdp) gathers one by one.

    The blocks of a transformer, for example; inner modules come before those that contain them. The network must call
    each as a module, not by another of its methods. Without it, all weights are gathered for the whole step."""


@dataclass(frozen=True)
class Health:
    """Values that health rules may expect of a sound training: `Project.health`."""

    lower_bounds: Mapping[str, float] = field(default_factory=dict)
    """The least possible value of loss terms, by name: 0 for a cross-entropy, Dice or a distance. If a term falls below
    its bound, a sign or the labels are wrong, and the run is stopped."""
    chance_losses: Callable[[], Mapping[str, float]] | None = None
    """`chance_losses()` returns the loss and its terms for a network that ignores its input, by name: ln K, ln 2.

    `loss` is the whole loss. A run in which all named losses stay at these values gets a warning. The function is
    called when the statistics are known."""
    ignored: Callable[[Tensors], Any | None] | None = None
    """`ignored(batch)` returns a boolean tensor, True where loss and metrics must ignore the prediction, or None.

    It broadcasts to the prediction of `step`. `batch` is what `on_device` returned. In a few steps a health rule checks
    that the loss has no gradient there."""
    decision: Callable[[Any], Any] | None = None
    """`decision(prediction)` turns the prediction into what a user gets: a class, a mask, a dose.

    A run whose decision never varies is stopped. Without `decision`, the rule looks at the prediction itself."""


@dataclass(frozen=True)
class Checks:
    """A project's own checks of data, predictions and metrics: `Project.checks`."""

    record: Callable[[Record], Iterable[Finding]] | None = None
    """`record(record)` returns faults of one record that `decode` does not refuse. `runner P check` lists them."""
    records: Callable[[Sequence[Any]], Iterable[Finding]] | None = None
    """`records(records)` returns faults that no single record shows: axes that differ, a class that is nowhere.

    It must be cheap, as it reads all records: headers, labels. `runner P check` lists them; an error also sets its exit
    code."""
    prediction: Callable[[Any, Any], Iterable[Finding]] | None = None
    """`prediction(record, prediction)` returns notes and warnings about a prediction.

    It may be empty or absurd, for example, or parts of it cannot be scored."""
    annotation: Callable[[Decoded], Annotation | None] | None = None
    """`annotation(decoded)` returns how a record is labelled: `runner P check` shows class balance and annotated share.

    It returns None for a record without labels, or whose labels are not classes."""
    plain_metrics: Callable[[Any, Arrays], Mapping[str, float]] | None = None
    """`plain_metrics(prediction, batch)` computes the metrics again in NumPy, directly from their definition.

    The contract test compares its result with that of `Project.metrics`. `prediction` is what `step` returned and
    `batch` what it got, as arrays of all validation samples."""
    pictures: Callable[[Decoded], Mapping[str, Array]] | None = None
    """`pictures(decoded)` returns pictures by title, (H, W, 3) uint8: a record before and after `prepare`, say.

    `runner P check` shows them of the few records that it draws."""
    grid: Callable[[Path], Json] | None = None
    """`grid(file)` returns a file's shape and placement (affine, spacing) as JSON, or None if it has no grid.

    Only the contract test calls it, to compare a record's file with the file that `write` wrote."""


@dataclass(frozen=True)
class BlockWork:
    """A request to `InBlocks.predict`: one record, or a part of it, by trained networks."""

    record: AnyRecord
    networks: Sequence[Infer]
    """Their outputs are averaged."""
    named: str
    """The runs and checkpoints of the networks, with checksums: other networks have another text."""
    views: Sequence[View]
    """Views over which each window's output is averaged, beside the window itself."""
    part: tuple[int, int]
    """(i, n): do the i-th of n parts, counted from 1."""
    out: Path


@dataclass(frozen=True)
class InBlocks:
    """Prediction of records that memory cannot hold, block by block straight into their files: `Combining.in_blocks`.

    `predict` gives such a record to the project instead of decoding it, and accepts URLs. `--part` divides each of them
    among machines, and other records one by one.
    """

    wanted: Callable[[AnyRecord], bool]
    """`wanted(record)` tells whether a record is predicted in blocks."""
    predict: Callable[[BlockWork], Sequence[Location]]
    """`predict(work)` writes the record's files, or its part of them, and returns those that are whole.

    If it was killed, the same call goes on. It refuses, as BadInput, settings that it cannot honour."""


@dataclass(frozen=True)
class Combining:
    """A prediction in two steps, of which the first can be averaged: `Project.combining`.

    `Project.predict` is `decide(cropped, soft(cropped, infer))`. Several networks, views of a record or seeds are
    combined between the two steps, so that a project which declares this facet has ensembles.
    """

    kind: Literal["probabilities", "values", "embeddings"]
    """What the first array of `soft` holds.

    - probabilities: of classes, with the classes first and then the grid: (K, …) for K classes that exclude each other,
      (1, …) for the probability of one class against the rest. They are averaged.
    - values: quantities such as a dose, in `unit`. They are averaged.
    - embeddings: vectors along the last axis. The axes of two networks have nothing to do with each other, so members
      of an ensemble are not averaged: their vectors are scaled to length 1 and joined. The cosine of two joined vectors
      is the mean of the members' cosines. Views of one network are averaged."""
    soft: Callable[[Cropped, Infer], Arrays]
    """`soft(cropped, infer)` returns what may be averaged, before any decision: new float32 arrays by name.

    Sums are taken in these arrays. Volumes of probabilities may be uint8, 0 to 255 for 0 to 1. A map lies in the grid
    of `cropped.decoded`. Read what the network sees from `cropped.prepared`: a view has changed it there.
    Further arrays are averaged too."""
    decide: Callable[[Cropped, Arrays], Any]
    """`decide(cropped, soft)` returns the prediction that `write`, `score`, `checks` and `pictures` get.

    It applies thresholds, chooses components, and restores the record's own grid. It does not change `soft`."""
    classes: tuple[str, ...] = ()
    """Names of the K classes, in the order of the probabilities."""
    unit: str = ""
    """The unit of values: "Gy"."""
    must_match: Mapping[str, Json] = field(default_factory=dict)
    """What else the networks of an ensemble must have in common, by name: channels. Classes, unit and the settings of
    `prepare_settings` always must."""
    labels: Callable[[Record, Cropped], Array | None] | None = None
    """`labels(record, cropped)` returns the truth in the grid of the first soft array, without its axis of classes.

    For probabilities: numbers of classes (integers), −1 where nobody annotated; with one class, 1 is that class and 0
    the rest. For values: the true values (float32), NaN where there are none. For embeddings: the label of the whole
    record, as an array of one text, such as its treatment. `record` has its labels, and `cropped` is
    what `soft` got. None if the record has no labels."""
    carrier: Callable[[AnyRecord], str] | None = None
    """`carrier(record)` names what a label of whole records belongs to, such as the well of a field.

    `check --with` judges records of one carrier together. Only for embeddings; by default each record by itself."""
    regions: Callable[[Record, Cropped], Iterable[tuple[str, Array]]] | None = None
    """`regions(record, cropped)` yields the names and masks (bool, in the grid of `labels`) of a record's organs.

    `evaluate` says for each how far predicted values are from true ones. Regions may overlap. Give one mask after
    another, so that not all are in memory. Only for values; probabilities have their classes."""
    write_map: Callable[[Cropped, Array, Path], Sequence[Path]] | None = None
    """`write_map(cropped, values, stem)` writes a float32 map in the grid of the first soft array, and returns files.

    It restores the record's own grid and writes the field's format; `stem` is the file's path without its ending."""
    write_members: Callable[[Cropped, Sequence[Arrays], Path], Sequence[Path]] | None = None
    """`write_members(cropped, outputs, stem)` writes what a map cannot say about how much networks disagree.

    `outputs` are their soft outputs, such as doses of which each has a histogram of its own; `stem` is as for
    `write_map`. All outputs are in memory at once: only for grids of bounded size."""
    views: tuple[View, ...] = ()
    """Views beside the record itself that test-time augmentation may average: `predict.views` chooses among them."""
    calls: Callable[[Record], int] | None = None
    """`calls(record)` returns how often `soft` calls the network for a record, as far as the headers of its files tell.

    `predict` then says at its beginning how long it will take. For records of many windows."""
    in_blocks: InBlocks | None = None
    """How to predict records that memory cannot hold."""
    choices: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    """Settings that `decide` reads and that may be chosen on predictions: dotted name → values to try."""

    def predict(self, cropped: Cropped, infer: Infer, views: Sequence[View] = ()) -> Any:
        """Return the prediction of one network, averaged over the record itself and `views` of it."""
        return self.decide(cropped, averaged(self.soft, cropped, infer, views))


@dataclass(frozen=True)
class Judging:
    """The choice of records to score, and the way to combine and show their scores: `Project.judging`."""

    scored: Callable[[Mapping[str, Sequence[AnyRecord]]], Sequence[AnyRecord]] | None = None
    """`scored(splits)` returns the records that the end of training and `evaluate` score by default.

    `splits`: the records of train, validation and test as this run was split. Without it, those of the validation split
    are scored."""
    judge: Callable[[Sequence[Predicted]], Judgement | None] | None = None
    """`judge(predicted)` returns scores that need all predictions of a set at once: k-NN, a linear probe.

    It returns None if the set is too small. The predictions of all scored records are kept in memory for it, so they
    must be small: embeddings, not volumes. Seed what is random."""
    as_arrays: Callable[[Any], Arrays] | None = None
    """`as_arrays(prediction)` returns what `judge` reads of a prediction, as arrays by name.

    With `from_arrays`, several processes can divide the records of an evaluation (`--part`). Predictions that are
    arrays themselves need neither."""
    from_arrays: Callable[[Arrays], Any] | None = None
    """`from_arrays(arrays)` returns a prediction made of what `as_arrays` returned."""
    untrained: bool = False
    """True if `judge` also needs predictions of the untrained network. Each record is then predicted twice."""
    pooled: Callable[[Sequence[Mapping[str, float]]], Mapping[str, float]] | None = None
    """`pooled(scores)` returns scores of a set of records that are not the mean of the records' scores.

    They replace the mean of the same name."""
    tables: Callable[[Sequence[Mapping[str, float]], Sequence[Mapping[str, float]]], Sequence[Table]] | None = None
    """`tables(scores, baseline)` returns further tables over a set of records: by organ, by class.

    `baseline`: the trivial method's scores, if there are any."""
    grouped: Callable[[Sequence[str], Sequence[Mapping[str, float]]], Sequence[Table]] | None = None
    """`grouped(groups, scores)` returns further tables that need to know which group each record is of.

    `groups` holds the group of each record (its patient), in the order of `scores`: for intervals over groups
    (`group_interval`), and for scores of whole patients."""
    shown: tuple[str, ...] = ()
    """Names of the scores that tables on screen and in the report show; empty: all. Files hold every score."""
    collect: Callable[[Sequence[Path], Path], Sequence[Path]] | None = None
    """`collect(files, out)` combines the files that `write` wrote in one `predict` into fewer: one table of all.

    It writes them into `out` and returns them; `files` are then removed. Without it, `files` are kept."""
    summarise: Callable[[Path], Sequence[Path]] | None = None
    """`summarise(out)` writes tables and pages of all predictions in the folder `out`, and returns them.

    `predict` calls it at its end. It reads what `write` wrote, also in earlier calls and on other machines
    (`--part`)."""

    def to_score(self, splits: Mapping[str, Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
        """Return the records that `scored` names, or those of the validation split."""
        return splits.get("validation", ()) if self.scored is None else self.scored(splits)


@dataclass(frozen=True)
class Standalone:
    """The files and settings around an exported network that is used without runner: `Project.standalone`."""

    files: Sequence[Path] = ()
    """Python files that need NumPy alone. The first becomes predict.py: it reads predict.json beside it, takes the
    network from `session.load()` (arrays by name in, arrays by name out, as in `soft`), and does what `predict` does.
    The others keep their names."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """What predict.json says: every number of the work before and after the network, documented by its name."""
    missing: str = "the project declares none"
    """Why there is no predict.py, if `files` is empty."""
    infer: Callable[[Any, Tensors], Tensors] | None = None
    """`infer(network, inputs)` computes what `Project.infer` does, in operations that exporters know: no shapes that
    depend on values, no compiled kernels. None: `Project.infer` itself. Every export is compared with `Project.infer`.
    """
    multiple: int = 1
    """Of which the lengths of axes that may vary are multiples, for a Keras network: its shapes do not say it. Exports
    of PyTorch's networks find it by trying."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Formats in which this network cannot be exported, and why: {"onnx": "…"}."""


@dataclass(frozen=True)
class Pictures:
    """The pictures that a project draws: `Project.pictures`. Every picture is an array (H, W, 3) uint8."""

    figure: Callable[[Record, Any], Array | None] | None = None
    """`figure(record, prediction)` returns a picture of the record with its prediction, and the truth if labelled."""
    image: Callable[[Decoded], Array | None] | None = None
    """`image(decoded)` returns a picture of a record alone, which `check` shows.

    Without it, `check` draws the middle slice of the first array in grey."""
    labels: tuple[Label, ...] = ()
    """Names and colours of the values that predictions and annotations hold; empty if they are no labels.

    `predict --label-tables` writes them for ITK-SNAP and 3D Slicer."""
    layers: Callable[[Record, Any], Sequence[Layer]] | None = None
    """`layers(record, prediction)` returns what a viewer shows of a record: image, annotation, prediction.

    `prediction` is None if the record is shown alone. The extension runner-viewer opens them in napari."""
    watch: Callable[[Any], Mapping[str, Array]] | None = None
    """`watch(model)` returns small arrays of the network to watch over the training: filter positions, temperatures.

    They are finite NumPy arrays of at most 10,000 numbers in all: the log keeps them for the start and for every
    validation. `model` is the network as validation sees it, in evaluation mode; with torch, without gradients."""
    draw_watched: Callable[[Sequence[tuple[int, Mapping[str, Array]]]], Mapping[str, Array]] | None = None
    """`draw_watched(watched)` returns pictures by name, drawn once at the end of training into figures/NAME.png.

    `watched`: (optimizer step, what `watch` gave, as float64) at the start of the run and at every validation, however
    often it was resumed."""
    snapshots: Callable[[Any, Tensors], Mapping[str, Array]] | None = None
    """`snapshots(model, batch)` returns pictures by name of what the network makes of a few samples.

    They are drawn while it trains, at the start and every `log.snapshots_every` steps, into figures/NAME-STEP.png and
    every tracker; the report shows those of one name in a row. `batch` always holds the same `snapshot_samples`
    samples, at even distances in the validation split (in the training split if nothing validates), after `on_device`
    without `rng`. `model` is the network as validation sees it, in evaluation mode: with torch without gradients; with
    Keras bound to evaluation and not compiled. Random numbers drawn here from the framework's generators do not change
    the training."""
    snapshot_samples: int = 0
    """Number of samples in the batch that `snapshots` draws; 0 draws nothing."""
