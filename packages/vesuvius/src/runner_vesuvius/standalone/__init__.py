"""The files around an exported network where runner is not installed: `predict.py`, and the numbers that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner_core import Json, Standalone

from runner_vesuvius import postprocess, whole
from runner_vesuvius.config import ScrollConfig


def standalone(config: ScrollConfig, views: Sequence[str]) -> Standalone:
    """Return the script, the module that it imports, and predict.json. `views`: names of all views."""
    if reasons := list(_missing(config)):
        return Standalone(missing=f"the script does not know {', '.join(reasons)}")
    script = Path(__file__).with_name("predict.py")
    return Standalone((script, Path(whole.__file__)), _settings(config, views))


def _missing(config: ScrollConfig) -> Iterator[str]:
    """Yield the settings that the script cannot follow."""
    if config.predict.along_sheets or config.predict.thickness:
        yield "predict.along_sheets and predict.thickness"
    if config.data.first_stage is not None:
        yield "data.first_stage"
    if config.data.normalise not in ("set", "fixed"):
        yield f"data.normalise {config.data.normalise}"
    if config.crop.mode not in ("auto", "none"):
        yield f"crop.mode {config.crop.mode}"


def _settings(config: ScrollConfig, views: Sequence[str]) -> dict[str, Json]:
    data, predict = config.data, config.predict
    asked = () if predict.views == ("none",) else views if predict.views == ("all",) else predict.views
    return {
        "about": {
            "patch": "sides (z, y, x) of the windows that the network sees",
            "overlap": "share of its side by which a window overlaps the next; blended with a Gaussian (whole.py)",
            "batch": "windows in one call of the network",
            "scale": "mean and standard deviation that the network gets with each window; null: they are within it",
            "views": "mirrored or turned copies of the volume whose probabilities are averaged with its own",
            "threshold": "lowest probability of surface, of 255",
            "seed": "a piece (26-connected) without a voxel of this probability is dropped, of 255",
            "min_size": "pieces of fewer voxels are dropped",
            "fill_holes": "cavities (6-connected, away from the border) of at most so many voxels are filled",
        },
        "patch": list(data.patch),
        "overlap": predict.overlap,
        "batch": config.validate.batch_size or config.train.batch_size,
        "scale": None if data.normalise == "set" else list(data.intensities[2:]),
        "views": list(dict.fromkeys(asked)),
        "threshold": postprocess.lowest(predict.threshold),
        "seed": postprocess.lowest(predict.seed_threshold),
        "min_size": predict.min_size,
        "fill_holes": predict.fill_holes,
    }
