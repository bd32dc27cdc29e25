"""The files around an exported network where runner is not installed: `predict.py`, and the numbers that it reads."""

from __future__ import annotations

from pathlib import Path

from runner_core import Json, Standalone

from runner_brainunet import grid, slices
from runner_brainunet.config import BrainConfig

_HERE = Path(__file__).parent
_CROPS = ("auto", "body", "none")


def standalone(config: BrainConfig) -> Standalone:
    """Return the script, the modules that it imports, and predict.json."""
    if config.crop.mode not in _CROPS:
        return Standalone(missing=f"the script crops as crop.mode {' or '.join(_CROPS)} does, not {config.crop.mode}")
    return Standalone((_HERE / "predict.py", Path(grid.__file__), Path(slices.__file__)), _settings(config))


def _settings(config: BrainConfig) -> dict[str, Json]:
    data, predict = config.data, config.predict
    return {
        "about": {
            "spacing_mm": "isotropic voxels of the network's grid; an axis within 1 % of it is not resampled (grid.py)",
            "crop": "body: a box around the largest object above Otsu's threshold, with so many voxels around it; none",
            "size": "side of the square on which a slice is placed (slices.py)",
            "views": "directions of the slices; the probability is the mean over them",
            "neighbours": "slices that the network sees at once; it segments the middle one",
            "multiple": "sides of the part of a slice that the network gets are multiples of it",
            "batch": "slices in one call of the network",
            "mirrored": "average with the prediction of the head mirrored left to right",
            "threshold": "a voxel with a higher probability is brain; of these the largest piece stays",
            "fill_holes": "fill holes inside the brain",
            "margin_mm": "grow the mask by it, or shrink it if it is negative",
        },
        "spacing_mm": data.spacing,
        "crop": {"mode": "none" if config.crop.mode == "none" else "body", "margin": config.crop.margin},
        "size": data.size,
        "views": list(data.views),
        "neighbours": data.neighbours,
        "multiple": 2 ** (len(config.model.features) - 1),
        "batch": config.validate.batch_size or config.train.batch_size,
        "mirrored": predict.views not in ((), ("none",)),
        "threshold": predict.threshold,
        "fill_holes": predict.fill_holes,
        "margin_mm": predict.margin,
    }
