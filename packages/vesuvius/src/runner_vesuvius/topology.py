"""The topology loss: Betti matching of the predicted probability and the truth, by persistent homology.

Stucki, Paetzold, Shit, Menze, Bauer: "Topologically faithful image segmentation via induced matching of persistence
barcodes", ICML 2023. As the threshold falls from 1 to 0, components, loops and cavities of the prediction are born at
one voxel's probability and die at another's. Bars that match a feature of the truth (born at 1, dead at 0) are drawn to
it, all others to zero length. The choice of these voxels is constant almost everywhere, so the gradient flows through
their values alone, and is exact.
"""

from __future__ import annotations

import numpy as np
import torch
from runner_core import random_below, random_words
from torch import Tensor

from runner_vesuvius.persistence import Pairs, match

PLACES = 16
"""Places that are looked at for each crop."""


def topology(probability: Tensor, truth: Tensor, known: Tensor, side: int, step: int) -> Tensor:
    """Return the mean over the samples of `topology_loss` on a crop of each.

    `probability` is float, `truth` and `known` are bool, all (B, 1, D, H, W), on any device. `side` is the crop's
    (voxels); the crop's position depends on `step`, the training's.
    """
    losses = []
    for sample in range(len(probability)):
        true, seen = truth[sample, 0].bool(), known[sample, 0]
        region = crop(seen, true, side, step)
        losses.append(topology_loss(probability[sample, 0][region], true[region], seen[region]))
    return torch.stack(losses).mean()


def topology_loss(probability: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Return the Betti matching loss (0-d) of `probability` and `truth` (bool), both (D, H, W).

    The loss covers dimensions 0, 1 and 2: Σ over matched bars of (birth − 1)² + (death − 0)², plus Σ over the others of
    (birth − death)², divided by 1 + the number of the truth's bars. So the pull on an error does not depend on the
    noise elsewhere. Bars of the truth that the prediction lacks count 1 each and have no gradient, as in the paper. A
    loss of 0 means the same topology with certainty.

    Where `known` (D, H, W, bool) is not set, prediction and truth are background, as in the official score: both are
    cut alike, whatever they hold there, and no gradient comes from it.

    It goes beyond the paper in two points:

    - The component that never dies counts too: it is drawn to 1 if the truth has a component, else to 0. Without
      it, a single false component in an empty crop would be no error.
    - If two components of the prediction merge, the one with the better voxel *of the truth* continues, not the one
      with the better voxel; and likewise for cavities. Otherwise a false component of probability 0.9 would be older
      than a true one of 0.6, which would be pulled down in its place.

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
        return value.sum()  # not finite either: the training's guard reports it
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
    """Return the part of volumes (D, H, W) to look at in this step.

    The step gives a few places. The one with the most known voxels is taken, and surface voxels count twice. The result
    depends on the arguments alone; `side` is cut to the volume's.
    """
    sides = [min(side, length) for length in known.shape]
    drawn = random_words(0, step, np.arange(PLACES))[:, :3]
    starts = random_below(drawn, np.array(known.shape) - sides + 1).tolist()
    regions = [tuple(slice(at, at + n) for at, n in zip(start, sides, strict=True)) for start in starts]
    weights = torch.stack([known[region].sum() + (truth & known)[region].sum() for region in regions])
    return regions[int(weights.argmax())]


def _values(value: Tensor, bars: Pairs) -> tuple[Tensor, Tensor]:
    births, deaths = (torch.from_numpy(voxels).to(value.device) for voxels in bars)
    return value[births], value[deaths]
