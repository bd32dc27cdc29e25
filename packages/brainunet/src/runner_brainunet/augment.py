"""Augmentation of whole batches on the device: from one scanner's few heads towards everybody's.

Trained on a handful of scans, a network learns their scanner. So shapes, contrast, sharpness, field of view and
what surrounds the brain vary here far beyond what any one scanner shows (domain randomisation, Billot et al. 2023,
10.1016/j.media.2023.102789). Every random number comes from the generator given; nothing waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from runner_brainunet.config import AugmentConfig
from runner_brainunet.slices import SAGITTAL


class Random:
    """Random tensors of one batch, from one generator."""

    def __init__(self, generator: Any, count: int, device: Any) -> None:
        self.generator, self.count, self.device = generator, count, device

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """(count, *shape) in [low, high)."""
        drawn = torch.rand((self.count, *shape), generator=self.generator, device=self.device)
        return drawn * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        return torch.randn((self.count, *shape), generator=self.generator, device=self.device)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """(count, *shape) of 0.0 and 1.0."""
        return (self.uniform(0, 1, *shape) < probability).float()

    def field(self, channels: int, coarse: int, size: tuple[int, int]) -> Tensor:
        """Smooth fields (count, channels, *size) of about unit variance, from coarse × coarse normal numbers."""
        seed = self.normal(channels, coarse, coarse)
        return functional.interpolate(seed, size, mode="bicubic", align_corners=True)


def augment(image: Tensor, mask: Tensor, view: Tensor, config: AugmentConfig, generator: Any) -> tuple[Tensor, Tensor]:
    """`image` (B, C, H, W) in [0, 1], `mask` (B, 1, H, W) in {0, 1}, `view` (B,) → both, changed."""
    rng = Random(generator, image.shape[0], image.device)
    if config.flip:
        image, mask = mirror(image, mask, view, rng.chance(0.5))
    image, mask = _decoy(image, mask, config, rng)
    active = rng.chance(config.probability, 1, 1, 1)
    image, mask = _warp(image, mask, active, config, rng)
    changed = _intensity(image, mask, config, rng)
    image = torch.lerp(image, changed, active)
    return _field_of_view(image, mask, config, rng)


def mirror(image: Tensor, mask: Tensor, view: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Left ↔ right where `which` (B,) is 1: the last axis, or for sagittal slices the order of the neighbours."""
    sagittal = (view == SAGITTAL)[:, None, None, None]
    flipped = torch.where(sagittal, image.flip(1), image.flip(3))
    flip = which[:, None, None, None] > 0
    return torch.where(flip, flipped, image), torch.where(flip & ~sagittal, mask.flip(3), mask)


def _warp(image: Tensor, mask: Tensor, active: Tensor, c: AugmentConfig, rng: Random) -> tuple[Tensor, Tensor]:
    """Rotation, scale, stretch, shear, shift and a smooth displacement, in one interpolation."""
    size = (image.shape[2], image.shape[3])
    angle = rng.uniform(-1, 1) * math.radians(c.rotate)
    scale = torch.exp(rng.uniform(-1, 1) * c.scale)
    stretch = torch.exp(rng.uniform(-1, 1) * c.stretch / 2)
    shear = rng.uniform(-1, 1) * c.shear
    cos, sin = torch.cos(angle), torch.sin(angle)
    first, second = scale * stretch, scale / stretch
    shift = rng.uniform(-2, 2, 2) * c.shift
    theta = torch.stack(
        (
            torch.stack((first * cos, first * (shear * cos - sin), shift[:, 0]), 1),
            torch.stack((second * sin, second * (shear * sin + cos), shift[:, 1]), 1),
        ),
        1,
    )
    identity = torch.eye(2, 3, device=image.device)
    theta = torch.lerp(identity.expand_as(theta), theta, active[:, :, :, 0])
    grid = functional.affine_grid(theta, [image.shape[0], 1, *size], align_corners=False)
    if c.elastic:
        moved = rng.field(2, 5, size) * (2 * c.elastic * active)
        grid = grid + moved.permute(0, 2, 3, 1)
    both = functional.grid_sample(torch.cat((image, mask), 1), grid, mode="bilinear", align_corners=False)
    return both[:, :-1], (both[:, -1:] > 0.5).to(mask.dtype)


def _intensity(image: Tensor, mask: Tensor, c: AugmentConfig, rng: Random) -> Tensor:
    """Contrast curve, brightness of the surroundings, bias field, resolution, noise, gain."""
    size = (image.shape[2], image.shape[3])
    if c.contrast:
        image = curve(image, torch.exp(rng.normal(8) * c.contrast))
    if c.surround:
        image = image * _surround(mask, c, rng, size)
    if c.bias:
        image = image * torch.exp(rng.field(1, 4, size) * (rng.uniform(0, 1.5, 1, 1, 1) * c.bias))
    if c.blur:
        image = _blur(image, c, rng)
    image = image * torch.exp(rng.uniform(-1, 1, 1, 1, 1) * c.gain)
    if c.noise:
        sigma = rng.uniform(0, 1, 1, 1, 1) ** 2 * c.noise
        real = image + rng.normal(*image.shape[1:]) * sigma
        image = torch.sqrt(real**2 + (rng.normal(*image.shape[1:]) * sigma) ** 2)
    return image.clamp(0, 1)


