"""Whole volumes: what the network says of one, and the surface that the settings of `predict` make of that."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from runner_core import (
    AnyRecord,
    Array,
    Arrays,
    BadInput,
    BlockWork,
    Combining,
    Cropped,
    InBlocks,
    Infer,
    Location,
    Record,
    Statistics,
    Url,
    mirrors,
    quarter_turns,
)

from runner_vesuvius import outputs, statistics, submission, volumes
from runner_vesuvius.config import ScrollConfig, ScrollPredictOptions
from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.outputs import Detected

CHOICES = {
    "predict.along_sheets": (0.0, 2.5, 3.5, 5.0),
    "predict.thickness": (0.0, 2.5, 3.0, 3.4, 3.8),
    "predict.mend_faults": (0.0, 0.7),
    "predict.threshold": (0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8),
    "predict.seed_threshold": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    "predict.min_size": (0, 100, 300, 1000, 3000, 10_000, 30_000),
    "predict.fill_holes": (0, 100, 1000, 10_000),
}
"""Values that `select` tries."""


class Scans(Protocol):
    """The parts of the project that this module uses."""

    config: ScrollConfig
    predict_options: ScrollPredictOptions

    @property
    def statistics(self) -> Statistics: ...

    @property
    def volumes_seen(self) -> tuple[str, ...]: ...

    def scale_of(self, key: str, counts: Array, scroll: str = "") -> Array: ...


def combining(project: Scans) -> Combining:
    """Return how the project's predictions are averaged, decided and chosen."""
    seen = project.volumes_seen
    return Combining(
        kind="probabilities",
        soft=partial(_soft, project),
        decide=partial(_decide, project),
        classes=("surface",),
        labels=_labels,
        write_map=lambda cropped, values, stem: outputs.write_map(cropped.box, values, stem),
        views=(
            *mirrors(dict.fromkeys(seen, (0, 1, 2)), {"surface": (1, 2, 3)}, "zyx"),
            *quarter_turns(dict.fromkeys(seen, (1, 2)), {"surface": (2, 3)}),
        ),
        calls=partial(_calls, project),
        in_blocks=InBlocks(partial(_wanted, project), partial(_in_blocks, project)),
        choices=CHOICES,
    )


def _soft(project: Scans, cropped: Cropped, infer: Infer) -> Arrays:
    """Predict windows over the volume: the surface's probability (1, D, H, W) uint8, as 4 bytes need too much."""
    from runner_vesuvius.whole import predict, scaled

    image: Any = cropped.prepared["image"]
    if project.config.data.normalise != "set":
        infer = scaled(infer, project.scale_of(cropped.record.key, statistics.intensities(image), cropped.record.group))
    if "first" in project.volumes_seen:
        from runner_vesuvius.first_stage import Paired, unpaired

        image, infer = Paired(image, cropped.prepared["first"]), unpaired(infer)
    return {"surface": predict(image, infer, *_windows(project))[None]}


def _calls(project: Scans, record: Record) -> int:
    from runner_vesuvius.whole import calls

    return calls(volumes.outline(record.files["image"])[0], *_windows(project))


def _windows(project: Scans) -> tuple[Sequence[int], float, int]:
    """Return size, overlap and number of the windows that the network gets at once."""
    config = project.config
    return config.data.patch, config.predict.overlap, config.validate.batch_size or config.train.batch_size


def _wanted(project: Scans, record: AnyRecord) -> bool:
    """Return whether a volume is predicted chunk by chunk. Raises BadInput if a submission of tifs is asked for."""
    found = _in_chunks(project, record)
    if found and project.predict_options.zip:
        raise BadInput(
            f"{record.key} is predicted chunk by chunk into {record.key}.zarr, and {submission.NAME} holds tifs: leave "
            "out --zip"
        )
    return found


def _in_chunks(project: Scans, record: AnyRecord) -> bool:
    """Return whether a volume must be predicted chunk by chunk: asked for, at a URL, or a zarr larger than memory."""
    place, options = record.files["image"], project.predict_options
    if isinstance(place, Url) or options.chunked or options.mask or options.store or options.ngff != "auto":
        return True
    if place.suffix.lower() != ".zarr":
        return False
    try:
        volumes.refuse_large(record.files)
    except BadInput:
        return True
    return False


def _in_blocks(project: Scans, work: BlockWork) -> Sequence[Location]:
    from runner_vesuvius.scroll import Scroll

    normalise = project.config.data.normalise
    if normalise == "scroll" and len(work.networks) > 1:
        raise BadInput(f"{work.record.key}: networks with scales of their own (data.normalise scroll) predict alone")
    known = normalise == "fixed" or (normalise == "scroll" and work.record.group in project.statistics["scrolls"])
    scale = None if normalise == "set" else partial(project.scale_of, work.record.key, scroll=work.record.group)
    return Scroll(work, project.config, project.predict_options, _windows(project)[2], scale, known).predict()


def _decide(project: Scans, cropped: Cropped, soft: Arrays) -> Detected:
    """Apply the `predict` settings to components and cavities."""
    from runner_vesuvius.postprocess import surface

    probability = cropped.box.restore(soft["surface"][0])
    return Detected(surface(probability, project.config.predict), probability)


def _labels(record: Record, cropped: Cropped) -> Array | None:
    """Return 1 for surface, 0 for background and −1 for voxels that nobody annotated (int8)."""
    if "label" not in record.files:
        return None
    label = cropped.box.crop(volumes.read_truth(record.files, cropped.box.shape))
    found = (label == SURFACE).astype(np.int8)  # np.where would take 8 bytes per voxel
    found[label == IGNORE] = -1
    return found
