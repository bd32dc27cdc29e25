"""Predictions from Python: a trained network that stays loaded, and what it makes of one record."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.api.keywords import keywords
from runner_core.api.results import picture
from runner_core.base.errors import BadInput
from runner_core.base.location import location
from runner_core.base.text import first_few
from runner_core.cli.blocks import blocks_of
from runner_core.cli.ensembles import label, start_from_runs
from runner_core.cli.evaluate import make_folder
from runner_core.cli.options import PredictOptions
from runner_core.cli.predict import (
    MaskFound,
    find_inputs,
    load_predictor,
    refuse_beside,
    refuse_mask,
    write_prediction,
)
from runner_core.cli.predict_parts import collected
from runner_core.contract import Array, Arrays, Finding
from runner_core.contract.records import AnyRecord
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.engines.process import process_of, undisturbed
from runner_core.output.evaluations import remove_leftovers
from runner_core.output.pictures import is_picture, png_bytes
from runner_core.output.report.page import Note, fragment
from runner_core.training.ensembles import predict_with

_KEY = "array"
"""Name of a record that was given as arrays."""


class Predictor:
    """A run's network, loaded once; it computes under its own settings of the framework, whatever others were set."""

    def __init__(self, project: str, named: Path, options: Mapping[str, Any]) -> None:
        given = {**options, "run": named, "inputs": (), "out": Path()}
        with undisturbed() as framework:
            members = start_from_runs(project, "predict", PredictOptions, keywords(PredictOptions, given))
            self._started = members[0]
            self.setup, self.project = members[0].setup, members[0].setup.project
            framework(self.project.framework)
            self._network, checkpoints = load_predictor(members)
            self.checkpoint = checkpoints[0] if len(members) == 1 else label(members, checkpoints)
            self._pipeline = RecordPipeline.of(self.setup)
            self._process = process_of(self.project.framework).read()

    def one(self, item: Any, spacing: Any) -> Prediction:
        """Predict an array, or the only record of a path."""
        if isinstance(item, (str, os.PathLike)):
            if spacing is not None:
                raise BadInput("spacing is for arrays: a file has its own; leave it out")
            found = self.records(item)
            if len(found) != 1:
                keys = first_few([record.key for record in found])
                raise BadInput(
                    f"{item} has {len(found)} records ({keys}): name one, or go through `run.predictions(…)`"
                )
            return self._predicted(found[0])
        folder = tempfile.TemporaryDirectory(prefix="runner-")
        place = written = Path(folder.name) / _KEY
        place.mkdir()
        try:
            with undisturbed():
                written = self.project.write_input(named_arrays(item), _spacing(spacing), place)
            (record,) = self.records(written)
            return self._predicted(record, folder)
        except BadInput as error:  # the user knows no such folder
            text = str(error) if written == place else str(error).replace(str(written), "the array")
            error.args = (text.replace(f"{place}{os.sep}", "").replace(str(place), "the array"),)
            raise

    def each(self, path: str | os.PathLike[str]) -> Iterator[Prediction]:
        """Predict each record of a path; name those that cannot be predicted, as the command line does."""
        for record in self.records(path):
            try:
                found = self._predicted(record, places=(path,))
            except MaskFound as error:
                print(f"note: left out: {error}")
                continue
            except BadInput as error:
                print(f"warning: not predicted: {error}", file=sys.stderr)
                continue
            yield found

    def records(self, path: str | os.PathLike[str]) -> Sequence[AnyRecord]:
        """Return the records of a path, as `predict` would find them."""
        with undisturbed():
            return find_inputs(self.setup, location(os.fspath(path)))

    def _predicted(self, record: AnyRecord, folder: Any = None, places: Sequence[object] = ()) -> Prediction:
        """Predict a record; raise MaskFound if it looks like a mask and is not one of `places` itself."""
        if (blocks := blocks_of(self.project)) is not None and blocks.wanted(record):
            raise BadInput(
                f"{record.key}: memory cannot hold it, or the options ask for blocks: `runner {self.project.name} "
                "predict` alone predicts in blocks"
            )
        check = self.project.checks().prediction
        with undisturbed() as framework, local(self.project, record) as here:
            framework(self.project.framework)
            process_of(self.project.framework).write(self._process)
            cropped = CroppedRecord(self._pipeline, here, partial(refuse_mask, self.project, record, places))
            found = predict_with(self.project, cropped, self._network)
            remarks = () if check is None else tuple(check(here, found))
        return Prediction(self, record, found, remarks, folder)


