"""Multi-crop of dinocell's default batch, beside torchvision's transforms, image by image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.harness import Aim, Options, Result, Table, Times, Turns, Way, at_least

CHANNELS = 5
TURNS = {"default": 12, "demo": 40}
"""Turns for each preset."""
ALL, CROPS = "all of it", "crops, resized and mirrored"
NOTHING: dict[str, Any] = {"brightness": 0, "contrast": 0, "blur": 0, "noise": 0, "rotate90": False}


def config(preset: str) -> Any:
    from runner_dinocell.config import PRESETS

    return PRESETS[preset]()


def stored(count: int, settings: Any) -> dict[str, torch.Tensor]:
    """A batch as it comes from the cache."""
    from runner_dinocell.augment import draw_count

    made = torch.Generator().manual_seed(0)
    side = settings.data.window
    image = torch.randint(0, 3000, (count, CHANNELS, side, side), generator=made).to(torch.uint16)
    levels = torch.tensor([100.0, 2000.0]).expand(count, CHANNELS, 2).clone()
    draws = torch.rand(count, draw_count(settings, CHANNELS), generator=made)
    return {"image": image, "levels": levels, "draws": draws}


def ours(batch: dict[str, torch.Tensor], settings: Any) -> Way:
    from runner_dinocell.batches import on_device

    rng = torch.Generator().manual_seed(0)
    return lambda turn: on_device(batch, settings, rng)


def torchvisions(batch: dict[str, torch.Tensor], settings: Any, everything: bool) -> Way:
    """Return a way to crop like DINOv2: v2 transforms, crop by crop, on float32 that is already scaled."""
    from torchvision.transforms import v2

    chosen = settings.augment

    def transforms(size: int, scale: tuple[float, float], blur: float) -> Any:
        parts: list[Any] = [v2.RandomResizedCrop(size, scale, antialias=True), v2.RandomHorizontalFlip()]
        parts.append(v2.RandomVerticalFlip())
        if everything:  # intensities of each channel are a product and a sum
            parts += [v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], blur), v2.Lambda(_intensity), v2.GaussianNoise()]
        return v2.Compose(parts)

    large = [transforms(chosen.global_size, chosen.global_scale, blur) for blur in (1.0, 0.1)]
    small = [transforms(chosen.local_size, chosen.local_scale, 0.5)] * chosen.locals
    images = batch["image"].to(torch.float32).sub_(100).div_(1900).clamp_(0, 1.5)

    def way(turn: int) -> None:
        for crops in (large, small):
            torch.stack([torch.stack([crop(image) for crop in crops]) for image in images])

    return way


def _intensity(image: torch.Tensor) -> torch.Tensor:
    factor, offset = torch.rand(2, CHANNELS, 1, 1)
    return image * (0.6 + 0.8 * factor) + 0.4 * offset - 0.2


def measure(preset: str, turns: Turns, quick: bool) -> tuple[dict[str, Times], str]:
    """The times of all contenders on a preset's batch, and what that holds."""
    settings = config(preset)
    count = 2 if quick else settings.train.batch_size
    batch = stored(count, settings)
    bare = replace(settings, augment=replace(settings.augment, **NOTHING))
    turns.add(CROPS, lambda: ours(batch, bare))
    turns.add(ALL, lambda: ours(batch, settings))
    turns.add(f"{CROPS}, torchvision", lambda: torchvisions(batch, settings, False), every=3)
    turns.add(f"{ALL}, torchvision", lambda: torchvisions(batch, settings, True), every=3)
    crops = settings.augment
    made = f"2 × {crops.global_size}² + {crops.locals} × {crops.local_size}²"
    return turns.run(), f"{count} windows of {settings.data.window}², {made}"


def run(options: Options) -> Result:
    torch.set_num_threads(1)  # a second one would wait for whatever else the machine does
    rows: list[list[Any]] = []
    aims: list[Aim] = []
    left_out: dict[str, str] = {}
    for preset, number in TURNS.items():
        turns = Turns(2 if options.quick else number)
        times, size = measure(preset, turns, options.quick)
        for name in (CROPS, ALL):
            own, peer = times[name].median, times.get(f"{name}, torchvision")
            rows.append([f"{size}: {name}", own * 1e3, peer and peer.median * 1e3, peer and peer.median / own])
        aims += [
            aim
            for name in (CROPS, ALL)
            for aim in at_least(times, name, f"{name}, torchvision", 1 if preset == "default" else 2)
        ]
        left_out |= turns.left_out
    return Result(
        title="Multi-crop",
        what=f"From stored windows of {CHANNELS} channels (uint16) to the two global and the local crops of a batch, "
        "on one thread of a CPU (in training on a GPU it happens there): crops of random places and shapes, resized "
        "with anti-aliasing and mirrored; then also turned, blurred, with other brightness and contrast in each "
        "channel, with noise. torchvision's v2 transforms take one image at a time, float32 and scaled beforehand, and "
        "do not turn. Places, sizes and resizing are the same: a test compares the pixels.",
        tables=[Table(["batch and part", "ms a batch", "ms, torchvision", "time of torchvision, ours = 1"], rows)],
        aims=aims,
        left_out=left_out,
        packages=("torch", "torchvision"),
    )
