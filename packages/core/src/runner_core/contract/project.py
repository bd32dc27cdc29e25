"""The class that defines a project; its members stand in the order in which data flows through them.

Subclass `Project` and write the members without a default: `name`, `framework`, `Config`, `presets`, `records`,
`decode`, `prepare`, `samples`, `model`, `step`, `phantom`. Everything else has a working default. The module that holds
the class must import no framework at its top: worker processes that build the cache, `runner P config` and `--help`
import it, and each would wait seconds for torch. Import the framework inside the methods that need it.

What few projects need is not a member: `dataset`, `learning`, `health`, `checks`, `combining`, `judging` and `pictures`
each declare such a matter in one object (`runner_core.contract.facets`).

`on_device`, `model`, `step`, `infer` and `metrics` receive the tensors of the project's own framework; all other
methods receive NumPy arrays.

Keras traces these methods once and compiles them: write them with `keras.ops`, without Python branches on tensors. The
`model` that `step` and `infer` receive is the network, already bound to training or to evaluation: call it without the
argument `training`. Its other attributes (its layers, for example) can be reached through it. Take random numbers from
layers, from `rng` or from `keras.random`: no checkpoint saves the state of `tf.random`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.config import PredictConfig, RunConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.config.extensions import faults
from runner_core.contract.data import Cropped, Samples, Store
from runner_core.contract.facets import (
    Checks,
    Combining,
    DataSet,
    Health,
    Judging,
    Learning,
    NoOptions,
    Pictures,
    Standalone,
)
from runner_core.contract.records import AnyRecord, Decoded, Record, Statistics
from runner_core.contract.run import Metric, Precision
from runner_core.contract.values import Arrays, Infer, Json, Progress, Step, Tensors
from runner_core.contract.views import View


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
    directions: ClassVar[Mapping[str, Literal["max", "min"]]] = {}
    """Directions of better values of other metrics, by name: curves and validations then show an arrow.

    Names that begin or end with loss, accuracy, dice, f1, iou, miou, precision, recall, mae, mse or rmse need none."""
    limits: ClassVar[str] = ""
    """What a network of this project is not for and was not tested on, in sentences: model cards say it."""
    bfloat16_on_cpu: ClassVar[bool] = False
    """True if the network was measured to be faster in bfloat16 on a CPU with AMX, and as good. `precision.mode auto`
    is bfloat16 there, as on GPUs."""
    dataset: ClassVar[DataSet] = DataSet()
    """Versions of the cache and the phantom, the cropper, and which settings describe the data."""
    predict_options: Any = NoOptions()
    """Extra flags of `predict`: an instance of a dataclass whose fields all have defaults. While `predict` and `write`
    run, the instance of the project has the user's choice instead."""
    config: RunConfig
    """The run's settings, an instance of `Config`."""
    statistics: Statistics
    """The result of `fit` on the training records; empty until then. It is set before `model` is called, in training
    and in every command that uses a trained network."""

    def __init__(self, config: RunConfig) -> None:
        """Keep the settings. Raises BadInput if one is out of bounds or if `config.faults` yields something."""
        refuse_out_of_bounds(config)
        for fault in faults(config):
            raise BadInput(fault)
        self.config = config
        self.predict_options = copy(self.predict_options)
        self.statistics = {}

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Any) -> Sequence[AnyRecord]:
        """Return every record below `root`; read no more than names and headers.

        `root` is a Path, or a Url if the project is `remote` and the user named one. Raises BadInput that names the
        folder and the expected layout if there is no record. Files that are found but not taken:
        `runner_core.leave_out`. If there may be millions, return `runner_core.tabled` of a generator that makes them
        one by one: they are never around as objects all at once.
        """
        raise _not_written(self, "records")

    def inputs(self, path: Any) -> Sequence[AnyRecord]:
        """Return the records in the file or folder that `predict` was given. Default: `records`.

        They need no labels. `path` is a Path, or a Url if the project is `remote`.
        """
        return self.records(path)

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        """Write arrays that `Run.predict` was given into `folder`, as one record, and return the path for `inputs`.

        `arrays` has one, "image", if it was given an array alone. `spacing` is the size of a voxel (mm), one number for
        each axis or for all; None if none was given. Raises BadInput that says which arrays are needed.
        """
        raise BadInput(
            f"project {self.name} cannot predict arrays: it has no `write_input` method; predict a file instead"
        )

    def decode(self, record: Record) -> Decoded:
        """Read a record's files. Raises BadInput that names the file and what is wrong with it.

        Predictions are made of records without labels: `record.files` then has no entry for the label
        (`DataSet.labels`). Leave its array out.
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
        """Return statistics of the training records: means for z-scores, class weights.

        `training`: the records' numbers in `store`.
        """
        return {}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Return the samples that the model sees of these records: rows, patches, tiles, or whole records.

        `records`: their numbers in `store`; `split`: train or validation. `WholeSamples(store, records)` takes each
        record whole.
        """
        raise _not_written(self, "samples")

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Turn stored arrays into what the model reads, on the device: decode bits, scale, augment.

        `rng` is the engine's generator (a torch.Generator on the device; for Keras a `keras.random.SeedGenerator`), or
        None in validation and inference: then nothing random may happen. `batch["record"]` (int64) holds the number of
        each sample's record in the store; inference has none.

        In the input and in the result, every tensor that is not 0-d has the samples along its first axis, so that a
        batch can be cut into micro-batches. Constants belong in `statistics` or in the model. `statistics` has the
        values of `self.statistics` as the engine holds them for the device.
        """
        return batch

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        """Return a fresh network in float32 (torch.nn.Module or keras.Model)."""
        raise _not_written(self, "model")

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        """Return the loss, its named terms and the prediction of a batch, for training and validation alike.

        With several devices, `batch` is the part on one device, and the loss should be a mean over its samples. If a
        loss needs the samples of all devices, gather them with `runner_core.ranks`. `model` has the attributes and
        methods of the network that `Project.model` returned.

        In validation, `progress.fraction` is always 1. Loss weights that depend on progress are then the same in all
        validations, so their losses can be compared.
        """
        raise _not_written(self, "step")

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """Return the network's outputs that `predict` uses. Default: {"prediction": model(batch["image"])}.

        `batch` is what `on_device` returned without `rng`. Each output is a tensor with the samples along its first
        axis, as many as the batch has.
        """
        return {"prediction": model(batch["image"])}

    def metrics(self) -> Sequence[Metric]:
        """Return the validation metrics, accumulated on the device. The loss and its terms are always there."""
        return ()

    def learning(self) -> Learning:
        """Return how this project trains, where it differs from the core's way."""
        return Learning()

    def health(self) -> Health:
        """Return what health rules may expect of a sound training."""
        return Health()

    # ------------------------------------------------------------ whole records

    def predict(self, cropped: Cropped, infer: Infer) -> Any:
        """Predict a whole record in its own grid.

        `cropped.prepared` are the arrays as the cache would hold them; `infer` runs the network on such arrays, in
        batches of any length. `cropped.box.restore` leads from the cropped grid to the record's. The result must be the
        same each time. `write`, `score`, `checks` and `pictures` get what is returned. Default: the two steps of
        `combining`, with the mean over the views of `predict.views` between them.
        """
        combining = self.combining()
        if combining is None:
            raise _not_written(self, "predict")
        return combining.predict(cropped, infer, views_of(self))

    def combining(self) -> Combining | None:
        """Return the two steps of `predict`: what may be averaged, and the decision. Without it, no ensembles."""
        return None

    def write(self, record: Record, prediction: Any, out: Path) -> Sequence[Path]:
        """Write a prediction into folder `out`, in the field's format, and return the files."""
        raise _not_written(self, "write")

    def score(self, record: Record, prediction: Any) -> Mapping[str, float]:
        """Return whole-record scores against the record's own labels; NaN if there is nothing to score."""
        return {}

    def baseline(self, cropped: Cropped) -> Any | None:
        """Return a trivial method's prediction, scored for comparison: Otsu's threshold, the mean dose of `fit`."""
        return None

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        """Write the network for use without runner, and return the files. Default: the engine's own format."""
        return ()

    def standalone(self) -> Standalone:
        """Return what an exported network needs around it where runner is not installed (`export --to onnx`)."""
        return Standalone()

    def checks(self) -> Checks:
        """Return what this project can find wrong in data, predictions and metrics."""
        return Checks()

    def judging(self) -> Judging:
        """Return which records are scored, and how the scores of a set of records are combined and shown."""
        return Judging()

    def pictures(self) -> Pictures:
        """Return what this project draws."""
        return Pictures()

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        """Write a generated data set in the project's real file formats.

        It needs two groups or more, so that it can be split, and must be small enough to train on in a minute with the
        preset `demo`. Everything random comes from `rng`, so that the files are the same each time.
        """
        raise _not_written(self, "phantom")


