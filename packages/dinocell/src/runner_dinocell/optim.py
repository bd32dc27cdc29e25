"""Parameter groups of the student, and their weight decay and frozen prototypes.

With L blocks, block i (from 0) learns at layer_decay^(L − i) times the learning rate. The patch embedding and the
tokens learn at layer_decay^(L + 1), the patch embedding also times `patch_embed_factor`. The last norm and the heads
learn at the full rate (Bao et al. 2021, arXiv:2106.08254, as in DINOv2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import Any

from runner_core import Progress
from torch import nn

from runner_dinocell import schedules
from runner_dinocell.config import CellConfig

BACKBONE = "backbone."
"""Start of the names of the student's vision transformer; all others are the heads'."""
PROTOTYPES = ("prototypes", "gain")
"""Ends of the names of the heads' prototypes and of their lengths."""
_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_TOKENS = ("channel_embed", "cls_pos", "cls_token", "mask_token", "reg_token", "register_tokens", "pos_embed")

Group = MutableMapping[str, Any]


def parameter_groups(student: nn.Module, config: CellConfig, others: Iterable[nn.Module] = ()) -> list[Group]:
    """Return groups of alike trainable parameters: {params, lr, weight_decay, scale, decays, prototypes}.

    `scale` is the factor on the learning rate. `decays` is whether they have weight decay: biases, norms and scales
    have none, tokens and position embeddings only with `train.recipe dinov2-exact`. `prototypes` is whether they are
    frozen at first. `others` are heads besides the student's own. With `train.optimizer muon` the matrices of blocks
    are groups of their own, with `hidden` true.
    """
    modules = (student, *others)
    named = [(name, p) for module in modules for name, p in module.named_parameters() if p.requires_grad]
    blocks = 1 + max((int(found[1]) for name, _ in named if (found := _BLOCK.search(name))), default=-1)
    muon = config.train.optimizer == "muon"
    groups: dict[tuple[float, bool, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        decays = parameter.ndim > 1 and (config.train.exact or not any(token in name for token in _TOKENS))
        hidden = muon and parameter.ndim == 2 and _BLOCK.search(name) is not None
        key = (_scale(name, blocks, config), decays, name.endswith(PROTOTYPES), hidden)
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": config.train.learning_rate * scale,
            "weight_decay": config.train.weight_decay if decays else 0.0,
            "scale": scale,
            "decays": decays,
            "prototypes": prototypes,
            **({"hidden": True} if hidden else {}),
        }
        for (scale, decays, prototypes, hidden), parameters in groups.items()
    ]


def adjust(groups: Iterable[Group], config: CellConfig, progress: Progress) -> None:
    """Set the weight decay along its cosine and freeze the prototypes, after the learning rate was set."""
    decay = schedules.weight_decay(config, progress)
    frozen = schedules.prototypes_frozen(config, progress)
    for group in groups:
        group["weight_decay"] = decay if group["decays"] else 0.0
        if group["prototypes"]:
            rate = config.train.learning_rate * schedules.learning_rate(config, progress)
            group["lr"] = 0.0 if frozen else rate * group["scale"]


def _scale(name: str, blocks: int, config: CellConfig) -> float:
    if not name.startswith(BACKBONE):
        return 1.0
    found = _BLOCK.search(name)
    if found:
        return config.optim.layer_decay ** (blocks - int(found[1]))
    if "patch_embed" in name:
        return float(config.optim.layer_decay ** (blocks + 1) * config.optim.patch_embed_factor)
    return config.optim.layer_decay ** (blocks + 1) if any(token in name for token in _TOKENS) else 1.0
