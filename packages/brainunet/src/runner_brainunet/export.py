"""The network for use without runner: weights, settings, and the class that they belong to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner_brainunet.config import BrainConfig


def export(network: Any, folder: Path, config: BrainConfig) -> Sequence[Path]:
    """model.safetensors, model.json (how to build, feed and read it) and network.py (PyTorch only)."""
    from safetensors.torch import save_file

    from runner_brainunet import unet

    folder.mkdir(parents=True, exist_ok=True)
    weights, settings, source = folder / "model.safetensors", folder / "model.json", folder / "network.py"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    save_file(tensors, weights)
    settings.write_text(json.dumps(_description(config), indent=2) + "\n", encoding="utf-8")
    source.write_text(Path(unet.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return [weights, settings, source]


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
    }
