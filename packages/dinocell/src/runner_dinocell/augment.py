"""Windows of fields as they are stored → what the network reads, the whole batch at once on the device.

Multi-crop as in DINOv2 (Oquab 2023, after Caron 2020), for fluorescence: no hue, each channel its own brightness and
contrast. Cropping, resizing with anti-aliasing, mirroring and blurring are linear and separable, so each crop is
A · window · Bᵀ with two small matrices of its own: two matrix products make all crops of a batch.

Everything random but the pixels' noise is a function of a sample's `draws`, so that its crops are the same in whatever
batch, order or process they are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from runner_core.protocols import Array, Tensors
from torch import Tensor

from runner_dinocell.config import AugmentConfig, CellConfig

CEILING = 1.5
"""Brightest grey value, where 1 is the upper percentile: what is brighter is dust, not cell."""
CENTRE, SPREAD = 0.15, 0.15
"""About the mean and standard deviation of Cell Painting between its 0.1 and 99.9 percentiles: 0 and 1 afterwards."""
ASPECT = math.log(4 / 3)
"""Crops are between 3:4 and 4:3 in the window."""
SIGMA = (0.1, 2.0)
"""Standard deviations (pixels of the crop) of a blur; SHARP blurs nothing."""
SHARP = 1e-3
_GEOMETRY = 10
"""Draws of a crop, besides two for each channel: area, aspect, place (2), mirrored (2), turn, blurred, sigma, noise."""


def draw_count(config: CellConfig, channels: int) -> int:
    """Random numbers in [0, 1) that a sample of so many channels needs."""
    return (2 + config.augment.locals) * (_GEOMETRY + 2 * channels) + channels + 1


def on_device(batch: Tensors, config: CellConfig, rng: torch.Generator | None, levels: Array | None = None) -> Tensors:
    """image (B, C, w, w) uint16, levels (B, C, 2) float32, draws (B, `draw_count`) float32 in [0, 1) → globals
    (B, 2, C, G, G) and locals (B, L, C, S, S), float32 of mean 0 and standard deviation 1 or about; the rest is kept.

    `rng` makes the noise of pixels, on the images' device. Without it there is none, and image (B, C, G, G), the whole
    window, is there too; without draws that alone. `levels` (C, 2): those of all fields in place of each one's own.
    """
    settings = config.augment
    own = batch["levels"] if levels is None else torch.as_tensor(levels, device=batch["image"].device)[None]
    image = scaled(batch["image"], own)
    out = {name: value for name, value in batch.items() if name not in ("image", "levels", "draws")}
    if rng is None:
        out["image"] = whole(image, settings.global_size)
    if "draws" not in batch:
        return out
    channels = image.shape[1]
    draws, order = batch["draws"].split((batch["draws"].shape[1] - channels - 1, channels + 1), dim=1)
    kept = None
    if config.model.channels == "subset":
        image, kept = subset(image, order)
    draws = draws.unflatten(1, (2 + settings.locals, _GEOMETRY + 2 * channels))
    globals_, locals_ = draws[:, :2], draws[:, 2:]
    # Of the first global crop all are blurred, of the second few, of local ones half (DINOv2), at the default of 0.5
    blurred = image.new_tensor([min(1.0, 2 * settings.blur), settings.blur / 5])
    large = _crops(image, globals_, settings.global_scale, settings.global_size, blurred, kept, settings, rng)
    blurred = blurred.new_tensor(settings.blur)
    small = _crops(image, locals_, settings.local_scale, settings.local_size, blurred, kept, settings, rng)
    return out | {"globals": large, "locals": small}


def whole(image: Tensor, size: int) -> Tensor:
    """Scaled windows (B, C, w, w) → (B, C, size, size), as the network reads them."""
    side = image.shape[-1]
    matrix = resampling(image.new_zeros(1), image.new_full((1,), side), size, side).expand(len(image), 1, -1, -1)
    return _products(image, matrix, matrix)[:, 0].transpose(1, 2).sub(CENTRE).div_(SPREAD)


def scaled(image: Tensor, levels: Tensor) -> Tensor:
    """(B, C, w, w) of any dtype with levels (B, C, 2) → float32, the levels 0 and 1, within 0 and `CEILING`.

    A channel whose levels are equal is 0 or `CEILING`.
    """
    low, high = levels.float()[..., None, None].unbind(2)
    return image.to(torch.float32).sub_(low).div_((high - low).clamp_(min=1e-6)).clamp_(0, CEILING)


def subset(image: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Channels (B, C, w, w) in random order, and which places (B, C) float32 keep one: 1 to C of them, the first.

    `draws` (B, C + 1). Those left out are 0 after scaling; all crops of a sample share order and choice.
    """
    count, channels = draws.shape[0], draws.shape[1] - 1
    order = draws[:, :channels].argsort(1)
    kept = torch.arange(channels, device=draws.device) <= (draws[:, channels:] * channels).floor()
    return image[torch.arange(count, device=image.device)[:, None], order], kept.float()