class Prediction:
    """A network's prediction of one record, in the record's own grid."""

    def __init__(
        self, predictor: Predictor, record: AnyRecord, prediction: Any, remarks: Sequence[Finding], folder: Any
    ) -> None:
        self._predictor, self._record = predictor, record
        self._folder = folder  # the files of an input that was given as arrays; removed with this object
        self.prediction = prediction
        """The prediction as the project returns it: an array, or an object with several."""
        self.remarks = remarks
        """What the project's checks say about it."""

    @property
    def record(self) -> str:
        """The record's name."""
        return self._record.key

    @property
    def array(self) -> Array:
        """The prediction as one array, in the input's grid."""
        if isinstance(self.prediction, np.ndarray) or hasattr(self.prediction, "__array__"):
            return np.asarray(self.prediction)
        name = self._predictor.project.name
        raise BadInput(
            f"project {name}: a prediction is no array but {type(self.prediction).__name__}; use .prediction"
        )

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the files that `runner PROJECT predict` writes into a folder, and return them.

        `path` may also name one file, such as mask.nii.gz, if exactly one of those files ends so.
        """
        target, project = Path(path).expanduser(), self._predictor.project
        whole = not target.suffix or target.is_dir()
        out = target if whole else target.parent
        refuse_beside(self._record, out)
        make_folder(out)
        remove_leftovers(out)
        if whole:
            return self._written(out)
        with tempfile.TemporaryDirectory(prefix=".runner-", dir=out) as folder:
            written = self._written(Path(folder))
            fitting = [file for file in written if file.name.endswith("".join(target.suffixes))]
            if len(fitting) != 1:
                names = ", ".join(file.name for file in written)
                raise BadInput(f"{path}: {project.name} writes {names}: name a folder, or a file that ends like one")
            os.replace(fitting[0], target)
        return [target]

    def _written(self, out: Path) -> list[Path]:
        project = self._predictor.project
        with undisturbed(), local(project, self._record) as here:
            written = write_prediction(project, here, self.prediction, out)
        collect = project.judging().collect
        return written if collect is None else list(collected(collect, written, out))

    @cached_property
    def picture(self) -> Array | None:
        """The project's picture of it, (H, W) or (H, W, 3) uint8; None if the project draws none."""
        figure = self._predictor.project.pictures().figure
        if figure is None:
            return None
        with undisturbed(), local(self._predictor.project, self._record) as here:
            found = figure(here, self.prediction)
        return found if is_picture(found) else None

    def __repr__(self) -> str:
        return f"<prediction of {self.record} with {self._predictor.checkpoint}>"

    def _repr_html_(self) -> str:
        about = f"{self.record}, with {self._predictor.checkpoint}"
        blocks = [Note(about), *(Note(f.message, f.level, f.level) for f in self.remarks)]
        return fragment([*blocks, *([] if self.picture is None else [picture(png_bytes(self.picture))])])


def named_arrays(item: Any) -> Arrays:
    """Return named arrays; an array alone is called "image", and an image of nibabel has an "affine" too.

    Raises BadInput for anything else.
    """
    if hasattr(item, "dataobj") and hasattr(item, "affine"):
        item = {"image": item.dataobj, "affine": item.affine}
    named = item if isinstance(item, Mapping) else {"image": item}
    arrays = {str(name): np.asarray(array) for name, array in named.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufSU" or (name == "image" and not array.ndim):
            raise BadInput(f"{name} is no array of numbers: predict takes an array, a dict of arrays, or a path")
    return arrays


def _spacing(spacing: Any) -> tuple[float, ...] | None:
    if spacing is None:
        return None
    found = tuple(float(mm) for mm in np.atleast_1d(spacing))
    if not all(np.isfinite(mm) and mm > 0 for mm in found):
        raise BadInput(f"spacing {spacing!r} must be positive sizes in mm, one for each axis")
    return found
