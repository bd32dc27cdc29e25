"""Targets of the student: the teacher's logits, sharpened, and centred so that they do not collapse.

With 65536 prototypes and 20,000 masked patches a batch, the distributions would take 5 GB in float32. They are never
built: a centre and Sinkhorn-Knopp alike only scale the rows and columns of exp(logits / temperature), so one number for
each row and column is enough to compute any part when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from runner_core import ranks
from torch import Tensor, nn

from runner_dinocell.config import LossConfig

ROUNDS = 3
"""Rounds of Sinkhorn-Knopp, as in SwAV (Caron et al. 2020, arXiv:2006.09882) and DINOv2 (Oquab et al. 2023)."""
PART = {"cpu": 2**18, "cuda": 2**24}
"""Numbers that are computed at once: a core's cache holds 2**18, 2**24 keep a GPU busy (64 MB in float32)."""


class Targets(NamedTuple):
    """Distributions over K prototypes: p = mean over V of exp(logits / temperature + samples + prototypes)."""

    logits: Tensor
    """(V, N, K), of any floating type."""
    samples: Tensor
    """(V, N), float32 (float64 for float64)."""
    prototypes: Tensor
    """(K,)."""
    temperature: float

    def exponents(self, rows: slice) -> Tensor:
        """Return the logarithm of the distributions of these rows, before the mean: (V, n, K)."""
        free = _scaled(self.logits[:, rows], self.prototypes, self.temperature)
        return free.add_(self.samples[:, rows, None])

    def at(self, rows: slice) -> Tensor:
        """Return the distributions of these rows, (n, K); each sums to 1."""
        each = self.exponents(rows).exp_()
        return each[0] if len(each) == 1 else each.mean(0)

    def of_pairs(self) -> Targets:
        """Average the two crops of each image: (1, 2B, K) → (2, B, K)."""
        halves = (2, -1)
        return self._replace(logits=self.logits[0].unflatten(0, halves), samples=self.samples[0].unflatten(0, halves))

    def exchanged(self) -> Targets:
        """Exchange the two crops of each image: (1, 2B, K)."""
        half = self.samples.shape[1] // 2
        return self._replace(logits=self.logits.roll(half, 1), samples=self.samples.roll(half, 1))


class Centring(nn.Module):
    """Makes targets of the teacher's logits by `loss.centring`; part of the network, so that checkpoints have it.

    sinkhorn: Sinkhorn-Knopp over the batch. centre: subtract a moving mean c ← m·c + (1 − m)·mean of the batches before
    (DINO, Caron et al. 2021, arXiv:2104.14294, eq. 4). Both use all processes that train together.
    """

    centre: Tensor | None

    def __init__(self, config: LossConfig, prototypes: int) -> None:
        super().__init__()
        self.momentum = config.centre_momentum
        self.register_buffer("centre", torch.zeros(prototypes) if config.centring == "centre" else None)

    def forward(self, logits: Tensor, temperature: float) -> Targets:
        """(N, K) → (1, N, K). In training the centre moves afterwards."""
        if self.centre is None:
            return sinkhorn(logits, temperature)
        targets = centred(logits, self.centre, temperature)
        if self.training:
            self._move(logits, self.centre)
        return targets

    @torch.no_grad()
    def _move(self, logits: Tensor, centre: Tensor) -> None:
        total = ranks.summed(logits.sum(0, dtype=centre.dtype))
        count = ranks.summed(torch.tensor(float(len(logits)), device=logits.device))
        weight = (1 - self.momentum) * (count > 0)  # the centre stays if no process has a masked patch
        centre.lerp_(total / count.clamp(min=1), weight.to(centre.dtype))


@torch.no_grad()
def centred(logits: Tensor, centre: Tensor, temperature: float) -> Targets:
    """softmax((logits − centre) / temperature), (N, K) → (1, N, K)."""
    prototypes = centre.to(_wide(logits)) / -temperature
    return _normalised(logits, prototypes, temperature)


@torch.no_grad()
def sinkhorn(logits: Tensor, temperature: float) -> Targets:
    """Apply Sinkhorn-Knopp to exp(logits / temperature), (N, K) → (1, N, K).

    In each of three rounds, each prototype gets the same share of all samples, then each sample the sum 1. The samples
    are those of all processes that train together (N may differ, and be 0). The usual divisions by K and by the number
    of samples cancel in the next half of a round, and are left out.
    """
    wide = _wide(logits)
    highest = logits.amax().to(wide) if logits.numel() else torch.full((), -torch.inf, dtype=wide, device=logits.device)
    highest = ranks.gathered(highest[None]).amax() / temperature
    prototypes = -highest.expand(logits.shape[1])  # no exponential overflows; only differences matter
    for turn in range(ROUNDS):
        total = ranks.summed(_shares(logits, prototypes, temperature, equal=turn > 0))
        prototypes = prototypes - total.clamp(min=torch.finfo(wide).tiny).log_()
    return _normalised(logits, prototypes, temperature)


def parts(logits: Tensor, views: int = 1) -> Iterator[slice]:
    """Yield rows of (…, N, K) that are computed at once, if each is needed `views` times side by side."""
    rows, prototypes = logits.shape[-2:]
    budget = PART.get(logits.device.type, PART["cuda"])
    step = max(1, budget // (prototypes * max(views, logits.shape[:-2].numel())))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def _shares(logits: Tensor, prototypes: Tensor, temperature: float, equal: bool) -> Tensor:
    """Return each prototype's share of all samples under its present factor, (K,).

    With `equal` each sample gets the same weight first; otherwise samples count as they are.
    """
    total = torch.zeros_like(prototypes)
    for rows in parts(logits):
        each = _scaled(logits[rows], prototypes, temperature).exp_()
        if equal:
            each.div_(each.sum(1, keepdim=True).clamp_(min=torch.finfo(each.dtype).tiny))
        total += each.sum(0)
    return total


def _normalised(logits: Tensor, prototypes: Tensor, temperature: float) -> Targets:
    """Make every sample sum to 1."""
    samples = prototypes.new_empty(1, len(logits))
    for rows in parts(logits):
        samples[0, rows] = -_scaled(logits[rows], prototypes, temperature).logsumexp(1)
    return Targets(logits[None], samples, prototypes, temperature)


def _scaled(logits: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature + prototypes, in the prototypes' type."""
    return torch.add(prototypes, logits.to(prototypes.dtype), alpha=1 / temperature)


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
