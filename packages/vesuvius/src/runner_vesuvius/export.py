"""Export of the network for use without runner: weights, settings and its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner_core import Statistics

from runner_vesuvius.config import ScrollConfig, ScrollDataConfig


def export(network: Any, folder: Path, config: ScrollConfig, statistics: Statistics) -> Sequence[Path]:
    """Write model.safetensors, model.json (how to build, feed and read it) and network.py (PyTorch only)."""
    from runner_core import export_standalone

    from runner_vesuvius import network as source

    return export_standalone(network, folder, _description(config, statistics), source)


_SCALES = {
    "fixed": "those below, after the value is clipped to low and high",
    "set": "those below",
    "scroll": "of the voxels above 0 of the scroll",
    "volume": "of the voxels above 0 of the volume",
}


def _numbers(data: ScrollDataConfig, statistics: Statistics) -> dict[str, float]:
    if data.normalise == "fixed":
        return dict(zip(("low", "high", "mean", "std"), data.intensities, strict=True))
    return {"mean": statistics["mean"], "std": statistics["std"]}


def _description(config: ScrollConfig, statistics: Statistics) -> dict[str, Any]:
    channels, middle = 1 if config.data.first_stage is None else 2, sum(config.augment.first_threshold) / 2
    name, arguments = config.model.arguments(channels)
    return {
        "project": "vesuvius",
        "made_by": f"runner-vesuvius {version('runner-vesuvius')}",
        "network": {"class": f"network.{name}", **arguments},
        "input": {
            "axes": f"batch, {channels}, z, y, x",
            **({"second channel": f"1 where the first stage's probability >= {middle:g}"} if channels > 1 else {}),
            "intensity": f"(uint8 value - mean) / std, as float32; mean and std: {_SCALES[config.data.normalise]}",
            **_numbers(config.data, statistics),
            "patch": list(config.data.patch),
            "whole volumes": "windows of the patch's size, blended with a Gaussian of 1/8 of the side",
        },
        "output": "logits, finest first; surface where the sigmoid of the finest reaches the threshold",
        "predict": asdict(config.predict),
    }
