"""What happens on the device: batches, augmentation, network, loss, metrics. Only this file imports torch."""

from itertools import pairwise
from typing import Any

import torch
from runner_core import TorchFunctionMetric
from torch import nn
from torch.nn import functional as F


def read_batch(batch: dict[str, Any], rng: torch.Generator | None) -> dict[str, Any]:
    """Scale stored uint8 (B, …, C): image (B, C, …) in -1…1 and mask (B, …), if any; augmented with `rng`."""
    out = {**batch, "image": batch["image"].float() / 127.5 - 1}
    if rng is not None:
        image, mask = augment(out["image"], out["mask"][..., None], rng)
        out |= {"image": image, "mask": mask[..., 0]}
    return {**out, "image": out["image"].movedim(-1, 1)}


def augment(image: torch.Tensor, mask: torch.Tensor, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """change this: what may happen to images (B, …, C) and masks (B, …, 1). Here: mirrored; brightness; contrast."""

    def drawn() -> torch.Tensor:
        return torch.rand((len(image),) + (1,) * (image.ndim - 1), generator=rng, device=image.device)

    for axis in range(1, image.ndim - 1):
        flip = drawn() < 0.5
        image, mask = (torch.where(flip, x.flip(axis), x) for x in (image, mask))
    return image * (0.7 + 0.6 * drawn()) + 0.4 * (drawn() - 0.5), mask


def unet(axes: int, channels: int, classes: int, width: int) -> nn.Module:
    return UNet(axes, channels, [width, 2 * width, 4 * width], classes)


class UNet(nn.Module):
    """image (B, C, …) with two or three axes → logits (B, …, classes); sides are multiples of 4 with three widths."""

    def __init__(self, axes: int, channels: int, widths: list[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(block(axes, a, b) for a, b in pairwise([channels, *widths]))
        self.up = nn.ModuleList(block(axes, a + b, a) for a, b in pairwise(widths))
        self.pool, self.out = of(axes, "MaxPool")(2), of(axes, "Conv")(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for down in self.down:
            x = down(self.pool(x) if skips else x)
            skips.append(x)
        for up, skip in zip(reversed(self.up), reversed(skips[:-1]), strict=True):
            x = up(torch.cat([skip, F.interpolate(x, scale_factor=2.0)], dim=1))
        return self.out(x).movedim(1, -1)


def block(axes: int, inputs: int, outputs: int) -> nn.Module:
    conv, norm = of(axes, "Conv"), of(axes, "BatchNorm")
    layers = [layer for n in (inputs, outputs) for layer in (conv(n, outputs, 3, padding=1), norm(outputs), nn.ReLU())]
    return nn.Sequential(*layers)


def of(axes: int, kind: str) -> Any:
    """Return a layer for images (2 axes) or volumes (3): nn.Conv2d, nn.Conv3d."""
    return getattr(nn, f"{kind}{axes}d")


def losses(logits: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """change this: terms that are added up. `logits` (B, …, K), `mask` (B, …)."""
    log = logits.float().log_softmax(-1)
    true = one_hot(mask, logits)
    return {"cross_entropy": -(true * log).sum(-1).mean(), "dice_loss": 1 - dice(log.exp(), true).mean()}


def dice(found: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """(B, …, K) each → (B, K): Dice of each class, with one pixel added to both so that none is 1."""
    axes = tuple(range(1, found.ndim - 1))
    return (2 * (found * true).sum(axes) + 1) / (found.sum(axes) + true.sum(axes) + 1)


def decide(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


def one_hot(classes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return F.one_hot(classes.long(), logits.shape[-1]).float()


def metrics() -> list[TorchFunctionMetric]:
    """dice: mean over squares and over the classes but the first."""

    def of_batch(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return dice(one_hot(decide(logits), logits), one_hot(batch["mask"], logits))[:, 1:].mean()

    return [TorchFunctionMetric("dice", of_batch)]
