"""The network for use without runner: weights, settings, and the class that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner_core.project import Statistics

from runner_vesuvius.config import ScrollConfig


def export(network: Any, folder: Path, config: ScrollConfig, statistics: Statistics) -> Sequence[Path]:
    """model.safetensors, model.json (how to build, feed and read it) and network.py (PyTorch only)."""
    from runner_core.engines.torch.standalone import standalone

    from runner_vesuvius import unet

    return standalone(network, folder, _description(config, statistics), unet)


def _description(config: ScrollConfig, statistics: Statistics) -> dict[str, Any]:
    return {
        "project": "vesuvius",
        "made_by": f"runner-vesuvius {version('runner-vesuvius')}",
        "network": {"class": "network.SurfaceUNet", **asdict(config.model)},
        "input": {
            "axes": "batch, 1, z, y, x",
            "intensity": "(uint8 value - mean) / std, as float32",
            "mean": statistics["mean"],
            "std": statistics["std"],
            "patch": list(config.data.patch),
            "whole volumes": "windows of the patch's size, blended with a Gaussian of 1/8 of the side",
        },
        "output": "logits, finest first; surface where the sigmoid of the finest reaches the threshold",
        "predict": asdict(config.predict),
    }
