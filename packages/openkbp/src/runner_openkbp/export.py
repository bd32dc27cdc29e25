"""Export of the network for use without runner: model.keras, and model.json, which describes inputs and outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner_core import Json, flat

from runner_openkbp.config import OpenKBPConfig
from runner_openkbp.rois import POSSIBLE, ROIS, SIDE


def export(network: Any, folder: Path, config: OpenKBPConfig) -> Sequence[Path]:
    """Write the network (keras.Model) and its description, and return the files."""
    network.save(folder / "model.keras")
    text = json.dumps(description(config), indent=1, ensure_ascii=False, default=str)
    (folder / "model.json").write_text(text + "\n", encoding="utf-8")
    return [folder / "model.keras", folder / "model.json"]


def description(config: OpenKBPConfig) -> dict[str, Json]:
    """Return everything that `OpenKBP.predict` does around the network, in numbers and words."""
    size, data = config.data.size, config.data
    factor = SIDE // size
    residual = config.model.network == "residual"
    channels = ["ct", *ROIS, *([POSSIBLE] if residual else [])]
    pooled = f"over each block of {factor} x {factor} x {factor} voxels" if factor > 1 else "none: the grid stays"
    return {
        "project": "openkbp",
        "made_by": f"runner-openkbp {version('runner-openkbp')}",
        "file": "model.keras, for keras.models.load_model; plain Keras, safe mode",
        "patient": {
            "grid": [SIDE] * 3,
            "axes": ["front to back", "the patient's right to left", "head to feet"],
            "ct": "HU + ct_offset, whole numbers; 0 where ct.csv has nothing",
            "masks": "1 inside; a region that the patient lacks is 0 everywhere",
        },
        "input": {
            "shape": [None, size, size, size, len(channels)],
            "dtype": "float32",
            "channels": channels,
            **({"box": _box(config.model.unit)} if residual else {}),
            "pooling": {
                "factor": factor,
                "ct": f"mean, rounded to a whole number (halves to even), {pooled}" if factor > 1 else pooled,
                "masks": f"1 where at least half of the voxels are inside, {pooled}" if factor > 1 else pooled,
                POSSIBLE: f"1 where any of the voxels is inside, {pooled}" if factor > 1 else pooled,
            },
            "ct_offset": data.ct_offset,
            "ct_window": list(data.ct_window),
            "ct_scale": 1000,
            "ct": "clip(pooled ct - ct_offset, ct_window[0], ct_window[1]) / ct_scale",
        },
        "output": {
            "shape": [None, size, size, size, 1],
            "unit": "Gy",
            "count": 2 if config.model.cascade else 1,
            "use": "the second of the two outputs" if config.model.cascade else "the output",
        },
        "mirrored_average": {
            "used": config.predict.views not in ((), ("none",)),
            "axis": 2,
            "exchange_channels": [1 + ROIS.index("RightParotid"), 1 + ROIS.index("LeftParotid")],
            "how": "mirror the input along `axis` (0 is the batch's), exchange the two channels, mirror the output "
            "back, and take the mean of both outputs; on the network's grid",
        },
        "upsampling": {
            "factor": factor,
            "how": "linear between the blocks' centres, the nearest value beyond the outermost: scipy.ndimage.zoom("
            "dose, factor, order=1, mode='nearest', grid_mode=True)",
        },
        "final": f"0 Gy outside {POSSIBLE} of the patient's own grid",
        "settings": flat(config),
    }


def _box(unit: int) -> dict[str, Json]:
    """Return which part of the grid the residual network sees (see `whole.box`)."""
    return {
        "multiple": unit,
        "how": f"cut out the smallest box around {POSSIBLE} whose sides are multiples of `multiple`, with what it has "
        "more than the mask at both ends, one voxel more at the far end if that is odd, as far as the grid allows; the "
        "dose outside the box is 0. A mirrored patient has a box of its own",
    }