def curve(image: Tensor, slopes: Tensor) -> Tensor:
    """Rising piecewise-linear curve through (0, 0) and (1, 1); `slopes` (B, pieces) > 0, relative."""
    pieces = slopes.shape[1]
    knots = functional.pad(torch.cumsum(slopes / slopes.sum(1, keepdim=True), 1), (1, 0))
    position = image.clamp(0, 1) * pieces
    left = position.floor().clamp(max=pieces - 1)
    index = left.long().flatten(1)
    low = knots.gather(1, index)
    high = knots.gather(1, index + 1)
    return torch.lerp(low, high, (position - left).flatten(1)).view_as(image)


def _surround(mask: Tensor, c: AugmentConfig, rng: Random, size: tuple[int, int]) -> Tensor:
    """Factor on what lies outside the brain, 1 inside, with a soft border: a hard one would be a cue."""
    soft = functional.avg_pool2d(functional.avg_pool2d(mask.float(), 7, 1, 3), 7, 1, 3)
    outside = (1 - soft).clamp(0, 1) ** 2
    level = rng.normal(1, 1, 1) * c.surround + rng.field(1, 6, size) * (c.surround / 2)
    return torch.exp(level.clamp(-2.5, 1.2) * outside)


def _blur(image: Tensor, c: AugmentConfig, rng: Random) -> Tensor:
    """Each axis, in a third of the samples, blends with its running mean over 3 or 5 voxels."""
    for kernel, pad in (((5, 1), (2, 0)), ((1, 5), (0, 2)), ((3, 1), (1, 0)), ((1, 3), (0, 1))):
        amount = rng.uniform(0, c.blur, 1, 1, 1) * rng.chance(0.33, 1, 1, 1)
        smooth = functional.avg_pool2d(image, kernel, 1, pad, count_include_pad=False)
        image = torch.lerp(image, smooth, amount)
    return image


def _field_of_view(image: Tensor, mask: Tensor, c: AugmentConfig, rng: Random) -> tuple[Tensor, Tensor]:
    """In some samples one or more sides of the slice, up to 40 %, were not scanned."""
    if not c.crop:
        return image, mask
    height, width = image.shape[2:]
    cut = rng.uniform(0, 0.4, 4) * rng.chance(c.crop, 1) * rng.chance(0.5, 4)
    y = torch.linspace(0, 1, height, device=image.device)[None]
    x = torch.linspace(0, 1, width, device=image.device)[None]
    rows = (y >= cut[:, 0:1]) & (y <= 1 - cut[:, 1:2])
    columns = (x >= cut[:, 2:3]) & (x <= 1 - cut[:, 3:4])
    seen = (rows[:, None, :, None] & columns[:, None, None, :]).to(image.dtype)
    return image * seen, mask * seen.to(mask.dtype)


def _decoy(image: Tensor, mask: Tensor, c: AugmentConfig, rng: Random) -> tuple[Tensor, Tensor]:
    """Random shapes of random brightness in place of the brain, of everything, or of the air around the head.

    The scans may end above the neck, or be defaced; other people's do not. So that a network does not call brain
    whatever fills a ring of fat, or lies where it never saw anything.
    """
    if not c.decoy:
        return image, mask
    size = (image.shape[2], image.shape[3])
    shapes = _shapes(image, rng, size)
    use = rng.chance(c.decoy, 1, 1, 1)
    kind = rng.uniform(0, 3, 1, 1, 1)
    soft = functional.avg_pool2d(mask.float(), 3, 1, 1)
    air = (functional.avg_pool2d((image > 0.06).float().amax(1, keepdim=True), 5, 1, 2) < 0.05).float()
    # a half-plane of air: a neck or a table lies on one side of the head
    side = (rng.field(1, 3, size) > 0).float()
    where = torch.where(kind < 1, soft, torch.where(kind < 1.5, torch.ones_like(soft), air * side)) * use
    return torch.lerp(image, shapes, where.clamp(0, 1)), mask * ((kind >= 1.5) | (use == 0)).to(mask.dtype)


def _shapes(image: Tensor, rng: Random, size: tuple[int, int]) -> Tensor:
    """Patches of four random brightnesses (B, C, H, W), bordered by the level sets of smooth fields."""
    channels = image.shape[1]
    fine = rng.field(4, 12, size) + rng.field(4, 6, size)
    label = functional.one_hot(fine.argmax(1), 4).permute(0, 3, 1, 2).to(image.dtype)
    level = rng.uniform(0, 1, 4, 1, 1)
    return (label * level).sum(1, keepdim=True).expand(-1, channels, -1, -1)
