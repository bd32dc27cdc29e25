"""Augmentation of vesuvius's default batch, part by part, beside the same transforms of MONAI."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from benchmarks.harness import Options, Result, Table, Turns, Way, at_least

BATCH, PATCH, QUICK = 2, (72, 136, 136), (16, 24, 24)
STATISTICS = {"mean": 128.0, "std": 60.0}
DECODE, TURNS, INTENSITY, WARP = "bytes to a batch", "flips and turns", "intensities", "rotated, scaled, warped"
USUAL = "the usual step"
NOTHING: dict[str, Any] = {
    "flip": False, "rotate90": False, "brightness": 0, "contrast": 0, "gamma": 0, "noise": 0, "blur": 0, "affine": 0,
    "elastic": 0, "low_resolution": 0, "gamma_inverted": 0, "rotate": 15, "scale": 0.15,
    "brightness_share": 1, "contrast_share": 1, "gamma_share": 1, "noise_share": 1,
}  # fmt: skip


def stored(size: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """A batch as it comes from the cache."""
    made = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (BATCH, *size), generator=made, dtype=torch.uint8)
    target = torch.randint(0, 3, (BATCH, *size), generator=made, dtype=torch.uint8)
    return {"image": image, "target": target}


def ours(batch: dict[str, torch.Tensor], training: bool = True, **parts: Any) -> Way:
    """All that `on_device` does to a batch with only these parts of the augmentation."""
    from runner_vesuvius.batches import on_device
    from runner_vesuvius.config import default

    config = default()
    if parts:
        config.augment = replace(config.augment, **(NOTHING | parts))

    def way(turn: int) -> None:
        rng = torch.Generator().manual_seed(turn) if training else None
        on_device(batch, STATISTICS, config, rng)

    return way


def monai(batch: dict[str, torch.Tensor], transforms: Any) -> Way:
    """Return a way to apply MONAI's transforms to a batch, patch by patch, in the float32 that they need."""
    patches = [{name: tensor[i : i + 1].float() for name, tensor in batch.items()} for i in range(BATCH)]

    def way(turn: int) -> None:
        transforms.set_random_state(turn)
        results = [transforms(dict(patch)) for patch in patches]
        for name in batch:
            torch.stack([result[name] for result in results])

    return way


def turning() -> Any:
    from monai.transforms import Compose, RandFlipd, RandRotate90d

    both = ("image", "target")
    flips = [RandFlipd(both, 0.5, axis) for axis in range(3)]
    return Compose([*flips, RandRotate90d(both, 0.75, max_k=3, spatial_axes=(1, 2))])


def intensities() -> Any:
    from monai.transforms import (
        Compose,
        RandAdjustContrastd,
        RandGaussianNoised,
        RandGaussianSmoothd,
        RandScaleIntensityd,
        RandShiftIntensityd,
    )

    image, sigma = "image", (0.5, 1.0)
    return Compose([
        RandGaussianSmoothd(image, sigma, sigma, sigma, prob=0.2),
        RandAdjustContrastd(image, 1.0, (0.7, 1.4)),
        RandScaleIntensityd(image, 0.15, 1.0),
        RandShiftIntensityd(image, 0.1, prob=1.0),
        RandGaussianNoised(image, 1.0, std=0.1),
    ])  # fmt: skip


def warping(size: tuple[int, ...]) -> Any:
    from monai.transforms import Compose, Rand3DElasticd

    return Compose([
        Rand3DElasticd(
            ("image", "target"), (9.0, 13.0), (100.0, 200.0), prob=1.0, spatial_size=size,
            rotate_range=(math.radians(15),) * 3, scale_range=(0.15,) * 3, mode=("bilinear", "nearest"),
            padding_mode=("border", "zeros"),
        )
    ])  # fmt: skip


def run(options: Options) -> Result:
    size = QUICK if options.quick else PATCH
    batch = stored(size)
    turns = Turns(2 if options.quick else 12)
    every = {"brightness": 0.1, "contrast": 0.15, "gamma": 0.2, "noise": 0.1, "blur": 0.2}
    turns.add(DECODE, lambda: ours(batch, training=False))
    turns.add(TURNS, lambda: ours(batch, flip=True, rotate90=True))
    turns.add(INTENSITY, lambda: ours(batch, **every))
    turns.add(WARP, lambda: ours(batch, affine=1, elastic=1))
    turns.add(USUAL, lambda: ours(batch))
    turns.add(f"{TURNS}, MONAI", lambda: monai(batch, turning()))
    turns.add(f"{INTENSITY}, MONAI", lambda: monai(batch, intensities()))
    turns.add(f"{WARP}, MONAI", lambda: monai(batch, warping(size)), every=4)
    times = turns.run()
    rows: list[list[Any]] = []
    for name in (DECODE, TURNS, INTENSITY, WARP, USUAL):
        own, peer = times[name].median, times.get(f"{name}, MONAI")
        rows.append([name, own * 1e3, peer and peer.median * 1e3, peer and peer.median / own])
    return Result(
        title="Augmentation of volumes",
        what=f"What vesuvius does to a batch of {BATCH} patches of {' × '.join(map(str, size))} voxels, image and "
        "target, before the network sees it, on the CPU (in training on a GPU it happens there). Each row holds the "
        "first, the bytes made a batch, and its own part for every patch; the last has all of them as often as the "
        "default settings ask. MONAI's transforms work on float32 patches, one at a time.",
        tables=[Table(["part", "ms a batch", "ms, MONAI", "time of MONAI, ours = 1"], rows)],
        aims=at_least(times, WARP, f"{WARP}, MONAI", 3),
        left_out=turns.left_out,
        packages=("torch", "monai"),
    )
