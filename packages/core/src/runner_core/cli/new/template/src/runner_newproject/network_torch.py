"""What happens on the device: batches, augmentation, network, loss, metrics. Only this file imports torch."""

from itertools import pairwise
from typing import Any

import torch
from runner_core import TorchFunctionMetric
from torch import nn
from torch.nn import functional as F


def read_batch(batch: dict[str, Any], rng: torch.Generator | None) -> dict[str, Any]:
    """Scale stored uint8: image (B, 1, H, W) in -1…1 and mask (B, H, W), if any; augmented with `rng`."""
    out = {**batch, "image": batch["image"].float() / 127.5 - 1}
    if rng is not None:
        out |= augment(out["image"], out["mask"], rng)
    return {**out, "image": out["image"][:, None]}


def augment(image: torch.Tensor, mask: torch.Tensor, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """change this: what may happen to your images. Here: mirrored; darker or brighter; less or more contrast."""

    def drawn() -> torch.Tensor:
        return torch.rand((len(image), 1, 1), generator=rng, device=image.device)

    for axis in (1, 2):
        flip = drawn() < 0.5
        image, mask = (torch.where(flip, x.flip(axis), x) for x in (image, mask))
    return {"image": image * (0.7 + 0.6 * drawn()) + 0.4 * (drawn() - 0.5), "mask": mask}


def unet(classes: int, width: int) -> nn.Module:
    return UNet([width, 2 * width, 4 * width], classes)


class UNet(nn.Module):
    """image (B, 1, H, W) → logits (B, H, W, classes); H and W multiples of 4 with three widths."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in pairwise([1, *widths]))
        self.up = nn.ModuleList(block(a + b, a) for a, b in pairwise(widths))
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for down in self.down:
            x = down(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, skip in zip(reversed(self.up), reversed(skips[:-1]), strict=True):
            x = up(torch.cat([skip, F.interpolate(x, scale_factor=2.0)], dim=1))
        return self.out(x).movedim(1, -1)


def block(inputs: int, outputs: int) -> nn.Module:
    layers = [
        layer
        for n in (inputs, outputs)
        for layer in (nn.Conv2d(n, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers)


def losses(logits: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """change this: terms that are added up. `logits` (B, H, W, K), `mask` (B, H, W)."""
    log = logits.float().log_softmax(-1)
    true = one_hot(mask, logits)
    return {"cross_entropy": -(true * log).sum(-1).mean(), "dice_loss": 1 - dice(log.exp(), true).mean()}


def dice(found: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """(B, H, W, K) each → (B, K): Dice of each class, with one pixel added to both so that none is 1."""
    return (2 * (found * true).sum((1, 2)) + 1) / (found.sum((1, 2)) + true.sum((1, 2)) + 1)


def decide(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


def one_hot(classes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return F.one_hot(classes.long(), logits.shape[-1]).float()


def metrics() -> list[TorchFunctionMetric]:
    """dice: mean over squares and over the classes but the first."""

    def of_batch(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return dice(one_hot(decide(logits), logits), one_hot(batch["mask"], logits))[:, 1:].mean()

    return [TorchFunctionMetric("dice", of_batch)]
