"""The files around an exported network where runner is not installed: `predict.py`, and the numbers that it reads."""

from __future__ import annotations

from pathlib import Path

from runner_core import Json, Standalone

from runner_openkbp import whole
from runner_openkbp.config import OpenKBPConfig


def standalone(config: OpenKBPConfig) -> Standalone:
    """Return the script, the module that it imports, and predict.json."""
    script, model = Path(__file__).with_name("predict.py"), config.model
    unit = model.unit if model.network == "residual" else None
    return Standalone((script, Path(whole.__file__)), _settings(config, unit), multiple=unit or 1)


def _settings(config: OpenKBPConfig, unit: int | None) -> dict[str, Json]:
    return {
        "about": {
            "size": "side of the network's grid, on which the CT is a mean and masks a majority (whole.py)",
            "unit": "the network sees a box around the possible-dose mask, whose sides are multiples of it; null: all",
            "mirrored": "whether the dose is the mean of the patient's and of the mirrored patient's",
        },
        "size": config.data.size,
        "unit": unit,
        "mirrored": config.predict.views not in ((), ("none",)),
    }
