"""What is wrong with the settings, said before any data are read."""

from __future__ import annotations

from collections.abc import Iterator

from runner_ssmunet import axis, labels, scores
from runner_ssmunet.config import SSMConfig

LEAST: dict[str, dict[str, int]] = {
    "model": {"filters": 1, "layers": 0, "states": 1, "embed": 1, "base": 1, "chunk": 0},
    "loss": {"cross_entropy": 0, "dice": 0},
    "augment": {"scale": 0, "tilt": 0, "noise": 0},
}
"""The smallest value of settings, by section and name."""


def fault(config: SSMConfig) -> str | None:
    """The first thing that is wrong with the settings, or None."""
    data = config.data
    return (
        labels.wrong_settings(data.classes, data.ignore)
        or next(_names(config), None)
        or axis.check_settings(data)
        or next(_patches(config), None)
        or next(_numbers(config), None)
    )


def _names(config: SSMConfig) -> Iterator[str]:
    """Columns of the confusion matrix are called by classes, and by what is none."""
    data = config.data
    for name in (scores.MISSED, *(() if data.ignore is not None else (labels.UNANNOTATED,))):
        if name in data.classes:
            yield f"data.classes holds {name}, which is what pixels of no class are called: take another name"


def _patches(config: SSMConfig) -> Iterator[str]:
    patch = config.data.patch
    if patch < 16 or patch % 16:
        yield f"data.patch is {patch}; the U-Net halves patches four times: take a multiple of 16"
    if patch == 16 and config.train.batch_size == 1:
        yield (
            "data.patch 16 with train.batch_size 1 leaves the U-Net's lowest level one pixel, of which batch "
            "normalisation makes nothing: take a larger patch or batch"
        )
    for name, overlap in (("data.overlap", config.data.overlap), ("predict.overlap", config.predict.overlap)):
        if not 0 <= overlap < 1:
            yield f"{name} is {overlap}; a share of a patch's side lies from 0 to below 1"


def _numbers(config: SSMConfig) -> Iterator[str]:
    for section, names in LEAST.items():
        for name, least in names.items():
            value = getattr(getattr(config, section), name)
            if value is not None and not value >= least:
                yield f"{section}.{name} is {value}; {least} is the least"
    if not config.model.width > 0:
        yield f"model.width is {config.model.width}; a filter is wider than 0 cm⁻¹"
    if not 0 <= config.model.dropout < 1:
        yield f"model.dropout is {config.model.dropout}; a share lies from 0 to below 1"
    if not config.loss.cross_entropy + config.loss.dice > 0:
        yield "loss.cross_entropy and loss.dice are both 0: nothing would be learned"
