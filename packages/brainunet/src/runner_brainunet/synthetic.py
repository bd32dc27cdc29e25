"""Slices of heads that no scanner made: random contrasts painted onto the anatomy of the training scans.

A network that has seen arbitrary contrasts has to look for the brain's shape (SynthStrip, Hoopes et al. 2022,
10.1016/j.neuroimage.2022.119474; SynthSeg, Billot et al. 2023). Here the label map comes from the training slice
itself: its intensities are clustered inside the brain mask and outside. Structures are added around the brain, every
class gets an intensity of its own, and the slice is moved while it is "scanned". Deformation, bias field, resolution,
noise and field of view follow in `augment`, as for real slices. Every random number comes from the given generator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runner_brainunet.augment import Random, smooth
from runner_brainunet.config import AugmentConfig

AIR = 0.06
"""Largest intensity of air in a prepared scan (0 to 1)."""
INSIDE, OUTSIDE = 3, 4
"""Numbers of classes: of the brain, and of the tissue around it."""
SHAPES = 3
"""Further classes for structures that are added outside the brain."""
TYPICAL = {
    # brain: fluid, grey, white matter  around it: bone, muscle, skin or marrow, fat
    "T1": ((0.15, 0.50, 0.75), (0.08, 0.35, 0.60, 0.95)),
    "T2": ((0.95, 0.60, 0.45), (0.08, 0.25, 0.45, 0.70)),
    "FLAIR": ((0.12, 0.65, 0.50), (0.08, 0.35, 0.45, 0.60)),
    "PD": ((0.85, 0.80, 0.65), (0.10, 0.50, 0.60, 0.80)),
}
"""Typical intensities of the classes, which are in the order of their brightness in T1."""


def synthesise(image: Tensor, masks: Tensor, config: AugmentConfig, generator: object) -> Tensor:
    """Return `image` (B, C, H, W) in [0, 1] with a share of `config.synthetic` of its samples made anew.

    `masks` (B, C, H, W) in {0, 1} is the brain in every slice of `image`; it stays true. Samples come in random order,
    so the first ones are made anew.
    """
    count = math.ceil(config.synthetic * len(image))
    if count == 0:
        return image
    rng = Random(generator, count, image.device)
    use = rng.chance(config.synthetic * len(image) / count, 1, 1, 1)
    made = _motion(_paint(image[:count], masks[:count], rng), rng)
    return torch.cat((torch.lerp(image[:count], made, use), image[count:]))


def _paint(image: Tensor, masks: Tensor, rng: Random) -> Tensor:
    """Return slices with a new intensity for each class, and some of the old texture."""
    brain = masks > 0.5
    tissue = ~brain & (image > AIR)
    inner, inner_rest = cluster(image, brain, INSIDE)
    outer, outer_rest = cluster(image, tissue, OUTSIDE)
    label = torch.where(brain, inner + 1, torch.where(tissue, outer + 1 + INSIDE, 0))
    label = _surroundings(label, masks, rng)
    levels = _levels(rng)
    painted = levels.gather(1, label.flatten(1)).view_as(image)
    texture = torch.where(brain, inner_rest, outer_rest * tissue)
    painted = (
        painted + texture * rng.uniform(-1, 1, 1, 1, 1) + rng.normal(*image.shape[1:]) * rng.uniform(0, 0.06, 1, 1, 1)
    )
    width = rng.uniform(0.3, 0.8)
    painted = smooth(painted.clamp(min=0), width, width)  # voxels at borders hold parts of both classes
    return (painted / painted.amax((1, 2, 3), keepdim=True).clamp(min=1e-3) * rng.uniform(0.7, 1.15, 1, 1, 1)).clamp(
        0, 1
    )


def cluster(image: Tensor, where: Tensor, classes: int, rounds: int = 4) -> tuple[Tensor, Tensor]:
    """Return each voxel's class (long, 0 is the darkest) by k-means in each sample, and its distance to the mean.

    Only voxels in `where` (bool) count; the others get a class, too.
    """
    values = image.flatten(1)[:, ::5]
    counted = where.flatten(1)[:, ::5].float()
    total = counted.sum(1, keepdim=True).clamp(min=1)
    middle = (values * counted).sum(1, keepdim=True) / total
    spread = (((values - middle) ** 2 * counted).sum(1, keepdim=True) / total).sqrt()
    centres = middle + spread * torch.linspace(-1.5, 1.5, classes, device=image.device)
    for _ in range(rounds):
        near = _class_of(values, centres)
        member = torch.stack([(near == c) * counted for c in range(classes)], 1)
        weight = member.sum(2)
        means = (member * values[:, None]).sum(2) / weight.clamp(min=1)
        centres = torch.where(weight > 0, means, centres)
    found = _class_of(image.flatten(1), centres)
    return found.view(image.shape), (image.flatten(1) - centres.gather(1, found)).view_as(image)


def _class_of(values: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the nearest centre: `centres` (B, K) rise, so the borders lie in the middle."""
    borders = (centres[:, 1:] + centres[:, :-1]) / 2
    found = torch.zeros_like(values, dtype=torch.long)
    for border in borders.T:
        found += values > border[:, None]
    return found


