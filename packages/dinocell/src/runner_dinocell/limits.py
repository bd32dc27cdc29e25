"""What is wrong with the settings, said before any data are read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from runner_core import BadInput

from runner_dinocell import names
from runner_dinocell.config import CellConfig

LEAST: dict[str, dict[str, float]] = {
    "data": {"window": 16, "windows": 1, "validation_windows": 1},
    "model": {
        "patch": 1, "registers": 0, "layer_scale": 0, "drop_path": 0, "prototypes": 2, "hidden": 1, "bottleneck": 1,
    },
    "loss": {
        "dino": 0, "ibot": 0, "koleo": 0, "centre_momentum": 0, "student_temperature": 1e-4,
        "teacher_temperature": 1e-4, "warmup_teacher_temperature": 1e-4, "teacher_warmup": 0,
        "measure_every": 1,
    },
    "teacher": {"momentum": 0},
    "optim": {
        "final_learning_rate": 0, "final_weight_decay": 0, "layer_decay": 1e-4, "patch_embed_factor": 0,
        "freeze_prototypes": 0,
    },
    "augment": {"global_size": 1, "local_size": 1, "locals": 0, "brightness": 0, "contrast": 0, "blur": 0, "noise": 0},
    "predict": {"stride": 0.05, "neighbours": 1, "fields": 2},
}  # fmt: skip
"""The smallest value of settings, by section and name."""
MOST: dict[str, dict[str, float]] = {
    "model": {"drop_path": 0.99},
    "loss": {"centre_momentum": 0.9999, "teacher_warmup": 1},
    "teacher": {"momentum": 1},
    "optim": {"layer_decay": 1, "patch_embed_factor": 1, "freeze_prototypes": 1},
    "augment": {"contrast": 1, "blur": 1},
    "predict": {"stride": 1},
}
"""The largest."""


def fault(config: CellConfig) -> str | None:
    """The first thing that is wrong with the settings, or None."""
    checks = (_bounds(config), _data(config), _sizes(config), _shares(config), _losses(config))
    return next((wrong for check in checks for wrong in check), None)


def _bounds(config: CellConfig) -> Iterator[str]:
    for section, least in LEAST.items():
        for name, low in least.items():
            value = getattr(getattr(config, section), name)
            if not (value >= low and math.isfinite(value)):
                yield f"{section}.{name} is {value}; {low:g} is the least, and it is finite"
    for section, most in MOST.items():
        for name, high in most.items():
            value = getattr(getattr(config, section), name)
            if not value <= high:
                yield f"{section}.{name} is {value}; {high:g} is the most"


def _data(config: CellConfig) -> Iterator[str]:
    data = config.data
    low, high = data.percentiles
    if not 0 <= low < high <= 100:
        yield f"data.percentiles is {data.percentiles}; two rising numbers between 0 and 100"
    if len(set(data.channels)) < len(data.channels):
        yield f"data.channels {' '.join(data.channels)} names a channel twice"
    if data.manifest and data.pattern:
        yield "data.manifest and data.pattern both say what the images are; leave one of them out"
    if data.pattern is not None:
        try:
            names.own(data.pattern)
        except BadInput as error:
            yield str(error)


def _sizes(config: CellConfig) -> Iterator[str]:
    patch = config.model.patch
    for name in ("global_size", "local_size"):
        size = getattr(config.augment, name)
        if size % patch:
            near = max(1, round(size / patch)) * patch
            yield f"augment.{name} is {size}, no multiple of model.patch, {patch}: take {near}"
    if config.augment.local_size > config.augment.global_size:
        yield (
            f"augment.local_size {config.augment.local_size} is larger than augment.global_size "
            f"{config.augment.global_size}: local crops are the small ones"
        )
    if config.model.source == "dinov2" and config.model.size in ("mini", "tiny"):
        yield f"model.size {config.model.size} is not among dinov2's; take small, or model.source timm"


def _shares(config: CellConfig) -> Iterator[str]:
    for name, (low, high) in (
        ("augment.global_scale", config.augment.global_scale),
        ("augment.local_scale", config.augment.local_scale),
    ):
        if not 0 < low <= high <= 1:
            yield f"{name} is ({low}, {high}); two shares of the window above 0 and up to 1, the smaller first"
    low, high = config.loss.masked_share
    if not 0 <= low <= high <= 1:
        yield f"loss.masked_share is ({low}, {high}); two shares from 0 to 1, the smaller first"


def _losses(config: CellConfig) -> Iterator[str]:
    loss = config.loss
    if not loss.dino and not loss.ibot:
        yield "loss.dino and loss.ibot are both 0: nothing would be learned. Give one of them a weight"
    if loss.ibot and not loss.masked_share[1]:
        yield "loss.masked_share is 0, so that loss.ibot has no patch to look at: raise it, or set loss.ibot to 0"
    if loss.koleo and config.train.batch_size < 2:
        yield "train.batch_size is 1: loss.koleo compares images with each other. Set it to 2 or more"
