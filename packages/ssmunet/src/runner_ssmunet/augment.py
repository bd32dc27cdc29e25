"""Random changes of training batches on their device. PyTorch only; random numbers come from the given generator."""

from __future__ import annotations

import torch
from torch import Tensor

from runner_ssmunet.config import AugmentConfig


def turned(maps: dict[str, Tensor], options: AugmentConfig, rng: torch.Generator) -> dict[str, Tensor]:
    """Mirror and turn patches (B, n, n, …) by multiples of 90°, each differently, all maps of a patch alike.

    One gather per map: source places are computed first, so that nothing moves twice.
    """
    if not (options.flip or options.rotate90):
        return maps
    first = next(iter(maps.values()))
    count, side = first.shape[:2]
    places = _places(count, side, options, rng).flatten(1)
    rows = torch.arange(count, device=first.device)[:, None] * (side * side)
    flat = (places + rows).flatten()
    return {name: x.flatten(0, 2).index_select(0, flat).view(x.shape) for name, x in maps.items()}


def _places(count: int, side: int, options: AugmentConfig, rng: torch.Generator) -> Tensor:
    """Return the source of each pixel of a patch: (count, side, side) int64, row · side + column."""
    draw = torch.randint(0, 2, (3, count, 1, 1), generator=rng, device=rng.device, dtype=torch.bool)
    down, across, turn = draw.unbind()
    if not options.rotate90:
        turn = torch.zeros_like(turn)
    elif not options.flip:  # turns alone: by 90° is one mirroring and the diagonal's, by 180° both
        across = down ^ turn
    ramp = torch.arange(side, device=rng.device)
    rows, columns = ramp[None, :, None], ramp[None, None, :]
    row, column = torch.where(turn, columns, rows), torch.where(turn, rows, columns)
    return torch.where(down, side - 1 - row, row) * side + torch.where(across, side - 1 - column, column)


def spectral(spectra: Tensor, std: Tensor, options: AugmentConfig, rng: torch.Generator) -> Tensor:
    """Change cached `spectra` (B, H, W, L) in place: a factor per pixel, a line per patch, noise.

    `std` (L,) is that of the channels, the unit of tilt and noise.
    """
    shape, device = spectra.shape, spectra.device
    if options.scale > 0:
        factor = torch.randn((*shape[:3], 1), generator=rng, device=device)
        spectra.mul_(factor.mul_(options.scale).add_(1))
    if options.tilt > 0:
        slope = torch.randn((shape[0], 1, 1, 1), generator=rng, device=device) * options.tilt
        line = torch.linspace(-1, 1, shape[-1], device=device) * std
        spectra.add_(slope * line)
    if options.noise > 0:
        noise = torch.randn(shape, generator=rng, device=device)
        spectra.addcmul_(noise, (std * options.noise).expand(shape))
    return spectra
