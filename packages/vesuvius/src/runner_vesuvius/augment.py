"""Augmentation of whole patches on the device: mirrored, turned, warped, and with other intensities.

Stored volumes are mirrored and turned bit for bit; only warped patches are resampled. Decisions and amounts are drawn
on the host, from a generator that follows the engine's, so that nothing waits for the device.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

import torch
from runner_core import Tensors
from torch import Tensor
from torch.nn import functional

from runner_vesuvius.config import AugmentConfig
from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.targets import CAP, LABEL

SPACING = 32
"""Approximate distance (voxels) between the points at which an elastic warp is drawn; if they were closer, space would
fold."""
BLOCK = 16
"""Side (voxels) of the blocks in which a first stage's mask may be empty."""
TAPS = 2
"""Voxels that a blur reaches to each side."""


def on_host(rng: torch.Generator) -> torch.Generator:
    """Return a generator on the host, derived from the state of `rng`, which moves on."""
    digest = hashlib.blake2b(rng.get_state().numpy().tobytes(), digest_size=7).digest()
    torch.rand((), generator=rng, device=rng.device)
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def turned(volumes: Tensors, config: AugmentConfig, host: torch.Generator) -> Tensors:
    """Mirror and turn volumes (B, 1, D, H, W) of any dtype alike, each patch in its own way.

    Patches whose height and width are equal turn by multiples of 90° about z, the scroll's axis. About another axis the
    fibres of a sheet's two faces would change places: by their direction a network tells the recto from the verso.
    """
    shape = next(iter(volumes.values())).shape
    turns = 4 if config.rotate90 and shape[3] == shape[4] else 1
    ways: list[tuple[list[bool], int]] = []
    for _ in range(shape[0]):
        flips = (torch.rand(3, generator=host) < 0.5).tolist() if config.flip else [False] * 3
        ways.append((flips, int(torch.randint(turns, (), generator=host))))
    return {
        name: torch.stack([_turn(patch, *way) for patch, way in zip(volume, ways, strict=True)])
        for name, volume in volumes.items()
    }


def _turn(patch: Tensor, flips: list[bool], turns: int) -> Tensor:
    """Turn (1, D, H, W); the shape stays the same."""
    if axes := [axis for axis, flip in enumerate(flips, 1) if flip]:
        patch = patch.flip(axes)
    return torch.rot90(patch, turns, (2, 3)) if turns else patch


def warp(volumes: Tensors, config: AugmentConfig, host: torch.Generator) -> None:
    """Rotate and scale some patches, warp some elastically, some both, in one interpolation each; in place.

    All volumes are (B, 1, D, H, W). Image (float) is interpolated linearly. Target (the cache's bits) takes the nearest
    voxel, which keeps its label, tube and medial surface consistent, and becomes ignore beyond the patch. Distance
    (float, signed) is interpolated linearly and multiplied by the patch's size factor; its sign follows the label.
    After rotation and scaling it is right up to interpolation. An elastic warp changes distances too, and those beyond
    the cache's largest were never known: there it is approximate.
    """
    shape = volumes["image"].shape
    for i in range(shape[0]):
        affine, elastic = (torch.rand(2, generator=host) < torch.tensor([config.affine, config.elastic])).tolist()
        if not affine and not elastic:
            continue
        size, device = tuple(shape[2:]), volumes["image"].device
        matrix, factor = _similarity(config, host) if affine else (torch.eye(3), 1.0)
        places = _places(matrix, size, device)
        if elastic:
            places += _displacement(size, config.elastic_voxels, host, device)
        for name, volume in volumes.items():
            volume[i] = (_nearest if name == "target" else _linear)(volume[i], places)
        if "distance" in volumes:
            far = (volumes["distance"][i].abs() * factor).clamp(max=math.sqrt(CAP))
            volumes["distance"][i] = torch.where(volumes["target"][i] & LABEL == SURFACE, -far, far)


