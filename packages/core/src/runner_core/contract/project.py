"""The class that defines a project; its members stand in the order in which data flows through them.

Subclass `Project` and write the members without a default: `name`, `framework`, `Config`, `presets`, `records`,
`decode`, `prepare`, `samples`, `model`, `step`, `phantom`. Everything else has a working default. The module that holds
the class must import no framework at its top: worker processes that build the cache, `runner P config` and `--help`
import it, and each would wait seconds for torch. Import the framework inside the methods that need it.

The methods from `model` to `after_step` receive the tensors of the project's own framework; all other methods receive
NumPy arrays.

Keras traces these methods once and compiles them: write them with `keras.ops`, without Python branches on tensors. The
`model` that `step` and `infer` receive is the network, already bound to training or to evaluation: call it without the
argument `training`. Its other attributes (its layers, for example) can be reached through it. Take random numbers from
layers, from `rng` or from `keras.random`: no checkpoint saves the state of `tf.random`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.contract.data import Pipeline, Samples, Store
from runner_core.contract.engines import Infer, Progress, Step
from runner_core.contract.records import Annotation, AnyRecord, Decoded, Judgement, Predicted, Record, Statistics, Table
from runner_core.contract.run import Finding, Metric, Precision, Remedy
from runner_core.contract.values import Array, Arrays, Json, Tensors


@dataclass
class NoOptions:
    """Extra flags of `predict` for a project that has none."""


class Project:
    """A model, a dataset and the settings under which it trains fastest, for one framework."""

    name: ClassVar[str]
    """Its name on the command line, the same as the entry point's."""
    framework: ClassVar[Literal["torch", "keras"]]
    """The framework of all members that receive tensors. It chooses the engine."""
    Config: ClassVar[type[RunConfig]]
    """Its settings: `RunConfig`, or a subclass with sections of its own. The text below each field is its `--help`."""
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]]
    """Named defaults. `default` and `demo` (the phantom, about a minute on 2 cores) are required."""
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    """The validation metric that chooses the best checkpoint, and its direction."""
    lower_bounds: ClassVar[Mapping[str, float]] = {}
    """The least possible value of loss terms, by name: 0 for a cross-entropy, Dice or a distance. If a term falls below
    its bound, a sign or the labels are wrong, and the run is stopped."""

    @property
    def splittable(self) -> bool:
        """Return whether a batch can be cut into micro-batches without changing the objective.

        It cannot with BatchNorm or with losses over the batch. If it can, `train.accumulate` may be more than 1, and
        the micro-batch is halved when memory runs out. If it cannot, the run stops instead. If it depends on settings,
        let `faults` refuse `train.accumulate` and name the setting that forbids it.
        """
        return False

    recompute: ClassVar[str] = ""
    """Dotted name of the on/off setting with which the network keeps fewer activations and computes them again for the
    gradient. The memory plan advises it."""
    optimisations: ClassVar[tuple[Remedy, ...]] = ()
    """What makes this project fast beyond what the core does for all. `runner P ablate` measures each."""
    remote: ClassVar[bool] = False
    """True if the data may be at a URL. `records` and `inputs` then get a `Url` if the user named one."""
    data_settings: ClassVar[tuple[str, ...]] = ()
    """Dotted names of settings that describe the data (a table of the files, a pattern of their names), not the
    network. A trained network may be used with other values of them. If it is used with other data, the preset's
    values replace the run's."""
    samples_setting: ClassVar[str] = ""
    """Dotted name of the setting that says how many samples an epoch takes from a record. It is advised if fetching is
    too slow."""
    prepare_version: ClassVar[int] = 1
    """Raise it whenever `decode` or `prepare` changes what it returns: caches are then built anew."""
    phantom_version: ClassVar[int] = 1
    """Raise it whenever `phantom` writes something else: phantoms are kept between runs."""
    crop: ClassVar[str] = "none"
    """The cropper that `crop.mode: auto` chooses for this project."""
    shown: ClassVar[tuple[str, ...]] = ()
    """Names of the scores that tables on screen and in the report show; empty: all. Files hold every score."""
    snapshot_samples: ClassVar[int] = 0
    """Number of samples in the batch that `snapshots` draws; 0 draws nothing."""
    untrained: ClassVar[bool] = False
    """True if `judge` also needs predictions of the untrained network. Each record is then predicted twice."""
    PredictOptions: ClassVar[type] = NoOptions
    """Dataclass of the extra flags of `predict`; every field has a default."""
    predict_options: Any
    """An instance of `PredictOptions`: the user's choice while `predict` and `write` run, else the defaults."""
    config: RunConfig
    """The run's settings, an instance of `Config`."""
    statistics: Statistics
    """What `fit` learned from the training records; empty before. It is set before `model` is called, also in every
    command that uses a trained network."""
    left_out: list[str]
    """One line for each file that the last `records` or `inputs` found but did not take, with the reason. `predict`
    shows them."""
    pipeline: Pipeline
    """Decodes and crops a record as for training: `pipeline.decode_cropped(record)`. For use in `predict`."""

    def __init__(self, config: RunConfig) -> None:
        """Keep the settings. Raises BadInput if one is out of bounds or `faults` yields something."""
        refuse_out_of_bounds(config)
        self.config = config
        self.predict_options = self.PredictOptions()
        self.statistics = {}
        self.left_out = []
        for fault in self.faults():
            raise BadInput(fault)

    def faults(self) -> Iterable[str]:
        """Yield a message for each combination of settings that cannot work.

        The bounds of a single setting are at its field.
        """
        return ()

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Any) -> Sequence[AnyRecord]:
        """Return every record below `root`; read no more than names and headers.

        `root` is a Path, or a Url if the project is `remote` and the user named one. Raises BadInput that names the
        folder and the expected layout if there is no record.
        """
        raise _not_written(self, "records")

    def decode(self, record: Record) -> Decoded:
        """Read a record's files. Raises BadInput that names the file and what is wrong with it.

        `predict` passes records without labels: `record.files` then has no entry for the label. Leave its array out.
        """
        raise _not_written(self, "decode")

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return the arrays to store for this record: small, and ready to gather.

        A pure function of this record: statistics of other records must not enter.
        """
        raise _not_written(self, "prepare")

    def prepare_settings(self) -> Mapping[str, Json]:
        """Return the settings that `decode` and `prepare` read; they are part of the cache's key."""
        return {}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """Return statistics of the training records (their numbers in `store`): z-scores, class weights."""
        return {}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Return the samples that the model sees of these records: rows, patches, tiles.

        `records`: their numbers in `store`; `split`: train or validation.
        """
        raise _not_written(self, "samples")

    def augment(self, sample: Arrays, rng: np.random.Generator) -> None:
        """Change one training sample in place, on the host.

        This runs Python for each sample. Prefer `on_device`, unless a library for the host does what you need.
        """
        return None

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Turn stored arrays into what the model reads, on the device: decode bits, scale, augment.

        `rng` is the engine's generator (a torch.Generator on the device; for Keras a `keras.random.SeedGenerator`), or
        None in validation and inference: then nothing random may happen. `batch["record"]` (int64) holds the number of
        each sample's record in the store; inference has none.

        In the input and in the result, the first axis of every tensor except 0-d ones counts the samples, so that a
        batch can be cut into micro-batches. Constants belong in `statistics` or in the model.
        """
        return batch

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        """Return a fresh network in float32 (torch.nn.Module or keras.Model)."""
        raise _not_written(self, "model")

    def initialise(self, model: Any) -> None:
        """Load the weights that a training starts from, if `model` does not set them: pretrained ones.

        It is not called for a network that gets a checkpoint's weights for prediction.
        """
        return None

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        """Return the loss, its named terms and the prediction of a batch, for training and validation alike.

        With several devices the batch is one device's, and the loss should be a mean over its samples. If a loss looks
        at the whole batch, gather it with `runner_core.ranks`. `model` is the network itself.

        In validation, `progress.fraction` is always 1. Loss weights that depend on progress are then the same in all
        validations, so their losses can be compared.
        """
        raise _not_written(self, "step")

    def chance_losses(self) -> Mapping[str, float]:
        """Return the loss and its terms for a network that ignores its input, by name: ln K, ln 2.

        `loss` is the whole loss. A run in which all named losses stay there gets a warning.
        """
        return {}

    def ignored(self, batch: Tensors) -> Any | None:
        """Return a boolean tensor that is True where loss and metrics must ignore the prediction, or None.

        It broadcasts to the prediction of `step`. `batch` is what `on_device` returned. In a few steps a health rule
        checks that the loss has no gradient there.
        """
        return None

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """Return what prediction needs of a batch. Default: {"prediction": model(batch["image"])}."""
        return {"prediction": model(batch["image"])}

    def decision(self, prediction: Any) -> Any:
        """Turn the prediction into what a user gets: a class, a mask, a dose.

        A run whose decision never varies is stopped.
        """
        return prediction

    def parameter_groups(self, model: Any) -> Any:
        """Return parameter groups for the optimizer. Default: one group with all trainable parameters."""
        return None

    def optimizer(self, groups: Any) -> Any:
        """Return the optimizer over `groups`.

        Default, None: AdamW with `train.learning_rate` and `train.weight_decay`.
        """
        return None

    def schedule(self, progress: Progress) -> float | None:
        """Return a factor on the learning rate. Default, None: `train.warmup` and `train.schedule`."""
        return None

    def adjust(self, groups: Sequence[dict[str, Any]], progress: Progress) -> None:
        """Change other values of the optimizer's groups over the training.

        A weight decay, for example, or a group that starts later.

        It is called before each step, after the learning rates (`lr`) were set, and must depend on `progress` alone.
        PyTorch only.
        """
        return None

    def after_step(self, model: Any, progress: Progress) -> None:
        """Do what follows each optimizer step: update an EMA teacher, for example.

        In float16 it is also called after a step that changed nothing because a gradient overflowed.
        """
        return None

    def shard_units(self, model: Any) -> Sequence[Any]:
        """Return the submodules whose weights sharded training (fsdp) gathers one by one, innermost first.

        These are the blocks of a transformer, for example. Each is called as a module, not by a method of its own.
        Default: none, and all weights are gathered for the whole step.
        """
        return ()

    def metrics(self) -> Sequence[Metric]:
        """Return the validation metrics, accumulated on the device. The loss and its terms are always there."""
        return ()

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        """Compute the metrics again in NumPy, directly from their definition; the contract test compares both.

        `prediction` is what `step` returned and `batch` what it got, as arrays of all validation samples.
        """
        raise _not_written(self, "plain_metrics")

    def watch(self, model: Any) -> Mapping[str, Array]:
        """Return small arrays of the network to watch over the training: filter positions, temperatures.

        NumPy, finite, at most 10,000 numbers: the log keeps them from the start and every validation. `model` is the
        network as validation sees it, in evaluation mode; with torch, without gradients.
        """
        return {}

    def pictures(self, watched: Sequence[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
        """Return pictures (H, W, 3) uint8 by name, drawn once at the end of training into figures/NAME.png.

        `watched`: (optimizer step, what `watch` gave, as float64) at the start of the run and at every validation,
        however often it was resumed.
        """
        return {}

    def snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        """Return pictures (H, W, 3) uint8 by name of what the network makes of a few samples.

        They are drawn while it trains, at the start and every `log.snapshots_every` steps, into figures/NAME-STEP.png
        and every tracker. `batch` always holds the same `snapshot_samples` samples, the first of the validation split
        (of the training split if nothing validates), after `on_device` without `rng`. `model` is the network as
        validation sees it, in evaluation mode: with torch without gradients; with Keras bound to evaluation and not
        compiled. Random numbers drawn here from the framework's generators do not change the training.
        """
        return {}

    # ------------------------------------------------------------ whole records

    def inputs(self, path: Any) -> Sequence[AnyRecord]:
        """Return the records in the file or folder that `predict` was given. Default: `records`.

        They need no labels. `path` is a Path, or a Url if the project is `remote`.
        """
        return self.records(path)

    def predict(self, record: Record, infer: Infer) -> Any:
        """Predict a whole record in its own grid.

        `infer` runs the network on arrays as the cache would hold them, in batches of any length. The result must be
        the same each time. `write`, `score`, `remarks` and `figure` get what is returned.
        """
        raise _not_written(self, "predict")

    def write(self, record: Record, prediction: Any, out: Path) -> Sequence[Path]:
        """Write a prediction into folder `out`, in the field's format, and return the files."""
        raise _not_written(self, "write")

    def collect(self, files: Sequence[Path], out: Path) -> Sequence[Path]:
        """Combine the files that `write` wrote in one `predict` into fewer: one table of all records, for example.

        Write them into `out` and return them; `files` are then removed. Default: they are kept as they are.
        """
        return files

    def grid(self, file: Path) -> Json:
        """Return shape and placement (affine, spacing) of a record's file, or of one that `write` wrote, as JSON.

        None for files that have none. Only the contract test calls this, to compare the two.
        """
        return None

    def remarks(self, record: Record, prediction: Any) -> Sequence[Finding]:
        """Return notes and warnings about a prediction: it is empty, absurd, or cannot be scored in part."""
        return ()

    def score(self, record: Record, prediction: Any) -> Mapping[str, float]:
        """Return whole-record scores against the record's own labels; NaN if there is nothing to score."""
        return {}

    def pooled(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Return scores of a set of records that are not the mean of the records' scores.

        They replace the mean of the same name.
        """
        return {}

    def tables(self, scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> Sequence[Table]:
        """Return further tables over a set of records: by organ, by class.

        `baseline`: the trivial method's scores, if there are any.
        """
        return ()

    def baseline(self, record: Record, statistics: Statistics) -> Any | None:
        """Return a trivial method's prediction, to be scored beside the network's: Otsu, the mean dose of `fit`."""
        return None

    def scored(self, sides: Mapping[str, Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
        """Return the records that the end of training and `evaluate` score by default: those of the validation split.

        `sides`: the records of train, validation and test as this run was split.
        """
        return sides.get("validation", ())

    def judge(self, predicted: Sequence[Predicted]) -> Judgement | None:
        """Return scores that need all predictions of a set at once: k-NN, a linear probe.

        None if the set has too few. If a project has this method, the predictions of all scored records are kept in
        memory: embeddings, not volumes. Seed what is random.
        """
        return None

    def figure(self, record: Record, prediction: Any) -> Array | None:
        """Return a picture (H, W, 3) uint8 of the record with its prediction, and the truth if labelled."""
        return None

    def check(self, record: Record) -> Sequence[Finding]:
        """Return faults of one record that `decode` does not refuse. `runner P check` lists them."""
        return ()

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """Return how a record is labelled: `runner P check` shows class balance and annotated share.

        None if it has no labels, or none that are classes.
        """
        return None

    def check_set(self, records: Sequence[AnyRecord]) -> Sequence[Finding]:
        """Return faults that no single record shows: axes that differ, a class that is nowhere.

        It must be cheap, as it reads all records: headers, labels. `runner P check` lists them; an error also sets its
        exit code.
        """
        return ()

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        """Write the network for use without runner, and return the files. Default: the engine's own format."""
        return ()

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        """Write a generated data set in the project's real file formats.

        It needs two groups or more, so that it can be split, and must be small enough to train on in a minute with the
        preset `demo`. Everything random comes from `rng`, so that the files are the same each time.
        """
        raise _not_written(self, "phantom")


def _not_written(project: Project, method: str) -> Exception:
    return BadInput(f"project {project.name} cannot do this: it has no `{method}` method")


def overrides(project: Project, method: str) -> bool:
    """Return whether the project has its own `method` instead of the default one."""
    return getattr(type(project), method) is not getattr(Project, method)
