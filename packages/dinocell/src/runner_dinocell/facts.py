"""What tells in the log whether anything is learned, of the crops of this process.

- teacher_entropy (nats): of the teacher's answer to a global crop, on average; ln K where it says nothing;
- teacher_information (nats): how much surer it is of each crop than of all together, at most ln 2B; 0 where it answers
  the same to all;
- dino_margin, ibot_margin (nats): how far each loss is below ln K, the loss of a student that knows nothing; of iBOT,
  of the crops that are masked;
- neighbour_distance: geometric mean of the distances that KoLeo sees, 0 … 2;
- feature_rank: participation ratio (Σλ)²/Σλ² of the teacher's embeddings, λ the eigenvalues of their covariance: in how
  many directions they differ, at most D;
- feature_spread: in what share of their length they differ, 0 … 1;
- grey_levels: distinct grey values of the channel that has fewest, mean over images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from runner_dinocell.targets import Targets, parts


@torch.no_grad()
def facts(
    values: Mapping[str, Tensor], targets: Targets, features: Tensor, mask: Tensor, grey: Tensor
) -> dict[str, Tensor]:
    """`values`: the losses of this step by name; `targets`: of the global crops (1, 2B, K); `features` (2B, D);
    `mask` (2B, T) bool; `grey` (B, C). 0-d tensors by name, none waited for."""
    uninformed = math.log(targets.logits.shape[-1])
    entropy, information = answers(targets)
    rank, spread = variety(features)
    told = {"teacher_entropy": entropy, "teacher_information": information, "feature_rank": rank}
    told |= {"feature_spread": spread, "grey_levels": grey.amin(1).float().mean()}
    if "dino" in values:
        told["dino_margin"] = uninformed - values["dino"].detach()
    if "ibot" in values:
        masked = mask.any(1).sum().clamp(min=1)
        told["ibot_margin"] = uninformed - values["ibot"].detach() * (len(mask) / masked)
    if "koleo" in values:
        told["neighbour_distance"] = (values["koleo"].detach() / -2).exp()
    return told


def answers(targets: Targets) -> tuple[Tensor, Tensor]:
    """Mean entropy of (1, N, K) distributions, and entropy of their mean less that: both 0-d, nats."""
    count = targets.logits.shape[1]
    total, entropy = torch.zeros_like(targets.prototypes), targets.samples.new_zeros(())
    for rows in parts(targets.logits):
        exponents = targets.exponents(rows)[0]
        p = exponents.exp()
        total += p.sum(0)
        entropy -= exponents.mul_(p).sum()
    mean = total / count
    return entropy / count, -torch.special.xlogy(mean, mean).sum() - entropy / count


def variety(features: Tensor) -> tuple[Tensor, Tensor]:
    """Participation ratio of the covariance of (N, D), and the share of the length that varies: both 0-d."""
    with torch.autocast(features.device.type, enabled=False):
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        centred = wide - wide.mean(0)
        gram = centred @ centred.T if len(wide) < wide.shape[1] else centred.T @ centred
        variance, tiny = gram.trace(), torch.finfo(gram.dtype).tiny
        spread = (variance / wide.square().sum().clamp(min=tiny)).clamp(0, 1).sqrt()
        return variance.square() / gram.square().sum().clamp(min=tiny), spread
