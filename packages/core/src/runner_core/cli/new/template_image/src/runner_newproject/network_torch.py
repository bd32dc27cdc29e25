"""What happens on the device: batches, augmentation, network. Loss and metrics are in objective.py."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn


def read_batch(batch: dict[str, Any], statistics: Mapping[str, Any], rng: torch.Generator | None) -> dict[str, Any]:
    """Scale stored images (B, …, C) to a mean of 0 and a spread of 1, channels first; augmented with `rng`."""
    mean, std = (torch.as_tensor(statistics[name], device=batch["image"].device) for name in ("mean", "std"))
    image = ((batch["image"].float() - mean) / std).movedim(-1, 1)
    out = {**batch, "image": image if rng is None else augment(image, rng)}
    return out | ({"label": batch["label"][:, 0]} if "label" in batch else {})


def augment(image: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """change this: what may happen to your images. Here: mirrored along each axis; darker or brighter."""

    def drawn() -> torch.Tensor:
        return torch.rand((len(image),) + (1,) * (image.ndim - 1), generator=rng, device=image.device)

    for axis in range(2, image.ndim):
        image = torch.where(drawn() < 0.5, image.flip(axis), image)
    return image + 0.2 * (drawn() - 0.5)


class Network(nn.Module):
    """image (B, C, …) with two or three axes → (B, outputs): `start`, plus `spread` times what the image adds."""

    def __init__(self, axes: int, channels: int, width: int, start: Any, spread: float) -> None:
        super().__init__()
        widths = pairwise([channels, width, 2 * width, 4 * width])
        self.body = nn.Sequential(*(block(axes, a, b) for a, b in widths))
        self.head = nn.Linear(4 * width, len(start))
        self.register_buffer("start", torch.as_tensor(start, dtype=torch.float32), persistent=False)
        self.spread = spread

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        seen = self.body(image).flatten(2).mean(-1)
        return self.start + self.spread * self.head(seen).float()


def block(axes: int, inputs: int, outputs: int) -> nn.Module:
    conv, norm, pool = (getattr(nn, f"{kind}{axes}d") for kind in ("Conv", "BatchNorm", "MaxPool"))
    layers = [layer for n in (inputs, outputs) for layer in (conv(n, outputs, 3, padding=1), norm(outputs), nn.ReLU())]
    return nn.Sequential(*layers, pool(2))
