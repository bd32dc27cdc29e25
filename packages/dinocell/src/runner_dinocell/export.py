"""Export of the teacher's backbone for use without runner: a timm model, its weights and how to feed it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
from runner_core import BadInput, export_standalone

from runner_dinocell import exported
from runner_dinocell.augment import CEILING, CENTRE, SPREAD
from runner_dinocell.config import CellConfig
from runner_dinocell.network import DinoNet
from runner_dinocell.vit import CellTransformer, timm_arguments
from runner_dinocell.weights import Weights, as_timm
from runner_dinocell.whole import side


def export(
    network: DinoNet, folder: Path, config: CellConfig, channels: Sequence[str], levels: Any | None = None
) -> list[Path]:
    """Write model.safetensors, model.json and network.py, which loads and uses both.

    model.json holds timm's arguments and how to feed the model.

    Args:
        network: student and teacher.
        folder: receives the files.
        config: the run's settings.
        channels: their names, in the order of the input.
        levels: (low, high) of each channel, unless each field has its own.
    """
    if config.model.channels == "tokens":
        raise BadInput(
            "model.channels tokens gives each channel tokens of its own, which no model of timm has: use `predict`, or "
            "train with model.channels stack, bag or invariant to export."
        )
    inputs = 1 if network.teacher.one_by_one else len(channels)
    settings = {"model_name": _NAMES[config.model.size], **timm_arguments(config, inputs)}
    model = timm.create_model(**settings)
    model.load_state_dict(backbone_weights(network))
    return export_standalone(model, folder, _description(config, settings, channels, levels), exported)


def backbone_weights(network: DinoNet) -> Weights:
    """Return the teacher's backbone under timm's names, without the mask token."""
    backbone = network.teacher.backbone
    if not isinstance(backbone, CellTransformer):
        return as_timm(backbone.vit.state_dict())
    own = {name: tensor for name, tensor in backbone.state_dict().items() if name not in ("mask_token", "cls_pos")}
    return own if backbone.cls_pos is None else own | {"cls_token": backbone.first_tokens[0].detach()}


_NAMES = {size: f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")}
_NAMES["mini"] = _NAMES["tiny"]
"""timm's models to begin from; its arguments state every difference of ours."""


def _description(
    config: CellConfig, settings: dict[str, Any], channels: Sequence[str], levels: Any | None
) -> dict[str, Any]:
    low, high = config.data.percentiles
    size = config.augment.global_size
    return {
        "project": "dinocell",
        "made_by": f"runner-dinocell {version('runner-dinocell')}",
        "timm": settings,
        "input": {
            "axes": "batch, channel, y, x" + (" (each channel by itself)" if config.model.one_by_one else ""),
            "channels": list(channels),
            "size": f"windows of {side(config)} x {side(config)} pixels, resized to {size} x {size} once their "
            "intensities are scaled",
            "resize": {"size": [size, size], "mode": "bilinear", "antialias": True, "align_corners": False},
            **({} if config.model.channels == "stack" else {"missing channels": "0 everywhere, after scaling"}),
            "intensity": f"((value - low) / (high - low), within 0 and {CEILING}, - {CENTRE}) / {SPREAD}, as float32",
            "low and high": f"grey values of each field's channel at its percentiles {low:g} and {high:g}"
            if levels is None
            else [[float(value) for value in pair] for pair in levels],
        },
        "output": "the CLS token after the last norm: the embedding",
    }
