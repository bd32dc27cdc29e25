"""Export the network for use without runner: its weights, its settings and its class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner_brainunet.config import BrainConfig


def export(network: Any, folder: Path, config: BrainConfig) -> Sequence[Path]:
    """Write model.safetensors, model.json (how to build, feed and read it) and network.py (needs PyTorch only)."""
    from runner_core import export_standalone

    from runner_brainunet import network as module

    return export_standalone(network, folder, _description(config), module)


def _description(config: BrainConfig) -> dict[str, Any]:
    return {
        "network": {
            "class": "network.UNet",
            "channels": config.data.neighbours,
            "features": list(config.model.features),
            "norm": config.model.norm,
        },
        "input": {
            "orientation": "RAS",
            "spacing_mm": config.data.spacing,
            "size": config.data.size,
            "views": list(config.data.views),
            "channels": "neighbouring slices, the middle one is segmented",
            "intensity": "0.5th percentile of the volume to 99.5th of the head → 0 to 1, rounded to 1/255",
            "axes": {"axial": "y, x", "coronal": "z, x", "sagittal": "z, y"},
        },
        "output": "logits of the middle slice; brain where the mean sigmoid over the views exceeds the threshold",
        "threshold": config.predict.threshold,
        "averaged_with": [name for name in config.predict.views if name != "none"],
    }
