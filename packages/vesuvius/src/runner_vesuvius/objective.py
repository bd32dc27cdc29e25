"""The loss of one step: the terms that count now, and topology on a crop every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from runner_core import Progress, Step, Tensors
from torch import Tensor

from runner_vesuvius.config import LossConfig
from runner_vesuvius.supervision import over_levels, supervised, targets

TOPOLOGY = "topology"
SUFFIX = "_loss"
"""End of a term's name in logs; the metrics of a validation have a dice and a skeleton recall as well."""


def objective(logits: Sequence[Tensor], batch: Tensors, config: LossConfig, progress: Progress, training: bool) -> Step:
    """Return Σ weight · term over the losses that count at this point of the training; `logits`: finest first.

    Topology is computed in training only, at every `topology_every`-th step.
    """
    step = progress.step + 1
    weights = {name: term.weight_at(progress.fraction) for name, term in config.terms().items()}
    looks = training and weights[TOPOLOGY] > 0 and step % config.topology_every == 0
    total, values = torch.zeros((), device=logits[0].device), {}
    for name, compute in _terms(logits, batch, config, weights, step if looks else None):
        value = values[name + SUFFIX] = compute()
        total = total + weights[name] * value
    return Step(total, values, logits[0], logits)


def _terms(
    logits: Sequence[Tensor], batch: Tensors, config: LossConfig, weights: dict[str, float], looks: int | None
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield the name of each loss that counts now, and a function that computes it.

    Topology is included at step `looks`, if there is one.
    """
    levels = targets(batch, logits)
    for name, weight in weights.items():
        if weight > 0 and name != TOPOLOGY:
            yield name, partial(_dense, name, logits, levels, config)
    if looks is not None:
        yield TOPOLOGY, partial(_topology, logits[0], batch, config.topology_crop, looks)


def _dense(name: str, logits: Sequence[Tensor], levels: Sequence[Tensors], config: LossConfig) -> Tensor:
    return over_levels(supervised(name, logits, levels, config))


def _topology(logits: Tensor, batch: Tensors, side: int, step: int) -> Tensor:
    from runner_vesuvius.topology import topology

    return topology(logits.float().sigmoid(), batch["surface"] > 0, batch["known"], side, step)
