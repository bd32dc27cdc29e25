"""Crops of windows: cut, resized with anti-aliasing, mirrored, turned and blurred.

A crop is what torchvision's RandomResizedCrop makes (as in DINOv2): whole pixels of the window, resized by linear
interpolation with anti-aliasing; pixels beyond the crop do not count. All of it is linear and separable, so on a GPU
each crop is A · window · Bᵀ with two small matrices of its own, and two matrix products make all crops of a batch. Most
of these matrices is 0, which a processor would notice: there crops are made one by one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

ASPECT = math.log(4 / 3)
"""Crops are between 3:4 and 4:3 in the window."""
SHARP = 1e-3
"""Standard deviation (pixels) of a blur that blurs nothing."""
REACH = 4
"""Standard deviations at which a Gaussian ends, as scipy's does."""


class Boxes(NamedTuple):
    """Positions of crops in the window, in whole pixels: (B, K) float32 each."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


class Symmetry(NamedTuple):
    """The crops that are mirrored up-down, mirrored left-right, and then transposed: (B, K) bool each."""

    down: Tensor
    right: Tensor
    transposed: Tensor


def boxes(draws: Tensor, scale: tuple[float, float], side: int) -> Boxes:
    """Return places of crops from draws (B, K, 4).

    Area is uniform between the shares `scale`, the log of height / width uniform as far as `ASPECT` and the window
    allow, both rounded to whole pixels, and place is uniform.
    """
    area, aspect, down, right = draws.unbind(-1)
    area = scale[0] + (scale[1] - scale[0]) * area
    furthest = (-area.log()).clamp_(max=ASPECT)  # beyond, a side would be longer than the window
    aspect = (2 * aspect - 1) * furthest
    height, width = ((side * (area * turn.exp()).sqrt()).round().clamp(1, side) for turn in (aspect, -aspect))
    top, left = (((side - extent + 1) * place).floor() for extent, place in ((height, down), (width, right)))
    return Boxes(top, left, height, width)


def symmetry(draws: Tensor, flip: bool, rotate90: bool) -> Symmetry:
    """Return how crops are mirrored and turned by draws (B, K, 3).

    Both settings give all eight symmetries, `rotate90` alone the four turns.
    """
    flips = (draws[..., :2] < 0.5) & flip
    turns = (draws[..., 2] * 4).floor().to(torch.int64) * rotate90
    return Symmetry(flips[..., 0] ^ ((turns + 1) & 2 > 0), flips[..., 1] ^ (turns >= 2), turns & 1 > 0)


def cut(image: Tensor, box: Boxes, turned: Symmetry, sigma: Tensor | None, size: int) -> Tensor:
    """Return the crops (B, K, C, size, size) of windows `image` (B, C, w, w), float32.

    `sigma` (B, K) are standard deviations of a Gaussian blur in pixels of the crop, beyond whose border nothing counts;
    `SHARP` or less blurs nothing.
    """
    way = _one_by_one if image.device.type == "cpu" else _together
    return way(image, box, turned, sigma, size)


def resampling(start: Tensor, length: Tensor, size: int, side: int) -> Tensor:
    """Return matrices (…, size, side) that resample `side` pixels from `start` over `length` (…) to `size`.

    Interpolation is linear; if the crop is made smaller, the triangle is as wide as a pixel of the crop, which avoids
    aliasing (as torch's `antialias=True`). Pixels outside the stretch do not count.
    """
    start, length = start[..., None, None], length[..., None, None]
    step = length / size
    pixel = torch.arange(side, device=start.device) + 0.5
    distance = (pixel - start - step * (torch.arange(size, device=start.device)[:, None] + 0.5)).abs_()
    weights = distance.div_(step.clamp(min=1)).neg_().add_(1).clamp_(min=0)
    weights.mul_((pixel > start) & (pixel < start + length))
    return weights.div_(weights.sum(-1, keepdim=True))


def blurring(sigma: Tensor, size: int) -> Tensor:
    """Return matrices (…, size, size) of Gaussian blurs of standard deviation `sigma` (…), in pixels.

    They reach `REACH` standard deviations. Beyond the border nothing counts. `SHARP` gives the identity exactly.
    """
    places, sigma = torch.arange(size, device=sigma.device, dtype=torch.float32), sigma[..., None, None]
    distance = (places[:, None] - places).abs_()
    weights = (distance.square() * (-0.5 / sigma.square())).exp_().mul_(distance <= (REACH * sigma).round())
    return weights.div_(weights.sum(-1, keepdim=True))


def products(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows · image · columnsᵀ: (B, C, h, w), (B, K, S, h), (B, K, S, w) → (B, K, S, C, S), all float32.

    All crops of a window are one product, then all channels of a crop.
    """
    count, channels, height, width = image.shape
    crops, size = rows.shape[1:3]
    lines = image.transpose(1, 2).reshape(count, height, channels * width)
    half = torch.bmm(rows.reshape(count, crops * size, height), lines)
    half = half.view(count * crops, size * channels, width)
    return torch.bmm(half, columns.reshape(count * crops, size, width).mT).view(count, crops, size, channels, size)


def _together(image: Tensor, box: Boxes, turned: Symmetry, sigma: Tensor | None, size: int) -> Tensor:
    side = image.shape[-1]
    rows, columns = resampling(box.top, box.height, size, side), resampling(box.left, box.width, size, side)
    if sigma is not None:
        matrix = blurring(sigma.clamp(min=SHARP), size)
        rows, columns = matrix @ rows, matrix @ columns
    rows = torch.where(turned.down[..., None, None], rows.flip(-2), rows)
    columns = torch.where(turned.right[..., None, None], columns.flip(-2), columns)
    crops = products(image, rows, columns).movedim(3, 2)
    return torch.where(turned.transposed[..., None, None, None], crops.mT, crops).contiguous()


def _one_by_one(image: Tensor, box: Boxes, turned: Symmetry, sigma: Tensor | None, size: int) -> Tensor:
    count, channels = image.shape[:2]
    crops = image.new_empty((count, box.top.shape[1], channels, size, size))
    places = torch.stack([value.to(torch.int64) for value in (*box, *turned)], -1).flatten(0, 1).tolist()
    blurs = None if sigma is None else sigma.flatten().tolist()
    for number, (top, left, height, width, down, right, transposed) in enumerate(places):
        sample, which = divmod(number, crops.shape[1])
        part = image[sample, None, :, top : top + height, left : left + width]
        crop = functional.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
        if blurs is not None and blurs[number] > SHARP:
            crop = _blurred(crop, blurs[number])
        if axes := [axis for axis, mirrored in ((1, down), (2, right)) if mirrored]:
            crop = crop.flip(axes)
        crops[sample, which].copy_(crop.mT if transposed else crop)
    return crops


def _blurred(crop: Tensor, sigma: float) -> Tensor:
    """Blur (C, S, S) by adding shifted copies: a row of `blurring` has few numbers that are not 0."""
    size = crop.shape[-1]
    weights = [math.exp(-0.5 * (distance / sigma) ** 2) for distance in range(min(size - 1, round(REACH * sigma)) + 1)]
    for axis in (1, 2):
        out = crop.clone()
        for distance, weight in enumerate(weights[1:], 1):
            first, last = out.narrow(axis, 0, size - distance), out.narrow(axis, distance, size - distance)
            first.add_(crop.narrow(axis, distance, size - distance), alpha=weight)
            last.add_(crop.narrow(axis, 0, size - distance), alpha=weight)
        crop = out
    sums = [sum(weights[: end + 1]) for end in (min(place, len(weights) - 1) for place in range(size))]
    total = crop.new_tensor([before + after - 1 for before, after in zip(sums, reversed(sums), strict=True)])
    return crop.div_(total[:, None] * total)
