"""The files around an exported network where runner is not installed: `predict.py`, and the numbers that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from runner_core import Json, Standalone, Statistics

from runner_dinocell import windows
from runner_dinocell.config import CellConfig
from runner_dinocell.whole import side


def standalone(config: CellConfig, statistics: Statistics, cells: str | None) -> Standalone:
    """Return the script, the module that it imports, and predict.json. `cells`: where single cells are, if anywhere."""
    if reasons := list(_missing(config, cells)):
        return Standalone(missing=f"the script does not know {', '.join(reasons)}")
    script = Path(__file__).with_name("predict.py")
    return Standalone((script, Path(windows.__file__)), _settings(config, statistics))


def _missing(config: CellConfig, cells: str | None) -> Iterator[str]:
    """Yield the settings that the script cannot follow."""
    if cells:
        yield f"data.cells {cells}"
    if config.predict.views != ("none",) and config.predict.views:
        yield f"predict.views {' '.join(config.predict.views)}"
    if config.predict.drop_channels:
        yield "predict.drop_channels"
    if config.crop.mode not in ("auto", "none"):
        yield f"crop.mode {config.crop.mode}"


def _settings(config: CellConfig, statistics: Statistics) -> dict[str, Json]:
    levels = statistics.get("levels")
    return {
        "about": {
            "channels": "names of the channels, in the order of the network's input",
            "partial": "whether a field may lack channels",
            "percentiles": "grey values of each channel at these percentiles become 0 and 1 (within the network)",
            "levels": "grey values that become 0 and 1 in place of a field's own, by channel; null: each field's own",
            "window": "side of a window in pixels",
            "stride": "distance between windows, as a share of their side (windows.py)",
            "batch": "windows in one call of the network",
        },
        "channels": list(statistics.get("channels", ())),
        "partial": config.model.channels != "stack",
        "percentiles": list(config.data.percentiles),
        "levels": None if levels is None else np.asarray(levels, np.float64).tolist(),
        "window": side(config),
        "stride": config.predict.stride,
        "batch": config.validate.batch_size or config.train.batch_size,
    }