@dataclass(frozen=True)
class Boxes:
    """Where crops lie in the window, in pixels: (B, K) float32 each."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def boxes(draws: Tensor, scale: tuple[float, float], side: int) -> Boxes:
    """Places of crops from draws (B, K, 4): area uniform between the shares `scale`, log of height / width uniform
    as far as `ASPECT` and the window allow, place uniform."""
    area, aspect, down, right = draws.unbind(-1)
    area = scale[0] + (scale[1] - scale[0]) * area
    furthest = (-area.log()).clamp_(max=ASPECT)  # beyond, a side would be longer than the window
    aspect = (2 * aspect - 1) * furthest
    height, width = (side * (area * turn.exp()).sqrt().clamp(max=1) for turn in (aspect, -aspect))
    return Boxes((side - height) * down, (side - width) * right, height, width)


def resampling(start: Tensor, length: Tensor, size: int, side: int) -> Tensor:
    """Matrices (…, size, side) that resample `side` pixels from `start` over `length` (…) to `size`; a negative length
    runs backwards.

    Linear interpolation; made smaller, the triangle is as wide as a pixel of the crop, so that nothing aliases (as
    torch's `antialias=True`). Beyond a crop's border its window goes on, beyond the window's nothing counts.
    """
    step = (length / size)[..., None, None]
    centre = start[..., None, None] + step * (torch.arange(size, device=start.device)[:, None] + 0.5)
    distance = (torch.arange(side, device=start.device) + 0.5 - centre).abs_()
    weights = distance.div_(step.abs().clamp_(min=1)).neg_().add_(1).clamp_(min=0)
    return weights.div_(weights.sum(-1, keepdim=True))


def blurring(sigma: Tensor, size: int) -> Tensor:
    """Matrices (…, size, size) of Gaussian blurs of standard deviation `sigma` (…), in pixels; beyond the border
    nothing counts. `SHARP` gives the identity exactly."""
    places = torch.arange(size, device=sigma.device, dtype=torch.float32)
    squares = (places[:, None] - places).square_()
    weights = (squares * (-0.5 / sigma.square())[..., None, None]).exp_()
    return weights.div_(weights.sum(-1, keepdim=True))


def mirrored(draws: Tensor, flip: bool, rotate90: bool) -> tuple[Tensor, Tensor, Tensor]:
    """From draws (B, K, 3): is a crop mirrored up-down, mirrored left-right, and then transposed? (B, K) bool each.

    All eight symmetries with both settings, the four turns with `rotate90` alone.
    """
    flips = (draws[..., :2] < 0.5) & flip
    turns = (draws[..., 2] * 4).floor().to(torch.int64) * rotate90
    return flips[..., 0] ^ ((turns + 1) & 2 > 0), flips[..., 1] ^ (turns >= 2), turns & 1 > 0


def _crops(
    image: Tensor,
    draws: Tensor,
    scale: tuple[float, float],
    size: int,
    blurred: Tensor,
    kept: Tensor | None,
    settings: AugmentConfig,
    rng: torch.Generator | None,
) -> Tensor:
    """Crops (B, K, C, size, size) of image (B, C, w, w), one for each of draws (B, K, …). `blurred`: share, (K,) or
    (). `kept` (B, C): channels that are not 0."""
    side = image.shape[-1]
    places, mirrors, smooth, noise, channels = draws.split((4, 3, 2, 1, 2 * image.shape[1]), dim=-1)
    box = boxes(places, scale, side)
    down, right, transposed = mirrored(mirrors, settings.flip, settings.rotate90)
    rows = resampling(*_facing(down, box.top, box.height), size, side)
    columns = resampling(*_facing(right, box.left, box.width), size, side)
    if settings.blur:
        sigma = torch.where(smooth[..., 0] < blurred, SIGMA[0] + (SIGMA[1] - SIGMA[0]) * smooth[..., 1], SHARP)
        matrix = blurring(sigma, size)
        rows, columns = matrix @ rows, matrix @ columns
    cut = _products(image, rows, columns).movedim(3, 2)
    crops = torch.where(transposed[..., None, None, None], cut.mT, cut).contiguous()
    return _intensity(crops, channels.unflatten(-1, (2, -1)), noise, kept, settings, rng)


def _facing(mirrored: Tensor, start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The same stretch, backwards where it is mirrored."""
    return torch.where(mirrored, start + length, start), torch.where(mirrored, -length, length)


def _products(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows · image · columnsᵀ: (B, C, h, w), (B, K, S, h), (B, K, S, w) → (B, K, S, C, S), all float32.

    All crops of a window are one product, then all channels of a crop.
    """
    count, channels, height, width = image.shape
    crops, size = rows.shape[1:3]
    lines = image.transpose(1, 2).reshape(count, height, channels * width)
    cut = torch.bmm(rows.reshape(count, crops * size, height), lines)
    cut = cut.view(count * crops, size * channels, width)
    return torch.bmm(cut, columns.reshape(count * crops, size, width).mT).view(count, crops, size, channels, size)


def _intensity(
    crops: Tensor,
    draws: Tensor,
    noise: Tensor,
    kept: Tensor | None,
    settings: AugmentConfig,
    rng: torch.Generator | None,
) -> Tensor:
    """Each channel of crops (B, K, C, S, S) with a factor and an offset of its own, centred, with noise; in place.

    `draws` (B, K, 2, C), `noise` (B, K, 1).
    """
    contrast, brightness = (2 * draws - 1).unbind(2)
    factor = (1 + settings.contrast * contrast) / SPREAD
    offset = (settings.brightness * brightness - CENTRE) / SPREAD
    deviation = (settings.noise / SPREAD * noise).expand_as(factor)
    if kept is not None:
        factor, offset, deviation = (value * kept[:, None] for value in (factor, offset, deviation))
    crops.mul_(factor[..., None, None]).add_(offset[..., None, None])
    if rng is not None and settings.noise:
        pixels = torch.randn(crops.shape, generator=rng, device=crops.device)
        crops.addcmul_(pixels, deviation[..., None, None])
    return crops
