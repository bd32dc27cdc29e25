"""The topology loss: Betti matching of the predicted probability and the truth, by persistent homology.

Stucki, Paetzold, Shit, Menze, Bauer: "Topologically faithful image segmentation via induced matching of persistence
barcodes", ICML 2023. As the threshold falls from 1 to 0, components, loops and cavities of the prediction are born at
one voxel's probability and die at another's. Bars that are the same feature as one of the truth (born at 1, dead at 0)
are drawn to it, all others to zero length. Which voxels these are is constant almost everywhere, so the gradient flows
through their values alone, and is exact.
"""

from __future__ import annotations

import numpy as np
import torch
from runner_core.sampling import below, words
from torch import Tensor

from runner_vesuvius.persistence import Pairs, match

PLACES = 16
"""Places that are looked at for each crop."""


def topology(probability: Tensor, truth: Tensor, known: Tensor, side: int, step: int) -> Tensor:
    """Mean over the samples of `topology_loss` on a crop of each.

    `probability` float, `truth` and `known` bool, all (B, 1, D, H, W), on any device; `side`: of the crop (voxels);
    `step`: of the training, on which depends where the crop lies.
    """
    losses = []
    for sample in range(len(probability)):
        true, seen = truth[sample, 0].bool(), known[sample, 0]
        region = crop(seen, true, side, step)
        losses.append(topology_loss(probability[sample, 0][region], true[region], seen[region]))
    return torch.stack(losses).mean()


def topology_loss(probability: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Betti matching loss (0-d) of `probability` (D, H, W) and `truth` (D, H, W, bool), over dimensions 0, 1 and 2.

    Σ over matched bars of (birth − 1)² + (death − 0)², plus Σ over the others of (birth − death)², divided by 1 + the
    number of the truth's bars: the pull on an error does not depend on how much noise there is besides. Bars of the
    truth that the prediction lacks count 1 each and have no gradient, as in the paper. 0: the same topology, and sure.

    Where `known` (D, H, W, bool) is not set, prediction and truth are background, as in the official score: it cuts
    both alike, whatever either has there, and no gradient comes from it.

    In two things it goes beyond the paper:

    - The component that never dies counts too: it is drawn to 1 where the truth has a component, else to 0. Without
      it, a single false component in an empty crop would be no error.
    - Where two components of the prediction merge, that with the better voxel *of the truth* goes on, not that with the
      better voxel; and likewise for cavities. A false component of probability 0.9 would otherwise be the elder of a
      true one of 0.6, which would be pulled down in its stead.

    The truth's bars are those of its 6-connected components, as in the official score. Computed on the CPU in the
    probability's precision (half precision: float32).
    """
    probability = torch.where(known, probability, 0.0)
    if probability.dtype in (torch.float16, torch.bfloat16):
        probability = probability.float()
    value = probability.flatten()
    true = (truth & known).cpu().numpy()
    falling = -probability.detach().cpu().numpy()
    if not np.isfinite(falling).all():
        return value.sum()  # not finite either: the guard of the training has its say
    elders = falling.astype(np.float64) - true
    total = (value[int(elders.argmin())] - float(true.any())).square()
    bars = int(true.any())
    for matching in match(falling, -true.astype(falling.dtype), elders):
        birth, death = _values(value, matching.first)
        total = total + (birth - 1).square().sum() + death.square().sum()
        birth, death = _values(value, matching.only_first)
        total = total + (birth - death).square().sum() + len(matching.only_second.births)
        bars += len(matching.second.births) + len(matching.only_second.births)
    return total / (1 + bars)


def crop(known: Tensor, truth: Tensor, side: int, step: int) -> tuple[slice, ...]:
    """Where to look, at this step, in volumes (D, H, W): of a few places that the step gives, that with the most known
    voxels, those of the surface counting twice. A function of its arguments alone; `side` is cut to the volume's."""
    sides = [min(side, length) for length in known.shape]
    drawn = words(0, step, np.arange(PLACES))[:, :3]
    starts = below(drawn, np.array(known.shape) - sides + 1).tolist()
    regions = [tuple(slice(at, at + n) for at, n in zip(start, sides, strict=True)) for start in starts]
    weights = torch.stack([known[region].sum() + (truth & known)[region].sum() for region in regions])
    return regions[int(weights.argmax())]


def _values(value: Tensor, bars: Pairs) -> tuple[Tensor, Tensor]:
    births, deaths = (torch.from_numpy(voxels).to(value.device) for voxels in bars)
    return value[births], value[deaths]
