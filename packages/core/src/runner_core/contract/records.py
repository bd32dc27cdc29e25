"""Records and their stages: found, decoded, prepared, predicted, scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from runner_core.base.location import Location, Url
from runner_core.contract.values import Array, Arrays, Json, Scalar

Place_co = TypeVar("Place_co", bound=Location, default=Path, covariant=True)


@dataclass(frozen=True)
class Record(Generic[Place_co]):
    """A stored item: a core, a scan, a patient, a volume, a field.

    `key` is unique in the data set. No split ever cuts a `group` (patient, scroll, plate). `files` maps roles ("image",
    "mask") to files or folders. `split` is train, validation or test if the data set's own folders name the split.
    `values` holds what a table says of this record alone: labels ("class", "age") and metadata ("magnification"). They
    are part of the record's identity: if one value changes, this record is prepared anew, and no other.

    The files of a `Record` are on this machine. The files of a `Record[Location]`, which a `remote` project may find,
    can also be at URLs; they are fetched before a method of the project reads them.
    """

    key: str
    group: str
    files: Mapping[str, Place_co]
    split: str | None = None
    values: Mapping[str, Scalar] = field(default_factory=dict, kw_only=True)


AnyRecord = Record[Any]
"""A record with its files on this machine or at URLs."""


def at_url(record: AnyRecord) -> bool:
    """Return whether any file of the record is at a URL."""
    return any(isinstance(place, Url) for place in record.files.values())


@dataclass(frozen=True)
class Original:
    """The values in the file itself, for a record that `decode` returns in another grid.

    `spacing` is the size of a voxel (mm) per axis. `dtype` is the type of the values in the file (as NumPy names it),
    if it is not the type of `array`.
    """

    array: Array
    spacing: tuple[float, ...]
    dtype: str = ""


@dataclass
class Decoded:
    """A record read from its files, before crop and prepare.

    The leading `len(spacing)` axes of every array in `arrays` are the grid that the cropper may cut. The first array is
    the image; `check` finds duplicates by it. `guide` names the array that the cropper looks at. `meta` is JSON and is
    kept with the prepared arrays (an affine, an original shape: anything that brings a prediction back).
    """

    arrays: Arrays
    spacing: tuple[float, ...]
    guide: str
    meta: dict[str, Json] = field(default_factory=dict)
    original: Original | None = None
    """The first of `arrays` before it was resampled. `runner P check` shows it; nothing else reads it."""


@dataclass
class Prepared:
    """The arrays of a record as the cache stores them; `meta["box"]` holds the crop box as {start, stop, shape}."""

    arrays: Arrays
    meta: dict[str, Json]


@dataclass(frozen=True)
class Table:
    """A table that `evaluate` shows beside the scores and writes to scores-NAME.csv; NaN is an empty cell."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True)
class Predicted:
    """A record and its predictions, for `Judging.judge`."""

    record: AnyRecord
    prediction: Any
    baseline: Any = None
    """Prediction of the trivial method; None if there is none."""
    untrained: Any = None
    """Prediction of the network before its first step, if `Judging.untrained` asks for it. None for a run of `--from`
    whose first weights are gone."""
    unseen: bool = True
    """True if training saw neither the record nor another record of its group."""


@dataclass(frozen=True)
class Judgement:
    """Scores of a whole set of records, from `Judging.judge`; NaN if a score has no value.

    They join the means of `Project.score` in tables, summary and scores.json. If `score` returns nothing, the first of
    `scores` is the headline; `Project.monitor` then decides whether larger or smaller is better.
    """

    scores: Mapping[str, float]
    baseline: Mapping[str, float] = field(default_factory=dict)
    """Scores of the trivial method (`Project.baseline`)."""
    further: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scores of other methods by their names ("untrained network"), shown side by side. A warning says so if the
    trained network's headline is no better than that of one of them, or of the trivial method."""
    tables: Sequence[Table] = ()
    """Shown after the tables of `Judging.tables`."""
    pictures: Mapping[str, Array] = field(default_factory=dict)
    """Pictures (H, W, 3) uint8 by name, drawn as NAME.png."""


@dataclass(frozen=True)
class Annotation:
    """Labels of a record, for `runner P check`: voxels (pixels) by class, with 0 for each absent class."""

    counts: Mapping[str, int]
    ignored: int | None = None
    """Voxels at which neither loss nor metric looks. None: the project looks at every voxel."""
    voxels: int | None = None
    """Number of voxels that the loss looks at, if that is not the sum of `counts` (overlapping or missing classes)."""

    @property
    def annotated(self) -> int:
        """Number of voxels that are not ignored."""
        return sum(self.counts.values()) if self.voxels is None else self.voxels


Statistics = dict[str, Any]
"""Statistics that `fit` learned from the training records: JSON values and NumPy arrays, saved in every checkpoint."""
