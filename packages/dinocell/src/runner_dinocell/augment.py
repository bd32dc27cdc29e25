"""Augmented crops of windows, the whole batch at once on the device.

Multi-crop as in DINOv2 (Oquab 2023, after Caron 2020), for fluorescence: no hue, and each channel has its own
brightness and contrast. How crops are cut, resized, turned and blurred: `cropping`.

Everything random except the pixels' noise is a function of a sample's `draws`, so that its crops do not depend on the
batch, order or process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runner_dinocell.channels import mean_shown, shown
from runner_dinocell.config import AugmentConfig, CellConfig
from runner_dinocell.cropping import SHARP, boxes, cut, products, resampling, symmetry

CEILING = 1.5
"""Brightest grey value, if 1 is the upper percentile; brighter pixels are dust, not cells."""
CENTRE, SPREAD = 0.15, 0.15
"""Approximate mean and standard deviation of Cell Painting between its 0.1 and 99.9 percentiles; they become 0 and 1.
"""
SIGMA = (0.1, 2.0)
"""Standard deviations (pixels of the crop) of a blur."""
_GEOMETRY = 10
"""Draws of a crop, besides two for each channel: area, aspect, place (2), mirrored (2), turn, blurred, sigma, noise."""


def draw_count(config: CellConfig, channels: int) -> int:
    """Return how many random numbers in [0, 1) a sample with this many channels needs."""
    return (2 + config.augment.locals) * (_GEOMETRY + 2 * channels) + _choices(config) * (channels + 1)


def _choices(config: CellConfig) -> int:
    """Return how many choices of channels a sample needs: one for all its crops, or one for each but the first."""
    return 1 + config.augment.locals if config.model.channels in ("invariant", "tokens") else 1


def crops(
    image: Tensor, draws: Tensor, there: Tensor, config: CellConfig, rng: torch.Generator | None
) -> dict[str, Tensor]:
    """Return globals (B, 2, C, G, G) and locals (B, L, C, S, S) of scaled windows `image` (B, C, w, w).

    Args:
        image: as `scaled` returns it.
        draws: (B, `draw_count`) float32 in [0, 1).
        there: (B, C) float32, 0 for channels that are missing.
        config: the run's settings.
        rng: makes the noise of pixels, on the images' device; None: no noise.
    """
    settings, channels = config.augment, image.shape[1]
    choices = _choices(config)
    draws, order = draws.split((draws.shape[1] - choices * (channels + 1), choices * (channels + 1)), dim=1)
    order = order.unflatten(1, (choices, -1))
    mode = config.model.channels
    kept = None if mode == "stack" else there[:, None]
    if mode == "subset":
        image, kept = subset(image, order[:, 0], there)
        kept = kept[:, None]
    elif mode in ("invariant", "tokens"):
        kept = shown(order, there, one=mode == "invariant")
    first, others = (kept, kept) if kept is None or kept.shape[1] == 1 else (kept[:, :2], kept[:, 2:])
    draws = draws.unflatten(1, (2 + settings.locals, _GEOMETRY + 2 * channels))
    globals_, locals_ = draws[:, :2], draws[:, 2:]
    # DINOv2 blurs all first global crops, few second ones and half of the local ones: here at the default of 0.5
    blurred = image.new_tensor([min(1.0, 2 * settings.blur), settings.blur / 5])
    large = _crops(image, globals_, settings.global_scale, settings.global_size, blurred, first, settings, rng)
    blurred = blurred.new_tensor(settings.blur)
    small = _crops(image, locals_, settings.local_scale, settings.local_size, blurred, others, settings, rng)
    if mode == "invariant":
        large, small = mean_shown(large, first), mean_shown(small, others)
    return {"globals": large, "locals": small}


def whole(image: Tensor, size: int) -> Tensor:
    """Resize scaled windows (B, C, w, w) to network inputs (B, C, size, size)."""
    side = image.shape[-1]
    matrix = resampling(image.new_zeros(1), image.new_full((1,), side), size, side).expand(image.shape[0], 1, -1, -1)
    return products(image, matrix, matrix)[:, 0].transpose(1, 2).sub(CENTRE).div_(SPREAD)


def scaled(image: Tensor, levels: Tensor) -> Tensor:
    """Map the levels (B, C, 2) of (B, C, w, w), any dtype, to 0 and 1, and clip to 0 and `CEILING`: float32.

    A channel whose levels are equal is 0 or `CEILING`.
    """
    low, high = levels.float()[..., None, None].unbind(2)
    # 0.0, not 0: PyTorch writes no ONNX of one bound that is whole and one that is not
    return image.to(torch.float32).sub_(low).div_((high - low).clamp_(min=1e-6)).clamp_(0.0, CEILING)


def subset(image: Tensor, draws: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Put channels (B, C, w, w) in random order and return them with the places (B, C) float32 to keep.

    The first places are kept, from one to as many as there are channels in `there` (B, C). `draws` is (B, C + 1). The
    other channels are 0 after scaling; all crops of a sample share order and choice.
    """
    count, channels = draws.shape[0], draws.shape[1] - 1
    order = (draws[:, :channels] - there).argsort(1)  # missing channels come last
    kept = torch.arange(channels, device=draws.device) <= (draws[:, channels:] * there.sum(1, keepdim=True)).floor()
    return image[torch.arange(count, device=image.device)[:, None], order], kept.float()


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
    """Return crops (B, K, C, size, size) of image (B, C, w, w), one for each of draws (B, K, …).

    `blurred` is the share of blurred crops, (K,) or (). `kept` (B, K or 1, C) marks the channels that are not 0.
    """
    places, turns, smooth, noise, channels = draws.split((4, 3, 2, 1, 2 * image.shape[1]), dim=-1)
    sigma = None
    if settings.blur:
        sigma = torch.where(smooth[..., 0] < blurred, SIGMA[0] + (SIGMA[1] - SIGMA[0]) * smooth[..., 1], SHARP)
    box, turned = boxes(places, scale, image.shape[-1]), symmetry(turns, settings.flip, settings.rotate90)
    crops = cut(image, box, turned, sigma, size)
    return _intensity(crops, channels.unflatten(-1, (2, -1)), noise, kept, settings, rng)


def _intensity(
    crops: Tensor,
    draws: Tensor,
    noise: Tensor,
    kept: Tensor | None,
    settings: AugmentConfig,
    rng: torch.Generator | None,
) -> Tensor:
    """Give each channel of crops (B, K, C, S, S) its own factor and offset, centred, with noise; in place.

    `draws` is (B, K, 2, C), `noise` (B, K, 1), `kept` (B, K or 1, C).
    """
    contrast, brightness = (2 * draws - 1).unbind(2)
    factor = (1 + settings.contrast * contrast) / SPREAD
    offset = (settings.brightness * brightness - CENTRE) / SPREAD
    deviation = (settings.noise / SPREAD * noise).expand_as(factor)
    if kept is not None:
        factor, offset, deviation = (value * kept for value in (factor, offset, deviation))
    crops.mul_(factor[..., None, None]).add_(offset[..., None, None])
    if rng is not None and settings.noise:
        pixels = torch.randn(crops.shape, generator=rng, device=crops.device)
        crops.addcmul_(pixels, deviation[..., None, None])
    return crops