def _not_written(project: Project, method: str) -> Exception:
    return BadInput(f"project {project.name} cannot do this: it has no `{method}` method")


def predicts(project: Project) -> bool:
    """Return whether the project can predict whole records."""
    return overrides(project, "predict") or project.combining() is not None


def views_of(project: Project) -> tuple[View, ...]:
    """Return the views that `predict.views` chooses. Raises BadInput if the project declares no such view."""
    names = _view_names(project)
    if not names:
        return ()
    combining = project.combining()
    declared = {} if combining is None else {view.name: view for view in combining.views}
    if not declared:
        raise BadInput(
            f"predict.views is {', '.join(names)}, but project {project.name} declares no views of a record: leave it "
            "out"
        )
    if names == ("all",):
        return tuple(declared.values())
    for name in names:
        if name not in declared:
            hint = did_you_mean(name, declared)
            raise BadInput(f"predict.views: there is no view {name!r}{hint} (all, none, or: {', '.join(declared)})")
    return tuple(declared[name] for name in dict.fromkeys(names))


def refuse_unknown_views(project: Project) -> None:
    """Raise BadInput if `predict.views` chooses a view that the project does not declare.

    It passes if the project cannot say so yet, because its `combining` needs the data or statistics.
    """
    if _view_names(project):
        try:
            project.combining()
        except Exception:
            return
        views_of(project)


def _view_names(project: Project) -> tuple[str, ...]:
    """Return what `predict.views` names, empty for no views."""
    own = getattr(project.config, "predict", None)
    names = own.views if isinstance(own, PredictConfig) else ()  # a project's older section may mean other views
    return () if names == ("none",) else names


def overrides(project: Project, method: str) -> bool:
    """Return whether the project has its own `method` instead of the default one."""
    return getattr(type(project), method) is not getattr(Project, method)