def _similarity(config: AugmentConfig, host: torch.Generator) -> tuple[Tensor, float]:
    """Return a matrix (3, 3) from places (x, y, z) about the new patch's middle to the old, and the size factor."""
    drawn = (2 * torch.rand(4, generator=host) - 1).tolist()
    factor = math.exp(drawn[3] * config.scale)
    matrix = torch.eye(3)
    for axis, part in enumerate(drawn[:3]):
        angle = math.radians(part * config.rotate)
        a, b = (other for other in range(3) if other != axis)
        turn = torch.eye(3)
        turn[a, a] = turn[b, b] = math.cos(angle)
        turn[a, b], turn[b, a] = -math.sin(angle), math.sin(angle)
        matrix = turn @ matrix
    return matrix / factor, factor


def _places(matrix: Tensor, size: tuple[int, ...], device: Any) -> Tensor:
    """Return the source of each voxel, (1, D, H, W, 3), in `grid_sample`'s units: x, y, z, each from −1 to 1."""
    half = _half(size)
    theta = torch.cat((matrix * half / half[:, None], torch.zeros(3, 1)), 1)
    return functional.affine_grid(theta[None].to(device, non_blocking=True), [1, 1, *size], align_corners=True)


def _displacement(size: tuple[int, ...], voxels: float, host: torch.Generator, device: Any) -> Tensor:
    """Return a smooth random displacement (1, D, H, W, 3) of standard deviation `voxels`, in the units of `_places`."""
    depth, height, width = (_spread(n, device) for n in size)
    drawn = torch.randn(3, *(m.shape[1] for m in (depth, height, width)), generator=host)
    drawn *= voxels / _half(size)[:, None, None, None]
    drawn = drawn.to(device, non_blocking=True)
    rows = (height @ (drawn @ width.T)).flatten(2)
    return (depth @ rows).view(3, *size).permute(1, 2, 3, 0)[None]


def _half(size: tuple[int, ...]) -> Tensor:
    """Return half the sides (x, y, z), measured from the middle of the first voxel to that of the last."""
    return torch.tensor([(n - 1) / 2 for n in reversed(size)])


@lru_cache(maxsize=16)
def _spread(fine: int, device: Any) -> Tensor:
    """Return the matrix (fine, coarse) of cubic interpolation from points `SPACING` apart, with unit variance."""
    coarse = max(2, round(fine / SPACING) + 1)
    points = torch.eye(coarse, device=device)[None, None]
    spread = functional.interpolate(points, (fine, coarse), mode="bicubic", align_corners=True)[0, 0]
    return spread / spread.square().sum(1, keepdim=True).sqrt()


def _linear(volume: Tensor, places: Tensor) -> Tensor:
    """Sample (1, D, H, W) float linearly; the border continues beyond it."""
    return _sampled(volume, places, "bilinear", "border")


def _nearest(target: Tensor, places: Tensor) -> Tensor:
    """Sample (1, D, H, W) uint8 at the nearest voxel, ignore beyond the border (0 while zeros are filled in)."""
    return _sampled((target ^ IGNORE).float(), places, "nearest", "zeros").to(target.dtype) ^ IGNORE


def _sampled(volume: Tensor, places: Tensor, mode: str, beyond: str) -> Tensor:
    """Sample (1, D, H, W) at `places`, each slice as a sample of its own, because a CPU's threads share samples."""
    slices = places.shape[1]
    found = functional.grid_sample(
        volume.expand(slices, 1, *volume.shape[1:]), places.transpose(0, 1), mode, beyond, align_corners=True
    )
    return found[:, :, 0].transpose(0, 1)


def intensity(image: Tensor, config: AugmentConfig, rng: torch.Generator, host: torch.Generator) -> Tensor:
    """Blur an image, lower its resolution, change gamma, contrast, brightness and noise, each patch in its own way.

    `image` (B, 1, D, H, W) is float with a mean of about 0 and a standard deviation of about 1. The result is made in
    place or in new memory.
    """
    count, device = len(image), image.device

    def drawn(deviation: float) -> Tensor:
        return torch.randn((count, 1, 1, 1, 1), generator=rng, device=device) * deviation

    def some(share: float) -> Tensor | float:
        """Return 1 for this share of the patches and 0 for the others."""
        if share in (0, 1):
            return float(share)
        return (torch.rand((count, 1, 1, 1, 1), generator=rng, device=device) < share).float()

    if config.blur:
        _blur(image, config.blur, host)
    if config.low_resolution:
        _lower_resolution(image, config.low_resolution, host)
    if config.gamma:
        exponent = torch.exp(drawn(config.gamma) * some(config.gamma_share))
        image = _gamma(image, exponent, some(config.gamma_inverted))
    if config.contrast:
        image *= torch.exp(drawn(config.contrast) * some(config.contrast_share))
    if config.brightness:
        image += drawn(config.brightness) * some(config.brightness_share)
    if config.noise:
        most = torch.rand((count, 1, 1, 1, 1), generator=rng, device=device) * config.noise
        image += torch.randn(image.shape, generator=rng, device=device).mul_(most * some(config.noise_share))
    return image


