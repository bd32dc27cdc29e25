"""Losses on logits, each masked by the annotation, each the mean over its samples' own losses.

All tensors are (B, 1, D, H, W). `logits` may be of any floating type: sums are in float32 or better. `surface` is 1 on
surface voxels, else 0; `known` (bool) is true where the label is not 2 (ignore), and on all surface voxels. Voxels that
are not known change neither a loss nor its gradient, whatever is predicted there; their own gradient is exactly 0. A
sample without known voxels costs 0, with gradients of 0. As each loss is a mean over samples, a batch may be cut into
micro-batches without changing the objective.

`EPSILON` (voxels) keeps the quotients defined if there is no surface. It is small against the 10⁴ surface voxels of a
patch, so it changes nothing there; an empty patch is left to the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from runner_core import Tensors
from torch import Tensor
from torch.nn import functional

from runner_vesuvius.config import LossConfig
from runner_vesuvius.skeleton import pooled_skeleton, soft_skeleton

EPSILON = 1.0
"""Voxels that are added to both sides of a quotient."""


class Loss(NamedTuple):
    """A loss: `function` maps (logits, batch, settings) to a 0-d tensor.

    `needs` names the fields of a batch that it reads besides surface and known.
    """

    function: Callable[[Tensor, Tensors, LossConfig], Tensor]
    needs: tuple[str, ...] = ()


def weighted_bce(logits: Tensor, surface: Tensor, known: Tensor, positive: float) -> Tensor:
    """−mean_M[w·y·log p + (1−y)·log(1−p)], w = `positive`; M: the known voxels.

    It is computed from logits z as (1−y + w·y)·softplus(z) − w·y·z, which no logit makes infinite. The gradient is p at
    background and w·(p−1) at surface voxels, divided by their number: never 0, never against the label.
    """
    z = _float(logits).masked_fill(~known, 0)
    rise = surface.to(z.dtype) * positive
    return _mean_known((1 - surface.to(z.dtype) + rise) * functional.softplus(z) - rise * z, known)


def soft_dice(logits: Tensor, surface: Tensor, known: Tensor) -> Tensor:
    """1 − (2Σpy + ε)/(Σp + Σy + ε), sums over a sample's known voxels.

    Source: Milletari et al. 2016, 10.1109/3DV.2016.79, without squares. The gradient for p is −(2(Σp + Σy + ε) − 2Σpy −
    ε)/(Σp + Σy + ε)² at surface voxels, which is below 0, and (2Σpy + ε)/(Σp + Σy + ε)² at background.
    """
    p = _probability(logits, known)
    y = surface.to(p.dtype)
    return _mean_samples(1 - (2 * _sum(p * y) + EPSILON) / (_sum(p) + _sum(y) + EPSILON), known)


def skeleton_recall(logits: Tensor, tube: Tensor, known: Tensor) -> Tensor:
    """1 − (Σp·S + ε)/(ΣS + ε), S: the known voxels of `tube` (bool), the widened medial surface.

    Source: Kirchhoff et al. 2024, 10.1007/978-3-031-72980-5_13. The gradient raises p equally everywhere in the tube,
    whether its sheet is thick or thin, and is 0 outside: a gap costs its size along the sheet. It never lowers p, so it
    needs losses that do.
    """
    p = _probability(logits, known)
    s = (tube & known).to(p.dtype)
    return _mean_samples(1 - (_sum(p * s) + EPSILON) / (_sum(s) + EPSILON), known)


def soft_cldice(logits: Tensor, surface: Tensor, medial: Tensor, known: Tensor, iterations: int) -> Tensor:
    """1 − 2TT'/(T + T'), T = (ΣS_p·y + ε)/(ΣS_p + ε), T' = (ΣS_y·p + ε)/(ΣS_y + ε).

    Source: Shit et al. 2021, 10.1109/CVPR46437.2021.01629. S_p is the soft skeleton of p after `iterations` erosions;
    S_y is the surface's own skeleton, the known voxels of `medial` (bool). The gradient raises p on S_y as skeleton
    recall does. It lowers p where the skeleton of the prediction lies beside the surface (through the voxels that are
    the skeleton's maxima and minima).
    """
    p = _probability(logits, known)
    return _cldice(p, soft_skeleton(p, known, iterations), surface, (medial & known).to(p.dtype), known)


def pooled_cldice(logits: Tensor, surface: Tensor, known: Tensor, iterations: int) -> Tensor:
    """Return `soft_cldice` as the paper's code computes it, for `loss.cldice_skeleton: pools`.

    S_y is the soft skeleton of the truth, computed in every step, and both skeletons are made of max-pools.
    """
    p = _probability(logits, known)
    own = pooled_skeleton(surface.to(p.dtype), known, iterations)
    return _cldice(p, pooled_skeleton(p, known, iterations), surface, own, known)


def _cldice(p: Tensor, found: Tensor, surface: Tensor, own: Tensor, known: Tensor) -> Tensor:
    """Return the loss from the skeletons `found` (of p) and `own` (of the surface)."""
    precision = (_sum(found * surface.to(p.dtype)) + EPSILON) / (_sum(found) + EPSILON)
    sensitivity = (_sum(own * p) + EPSILON) / (_sum(own) + EPSILON)
    return _mean_samples(1 - 2 * precision * sensitivity / (precision + sensitivity), known)


def boundary(logits: Tensor, distance: Tensor, known: Tensor) -> Tensor:
    """mean_M(p·φ), φ = `distance`: signed voxels to the surface's border, below 0 inside.

    Source: Kervadec et al. 2019, 10.1016/j.media.2020.101851. The gradient for p is φ divided by the number of known
    voxels: it raises p inside and lowers it outside, the more the farther away. The loss can be below 0.
    """
    p = _probability(logits, known)
    return _mean_known(p * distance.to(p.dtype), known)


def surface_distance(logits: Tensor, distance: Tensor, known: Tensor, tau: float) -> Tensor:
    """mean_M(min(D/τ, 1)·p), D: voxels to the nearest surface voxel, 0 on it.

    `distance` is signed, below 0 inside. The gradient for p is min(D/τ, 1) divided by the number of known voxels: it
    lowers p beside the surface, and is 0 on it. It never raises p, so it needs losses that do.
    """
    p = _probability(logits, known)
    return _mean_known(p * (distance.to(p.dtype) / tau).clamp(0, 1), known)


LOSSES = {
    "bce": Loss(lambda z, batch, config: weighted_bce(z, batch["surface"], batch["known"], config.positive)),
    "dice": Loss(lambda z, batch, config: soft_dice(z, batch["surface"], batch["known"])),
    "skeleton_recall": Loss(lambda z, batch, config: skeleton_recall(z, batch["tube"], batch["known"]), ("tube",)),
    "cldice": Loss(lambda z, batch, config: _cldice_as_set(z, batch, config), ("medial",)),  # noqa: PLW0108 - see below
    "boundary": Loss(lambda z, batch, config: boundary(z, batch["distance"], batch["known"]), ("distance",)),
    "surface_distance": Loss(
        lambda z, batch, config: surface_distance(z, batch["distance"], batch["known"], config.tau), ("distance",)
    ),
}
"""Losses by the names of the settings, without the topology loss, which is not computed in every step."""


def _cldice_as_set(z: Tensor, batch: Tensors, config: LossConfig) -> Tensor:
    if config.cldice_skeleton == "pools":
        return pooled_cldice(z, batch["surface"], batch["known"], config.cldice_iterations)
    return soft_cldice(z, batch["surface"], batch["medial"], batch["known"], config.cldice_iterations)


def _float(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _probability(logits: Tensor, known: Tensor) -> Tensor:
    """Return p, and 0 where not known, so that the gradient there is 0 too."""
    return torch.sigmoid(_float(logits).masked_fill(~known, -torch.inf))


def _sum(values: Tensor) -> Tensor:
    """(B, …) → (B,)."""
    return values.flatten(1).sum(1)


def _mean_known(values: Tensor, known: Tensor) -> Tensor:
    """Average over each sample's known voxels, then over samples; `values` are finite everywhere."""
    return (_sum(values * known) / _sum(known).clamp(min=1)).mean()


def _mean_samples(losses: Tensor, known: Tensor) -> Tensor:
    """Average (B,); samples without known voxels count as 0."""
    return (losses * known.flatten(1).any(1)).mean()
