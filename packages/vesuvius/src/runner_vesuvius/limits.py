"""What is wrong with the settings, said before any data are read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from runner_vesuvius.config import LossConfig, ScrollConfig

LEAST: dict[str, dict[str, float]] = {
    "data": {"patches": 1, "validation_patches": 1, "tube": 0},
    "model": {"base": 1, "blocks": 1},
    "loss": {"positive": 0, "cldice_iterations": 1, "topology_every": 1, "measure_every": 1},
    "augment": {
        "brightness": 0, "contrast": 0, "gamma": 0, "noise": 0, "blur": 0, "affine": 0, "rotate": 0, "scale": 0,
        "elastic": 0, "elastic_voxels": 0,
    },
    "predict": {"min_size": 0, "fill_holes": 0},
}  # fmt: skip
"""The smallest value of settings, by section and name."""
MOST: dict[str, dict[str, float]] = {"augment": {"blur": 1, "affine": 1, "elastic": 1}, "data": {"surface_share": 1}}
"""The largest."""
SIDE = 16
"""The least side of a patch."""
LARGEST_TAU = 15
"""Voxels: the cache keeps squared distances in one byte."""


def fault(config: ScrollConfig) -> str | None:
    """The first thing that is wrong with the settings, or None."""
    checks = (_bounds(config), _patches(config), _losses(config.loss), _crop(config), _prediction(config))
    return next((wrong for check in checks for wrong in check), None)


def _bounds(config: ScrollConfig) -> Iterator[str]:
    for section, names in LEAST.items():
        for name, least in names.items():
            value = getattr(getattr(config, section), name)
            if not (value >= least and math.isfinite(value)):
                yield f"{section}.{name} is {value}; {least:g} is the least, and it is finite"
    for section, names in MOST.items():
        for name, most in names.items():
            value = getattr(getattr(config, section), name)
            if not 0 <= value <= most:
                yield f"{section}.{name} is {value}; a share lies from 0 to 1"


def _patches(config: ScrollConfig) -> Iterator[str]:
    patch, levels = config.data.patch, len(config.model.multipliers)
    if min(patch) < SIDE:
        yield f"data.patch is {patch}; {SIDE} is the least side"
    if levels < 2 or min(config.model.multipliers) < 1:
        yield f"model.multipliers is {config.model.multipliers}; two levels or more, and 1 or more for each"
    halvings = max(0, levels - 1)
    if max(-(-side // 2**halvings) for side in patch) < 2:
        yield (
            f"data.patch {patch} leaves one voxel after {halvings} halvings, in which there is nothing to see: "
            "take a larger patch or fewer model.multipliers"
        )


def _losses(loss: LossConfig) -> Iterator[str]:
    own = loss.terms()
    for name, term in own.items():
        if not 0 <= term.weight < math.inf:
            yield f"loss.{name}.weight is {term.weight}; 0 is the least, and it is finite"
        if not 0 <= term.begin <= 1 or not 0 <= term.full <= 1:
            yield f"loss.{name}.begin and .full are {term.begin} and {term.full}; a share lies from 0 to 1"
        if term.full < term.begin and term.full > 0:
            yield f"loss.{name}.full {term.full} comes before loss.{name}.begin {term.begin}"
    if not any(term.weight > 0 for term in own.values()):
        yield f"the losses ({', '.join(own)}) all have weight 0: nothing would be learned. Set loss.NAME.weight"
    at_once = [name for name, term in own.items() if term.weight_at(0.0) > 0]
    if not set(at_once) - {"topology"}:
        yield "no loss but topology counts from the first step on: set begin and full of another to 0"
    if not 0 < loss.tau <= LARGEST_TAU:
        yield f"loss.tau is {loss.tau}; distances are kept up to {LARGEST_TAU} voxels"
    if loss.topology_crop < 4:
        yield f"loss.topology_crop is {loss.topology_crop}; 4 is the least"


def _crop(config: ScrollConfig) -> Iterator[str]:
    side, shortest = config.loss.topology_crop, min(config.data.patch)
    if config.loss.topology.weight > 0 and side > shortest:
        yield (
            f"loss.topology_crop is {side}, but the shortest side of data.patch is {shortest}: "
            f"set loss.topology_crop to {shortest} or less"
        )


def _prediction(config: ScrollConfig) -> Iterator[str]:
    predict = config.predict
    if not 0 < predict.threshold < 1:
        yield f"predict.threshold is {predict.threshold}; a probability lies between 0 and 1"
    if not 0 <= predict.seed_threshold < 1:
        yield f"predict.seed_threshold is {predict.seed_threshold}; a probability lies from 0 to below 1"
    if not 0 <= predict.overlap <= 0.9:
        yield f"predict.overlap is {predict.overlap}; it lies from 0 to 0.9"
