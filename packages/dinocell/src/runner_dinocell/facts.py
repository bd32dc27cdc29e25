"""Facts in the log that show whether anything is learned, from the crops of this process.

- teacher_entropy (nats): mean entropy of the teacher's answer to a global crop; ln K if it says nothing;
- teacher_information (nats): how much surer the teacher is of each crop than of all together, at most ln 2B; 0 if it
  answers the same to all;
- dino_margin, ibot_margin (nats): how far each loss is below ln K, the loss of a student that knows nothing; for iBOT
  over the masked crops;
- neighbour_distance: geometric mean of the distances that KoLeo sees, 0 … 2;
- feature_rank: participation ratio (Σλ)²/Σλ² of the teacher's embeddings, λ the eigenvalues of their covariance: in how
  many directions they differ, at most D;
- feature_spread: the share of their length in which they differ, 0 … 1;
- grey_levels: distinct grey values of the channel with the fewest, mean over images.
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
    """Return the facts as 0-d tensors by name, without waiting for any.

    Args:
        values: the losses of this step by name.
        targets: the targets of the global crops (1, 2B, K).
        features: (2B, D).
        mask: (2B, T) bool.
        grey: (B, C).
    """
    chance_loss = math.log(targets.logits.shape[-1])
    entropy, information = answers(targets)
    rank, spread = variety(features)
    found = {"teacher_entropy": entropy, "teacher_information": information, "feature_rank": rank}
    fewest = torch.where(grey > 0, grey, torch.iinfo(grey.dtype).max).amin(1)  # 0 is of a channel that is missing
    found |= {"feature_spread": spread, "grey_levels": fewest.float().mean()}
    if "dino" in values:
        found["dino_margin"] = chance_loss - values["dino"].detach()
    if "ibot" in values:
        masked = mask.any(1).sum().clamp(min=1)
        found["ibot_margin"] = chance_loss - values["ibot"].detach() * (len(mask) / masked)
    if "koleo" in values:
        found["neighbour_distance"] = (values["koleo"].detach() / -2).exp()
    return found


def answers(targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the mean entropy of (1, N, K) distributions, and the entropy of their mean less that: both 0-d, nats."""
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
    """Return the participation ratio of the covariance of (N, D), and the share of the length that varies: both 0-d."""
    with torch.autocast(features.device.type, enabled=False):
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        centred = wide - wide.mean(0)
        gram = centred @ centred.T if len(wide) < wide.shape[1] else centred.T @ centred
        variance, tiny = gram.trace(), torch.finfo(gram.dtype).tiny
        spread = (variance / wide.square().sum().clamp(min=tiny)).clamp(0, 1).sqrt()
        return variance.square() / gram.square().sum().clamp(min=tiny), spread
