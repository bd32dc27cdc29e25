"""Random changes of whole batches on the device, so that few heads of one scanner teach about all heads.

A network trained on a handful of scans learns their scanner. So shapes, contrast, sharpness, field of view and the
surroundings of the brain vary here far more than one scanner shows (domain randomisation, Billot et al. 2023,
10.1016/j.media.2023.102789). Every random number comes from the given generator. Nothing waits for the device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from runner_brainunet.config import AugmentConfig
from runner_brainunet.slices import SAGITTAL


class Random:
    """Random tensors for one batch, from one generator."""

    def __init__(self, generator: Any, count: int, device: Any) -> None:
        self.generator, self.count, self.device = generator, count, device

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers (count, *shape) in [low, high)."""
        drawn = torch.rand((self.count, *shape), generator=self.generator, device=self.device)
        return drawn * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        return torch.randn((self.count, *shape), generator=self.generator, device=self.device)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """Return 0.0 and 1.0 (count, *shape); `probability` is the share of 1.0."""
        return (self.uniform(0, 1, *shape) < probability).float()

    def field(self, coarse: int, size: tuple[int, int]) -> Tensor:
        """Return smooth fields (count, 1, *size) of about unit variance, from coarse × coarse normal numbers."""
        rows, columns = (_spread(coarse, n, self.device) for n in size)
        return (rows @ self.normal(coarse, coarse) @ columns.T)[:, None]


@lru_cache(maxsize=64)
def _spread(coarse: int, fine: int, device: Any) -> Tensor:
    """Return the matrix (fine, coarse) of cubic interpolation from few points to many: far faster than resizing."""
    points = torch.eye(coarse, device=device)[None, None]
    spread = functional.interpolate(points, (fine, coarse), mode="bicubic", align_corners=True)[0, 0]
    return spread / spread.square().sum(1).mean().sqrt()