def masked(first: Tensor, config: AugmentConfig, host: torch.Generator | None) -> Tensor:
    """Return a first stage's probabilities (B, 1, D, H, W) as masks of 0 and 1, by the middle threshold.

    With random numbers, each patch has a threshold of its own, and no surface in some blocks of `BLOCK`³ voxels: the
    network learns to mend what the first stage missed.
    """
    low, high = config.first_threshold
    if host is None:
        return (first >= (low + high) / 2).float()
    count, size = len(first), first.shape[2:]
    threshold = low + (high - low) * torch.rand((count, 1, 1, 1, 1), generator=host)
    share = config.first_dropout * torch.rand((count, 1, 1, 1, 1), generator=host)
    kept = (torch.rand((count, 1, *(-(-side // BLOCK) for side in size)), generator=host) >= share).float()
    kept = functional.interpolate(kept.to(first.device, non_blocking=True), scale_factor=BLOCK, mode="nearest")
    mask = (first >= threshold.to(first.device, non_blocking=True)).float()
    return mask * kept[:, :, : size[0], : size[1], : size[2]]


def _gamma(image: Tensor, exponent: Tensor, inverted: Tensor | float) -> Tensor:
    """Raise each patch, scaled to 0 to 1, to its exponent; where `inverted` is 1, its negative instead. In place."""
    low, high = torch.aminmax(image.flatten(1), dim=1)
    low, span = (v[:, None, None, None, None] for v in (low, (high - low).clamp(min=1e-6)))
    unit = image.sub_(low).div_(span)
    if isinstance(inverted, float) and inverted == 0:
        return unit.pow_(exponent).mul_(span).add_(low)
    sign = 1 - 2 * inverted
    unit = unit.mul_(sign).add_(inverted).pow_(exponent).mul_(sign).add_(inverted)
    return unit.mul_(span).add_(low)


def _lower_resolution(image: Tensor, share: float, host: torch.Generator) -> None:
    """Scan this share of the patches again with voxels up to twice as wide.

    nnU-Net's simulated low resolution does the same, but interpolates back with cubic splines; this is trilinear.
    """
    size = image.shape[2:]
    for i in range(len(image)):
        chance, part = torch.rand(2, generator=host).tolist()
        if chance < share:
            coarse = [max(1, round(side * (1 - part / 2))) for side in size]
            sampled = functional.interpolate(image[i : i + 1], coarse, mode="nearest-exact")
            image[i] = functional.interpolate(sampled, tuple(size), mode="trilinear", align_corners=False)[0]


def _blur(image: Tensor, share: float, host: torch.Generator) -> None:
    """Blur this share of the patches with a Gaussian of standard deviation 0.5 to 1 voxels, in place."""
    for i in range(len(image)):
        chance, part = torch.rand(2, generator=host).tolist()
        if chance < share:
            sigma = 0.5 + part / 2
            weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-TAPS, TAPS + 1)]
            image[i] = smooth(image[i], [weight / sum(weights) for weight in weights])


def smooth(volume: Tensor, weights: list[float]) -> Tensor:
    """Convolve (1, D, H, W) along each axis; the border continues beyond it."""
    for axis in (1, 2, 3):
        length, reach = volume.shape[axis], len(weights) // 2
        first, last = volume.narrow(axis, 0, 1), volume.narrow(axis, length - 1, 1)
        padded = torch.cat([first] * reach + [volume] + [last] * reach, axis)
        volume = padded.narrow(axis, 0, length) * weights[0]
        for offset, weight in enumerate(weights[1:], 1):
            volume.add_(padded.narrow(axis, offset, length), alpha=weight)
    return volume
