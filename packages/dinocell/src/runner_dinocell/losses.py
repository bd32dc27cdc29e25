"""The losses of DINOv2 (Oquab et al. 2023, arXiv:2304.07193), in float32 or better whatever the network computes in.

B images, two global and L local crops of each, K prototypes, D numbers in an embedding; crops lie crop by crop
(`views`). τ is the student's temperature, p the teacher's distributions (`targets`).
"""

from __future__ import annotations

from typing import Any

import torch
from runner_core import ranks
from torch import Tensor
from torch.nn import functional

from runner_dinocell.targets import Targets, parts

EPSILON = 1e-8
"""Added to distances before their logarithm."""
TIED = 0.01
"""Equal embeddings are pushed apart as strongly as embeddings at this distance."""


def dino(global_logits: Tensor, local_logits: Tensor, targets: Targets, temperature: float) -> Tensor:
    """−1/(2 + 2L) · Σ over crop pairs (t, s) of mean_B Σ_k p_t·ln softmax(s/τ).

    t is a teacher's crop; s is a student's local crop or the other global one. The shapes are (2B, K), (L·B, K) and
    targets (1, 2B, K) → 0-d. Cross-entropy is linear in p, so the two teacher crops of an image are averaged before
    they meet its local crops.
    """
    images = len(global_logits) // 2
    crops = len(local_logits) // images
    crossed = cross_entropy(global_logits[None], targets.exchanged(), temperature)
    local = cross_entropy(local_logits.unflatten(0, (-1, images)), targets.of_pairs(), temperature) if crops else 0.0
    return (crossed + 2 * local) / (images * (2 + 2 * crops))


def ibot(masked_logits: Tensor, targets: Targets, temperature: float, weights: Tensor, crops: int) -> Tensor:
    """−1/crops · Σ over masked patches of weight · Σ_k p·ln softmax(s/τ): (M, K) and targets (1, M, K) → 0-d.

    `weights` (M,) are 1 over the number of masked patches of the patch's crop (`patch_weights`), so that each masked
    crop counts the same. `crops` counts all global crops, also those without masks, as in DINOv2's code: the loss of a
    student that knows nothing is ln K times the share of masked crops.
    """
    return cross_entropy(masked_logits[None], targets, temperature, weights) / crops


def patch_weights(mask: Tensor, index: Tensor) -> Tensor:
    """Return 1 over the number of masked patches in each patch's crop: (crops, T) bool and (M,) → (M,) float32."""
    return (1 / mask.sum(1).clamp(min=1).float())[index // mask.shape[1]]


def koleo(features: Tensor) -> Tensor:
    """−mean ln(distance to the nearest other embedding, all of length 1): (B, D) → 0-d.

    Source: Sablayrolles et al. 2019, arXiv:1806.03198. The loss is 0 if there is no other embedding.

    The distance of equal embeddings has no gradient, so collapsed embeddings would stay together: each of them is
    pushed in a direction of its own, always the same for its place in the batch.

    Neighbours are the embeddings of all processes that train together, and gradients flow to them; the mean is over
    this process's. Each process must have the same number.
    """
    with torch.autocast(features.device.type, enabled=False):
        own = functional.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1, eps=EPSILON)
        everyone = ranks.gathered(own)
        if len(everyone) < 2:
            return own.sum() * 0
        with torch.no_grad():
            likeness = own @ everyone.T
            likeness.diagonal(ranks.number() * len(own)).fill_(-torch.inf)
            nearest = likeness.argmax(1)
        loss: Tensor = _Apart.apply(own, everyone, nearest, ranks.number() * len(own))
        return loss


class _Apart(torch.autograd.Function):
    """−mean ln(|own − everyone[nearest]| + `EPSILON`): (N, D), (M, D), (N,) → 0-d; `first` is own's place in everyone.

    Its gradient is written out, so that ties cost nothing unless there are some.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, everyone: Tensor, nearest: Tensor, first: int) -> Tensor:
        apart = own - everyone[nearest]
        distance = torch.linalg.vector_norm(apart, dim=-1)
        ctx.save_for_backward(apart, distance, nearest)
        ctx.first, ctx.many = first, len(everyone)
        return -(distance + EPSILON).log().mean()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        apart, distance, nearest = ctx.saved_tensors
        tied = distance == 0
        scale = -outer / len(apart) / (distance + EPSILON) / torch.where(tied, 1, distance)
        gradient = apart.mul(scale[:, None])
        if apart.device.type != "cpu" or tied.any():  # an accelerator would have to wait for the answer
            push = _directions(apart, ctx.first) * (-outer / len(apart) / TIED)
            gradient = torch.where(tied[:, None], push, gradient)
        others = gradient.new_zeros(ctx.many, gradient.shape[1]).index_add_(0, nearest, gradient, alpha=-1)
        return gradient, others, None, None


def _directions(like: Tensor, first: int) -> Tensor:
    """Return unit vectors in the shape (N, D) of `like`, one for each place from `first` on.

    They depend on nothing else.
    """
    places = torch.arange(first + 1, first + 1 + len(like), device=like.device, dtype=like.dtype)
    waves = (places[:, None] * torch.arange(1, 1 + like.shape[1], device=like.device, dtype=like.dtype).sqrt()).sin()
    return functional.normalize(waves, dim=-1)


def cross_entropy(logits: Tensor, targets: Targets, temperature: float, weights: Tensor | None = None) -> Tensor:
    """Σ weight · H(p, softmax(logits / temperature)): (G, N, K), each of the G against the same (N, K) → 0-d.

    `weights` is (N,), by default 1. It takes almost no memory besides the logits and their gradient: softmaxes are
    computed part by part, and again in the backward pass.
    """
    if weights is None:
        weights = targets.samples.new_ones(logits.shape[1])
    value: Tensor = _CrossEntropy.apply(logits, temperature, weights, *targets)
    return value


class _CrossEntropy(torch.autograd.Function):
    """−Σ p·ln softmax(z) = ln Σ exp z − Σ p·z, as p sums to 1; its gradient is softmax(z) − p."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, weights: Tensor, *fields: Any) -> Tensor:
        targets = Targets(*fields)
        total = targets.samples.new_zeros(())
        sums = targets.samples.new_empty(logits.shape[:2])
        for rows in parts(targets.logits, len(logits)):
            z = logits[:, rows].to(sums.dtype).div(temperature)
            sums[:, rows] = z.logsumexp(-1)
            each = sums[:, rows] - z.mul_(targets.at(rows)).sum(-1)
            total += (each * weights[rows]).sum()
        *tensors, ctx.target_temperature = targets
        ctx.temperature = temperature
        ctx.save_for_backward(logits, weights, sums, *tensors)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        logits, weights, sums, *tensors = ctx.saved_tensors
        targets = Targets(tensors[0], tensors[1], tensors[2], ctx.target_temperature)
        gradient = torch.empty_like(logits)
        scale = (outer * weights / ctx.temperature)[:, None]
        for rows in parts(targets.logits, len(logits)):
            z = logits[:, rows].to(sums.dtype)
            softmax = torch.add(-sums[:, rows, None], z, alpha=1 / ctx.temperature).exp_()
            gradient[:, rows] = softmax.sub_(targets.at(rows)).mul_(scale[rows])
        return gradient, None, None, None, None, None, None