def _surroundings(label: Tensor, masks: Tensor, rng: Random) -> Tensor:
    """Change what lies around the brain: a layer along it, structures in the tissue or the air, a face or none."""
    height, width = label.shape[2:]
    size, outside = (height, width), masks < 0.5
    near = smooth(masks, *(rng.uniform(1.0, 3.5),) * 2)
    layer = outside & (near > rng.uniform(0.05, 0.3, 1, 1, 1)) & (rng.chance(0.3, 1, 1, 1) > 0)
    extra = label.new_tensor(1 + INSIDE + OUTSIDE)
    label = torch.where(layer, extra, label)
    for number in range(1, SHAPES):
        shape = rng.field(8, size) + rng.field(4, size) > rng.uniform(0.8, 2.0, 1, 1, 1)
        within = (label > 0) | (rng.chance(0.3, 1, 1, 1) > 0)  # in tissue only, or in the air too
        label = torch.where(shape & within & outside & (rng.chance(0.4, 1, 1, 1) > 0), extra + number, label)
    # a side of the head is cut off as by defacing, or all that is far from the brain, as by a rough stripping
    far = smooth(masks, *(rng.uniform(4.0, 10.0),) * 2) < rng.uniform(0.01, 0.1, 1, 1, 1)
    y = torch.linspace(-1, 1, height, device=label.device)[:, None]
    x = torch.linspace(-1, 1, width, device=label.device)[None]
    angle = rng.uniform(0, 2 * math.pi, 1, 1, 1)
    side = x * torch.cos(angle) + y * torch.sin(angle) > rng.uniform(-0.1, 0.6, 1, 1, 1)
    cut = far & (side | (rng.chance(0.2, 1, 1, 1) > 0)) & (rng.chance(0.4, 1, 1, 1) > 0)
    return torch.where(cut & outside, 0, label)


def _levels(rng: Random) -> Tensor:
    """Return the intensity of each class (B, classes): of a known contrast, or arbitrary in a third of the samples."""
    known = torch.tensor([(0.0, *inside, *outside) for inside, outside in TYPICAL.values()], device=rng.device)
    which = rng.uniform(0, len(known)).long()
    typical = known[which] + rng.normal(known.shape[1]) * 0.08
    arbitrary = rng.uniform(0, 1, known.shape[1])
    levels = torch.where(rng.chance(1 / 3, 1) > 0, arbitrary, typical)
    levels = torch.cat((levels, rng.uniform(0, 1, SHAPES)), 1).clamp(0, 1)
    return torch.cat((levels[:, :1] * rng.uniform(0, 0.1, 1), levels[:, 1:]), 1)  # air


def _motion(image: Tensor, rng: Random) -> Tensor:
    """Move the head by up to some voxels between the lines of its Fourier transform, in a fifth of the samples."""
    height = image.shape[2]
    shift = rng.field(6, (height, 1))[..., 0] * rng.uniform(0, 1.5, 1, 1) * rng.chance(0.2, 1, 1)
    lines = torch.fft.fftfreq(height, device=image.device)
    phase = torch.exp(-2j * math.pi * lines * shift)[..., None]
    return torch.fft.ifft(torch.fft.fft(image, dim=2) * phase, dim=2).abs().clamp(0, 1)