def smooth(image: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Blur (B, C, H, W) with a Gaussian. `down` and `across` are standard deviations (voxels), (B,) or (1,)."""
    count, channels, height, width = image.shape
    rows = image.transpose(1, 2).reshape(count, height, channels * width)
    rows = torch.matmul(_kernel(down, height), rows).view(count, height, channels, width)
    columns = rows.reshape(count, height * channels, width)
    columns = torch.matmul(columns, _kernel(across, width).mT)
    return columns.view(count, height, channels, width).transpose(1, 2)


def _kernel(sigma: Tensor, size: int) -> Tensor:
    """Return blur weights (B, size, size), or (size, size) for one sigma.

    Each row holds the weights of one output voxel. They add up to 1 at the border too.
    """
    at = torch.arange(size, device=sigma.device, dtype=torch.float32)
    weight = torch.exp(-0.5 * ((at[:, None] - at) / sigma.clamp(min=0.1)[:, None, None]) ** 2)
    weight = torch.relu(weight - 1e-4)  # far tails would be denormal numbers, on which a CPU is slow
    return (weight / weight.sum(2, keepdim=True)).squeeze(0)


def augment(image: Tensor, mask: Tensor, view: Tensor, config: AugmentConfig, generator: Any) -> tuple[Tensor, Tensor]:
    """Return `image` (B, C, H, W) in [0, 1] and `mask` (B, 1, H, W) in {0, 1}, both changed. `view` is (B,)."""
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
    """Mirror left and right if `which` (B,) is 1: the last axis, or in sagittal slices the order of neighbours."""
    sagittal = (view == SAGITTAL)[:, None, None, None]
    flipped = torch.where(sagittal, image.flip(1), image.flip(3))
    flip = which[:, None, None, None] > 0
    return torch.where(flip, flipped, image), torch.where(flip & ~sagittal, mask.flip(3), mask)


def _warp(image: Tensor, mask: Tensor, active: Tensor, c: AugmentConfig, rng: Random) -> tuple[Tensor, Tensor]:
    """Rotate, scale, stretch, shear, shift and displace smoothly, in one interpolation."""
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
        moved = torch.cat((rng.field(5, size), rng.field(5, size)), 1) * (2 * c.elastic * active)
        grid = grid + moved.permute(0, 2, 3, 1)
    both = functional.grid_sample(torch.cat((image, mask), 1), grid, mode="bilinear", align_corners=False)
    return both[:, :-1], (both[:, -1:] > 0.5).to(mask.dtype)


def _intensity(image: Tensor, mask: Tensor, c: AugmentConfig, rng: Random) -> Tensor:
    """Change contrast, brightness of the surroundings, bias field, resolution, noise and gain."""
    size = (image.shape[2], image.shape[3])
    if c.contrast:
        image = curve(image, torch.exp(rng.normal(8) * c.contrast))
    if c.gamma:
        image = image.clamp(1e-4, 1) ** torch.exp(rng.uniform(-1, 1, 1, 1, 1) * c.gamma)
    if c.surround:
        image = image * _surround(mask, c, rng, size)
    if c.bias:
        image = image * torch.exp(rng.field(4, size) * (rng.uniform(0, 1.5, 1, 1, 1) * c.bias))
    if c.blur:
        image = _blur(image, c, rng)
    image = image * torch.exp(rng.uniform(-1, 1, 1, 1, 1) * c.gain)
    if c.noise:
        sigma = rng.uniform(0, 1, 1, 1, 1) ** 2 * c.noise
        real = image + rng.normal(*image.shape[1:]) * sigma
        image = torch.sqrt(real**2 + (rng.normal(*image.shape[1:]) * sigma) ** 2)
    return image.clamp(0, 1)


def curve(image: Tensor, slopes: Tensor) -> Tensor:
    """Apply a rising piecewise-linear curve through (0, 0) and (1, 1). `slopes` (B, pieces) > 0 are relative."""
    pieces = slopes.shape[1]
    knots = functional.pad(torch.cumsum(slopes / slopes.sum(1, keepdim=True), 1), (1, 0))
    position = image.clamp(0, 1) * pieces
    left = position.floor().clamp(max=pieces - 1)
    index = left.long().flatten(1)
    low = knots.gather(1, index)
    high = knots.gather(1, index + 1)
    return torch.lerp(low, high, (position - left).flatten(1)).view_as(image)


def _surround(mask: Tensor, c: AugmentConfig, rng: Random, size: tuple[int, int]) -> Tensor:
    """Return a factor for all voxels outside the brain, 1 inside. Its border is soft: a hard one would be a cue."""
    width = torch.full((1,), 3.0, device=mask.device)
    soft = smooth(mask, width, width)
    outside = (1 - soft).clamp(0, 1) ** 2
    level = rng.normal(1, 1, 1) * c.surround + rng.field(6, size) * (c.surround / 2)
    return torch.exp(level.clamp(-2.5, 1.2) * outside)


def _blur(image: Tensor, c: AugmentConfig, rng: Random) -> Tensor:
    """Blur one axis, as thick slices do, or both, as low resolution does. Half of the samples change hardly at all."""
    sigma = rng.uniform(0, c.blur, 2) * rng.chance(0.5, 2)
    return smooth(image, sigma[:, 0], sigma[:, 1])


def _field_of_view(image: Tensor, mask: Tensor, c: AugmentConfig, rng: Random) -> tuple[Tensor, Tensor]:
    """Cut off one or more sides of the slice in some samples, up to 40 % each, as if they were not scanned."""
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
    """Put random shapes of random brightness in place of the brain, of everything, or of the air around the head.

    Training scans may end above the neck, or be defaced, and other scans do not. The shapes keep a network from
    calling everything brain that fills a ring of fat, or lies at a place where it never saw anything.
    """
    if not c.decoy:
        return image, mask
    size = (image.shape[2], image.shape[3])
    use = rng.chance(c.decoy, 1, 1, 1)
    kind = rng.uniform(0, 3, 1, 1, 1)
    width = torch.ones(1, device=mask.device)
    soft = smooth(mask, width, width)
    near = smooth((image > 0.06).to(image.dtype).amax(1, keepdim=True), 2 * width, 2 * width)
    # a half-plane of air: a neck or a table lies on one side of the head
    air = (near < 0.05) & (rng.field(3, size) > 0)
    where = torch.where(kind < 1, soft, torch.where(kind < 1.5, torch.ones_like(soft), air.to(soft.dtype))) * use
    image = torch.lerp(image, _shapes(rng, size), where.clamp(0, 1))
    return image, mask * ((kind >= 1.5) | (use == 0)).to(mask.dtype)


def _shapes(rng: Random, size: tuple[int, int]) -> Tensor:
    """Return patches of four random brightnesses (B, 1, H, W), bordered by level sets of smooth fields."""
    first = (rng.field(12, size) + rng.field(6, size) > 0).float()
    second = (rng.field(16, size) + rng.field(6, size) > 0).float()
    level = rng.uniform(0, 1, 4, 1, 1)
    low = torch.lerp(level[:, 0:1], level[:, 1:2], first)
    return torch.lerp(low, torch.lerp(level[:, 2:3], level[:, 3:4], first), second)
