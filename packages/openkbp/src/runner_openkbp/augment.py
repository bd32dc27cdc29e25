"""Augmentation of decoded batches on the device: patients are mirrored, turned, scaled and moved.

It works on the packed masks (one integer per voxel), so that eleven masks cost as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops
from runner_core import Tensors

from runner_openkbp.config import AugmentConfig
from runner_openkbp.whole import swap_sides

LEFT_RIGHT = 2
"""Axis of (B, S, S, S) from the patient's right to the left."""
VOLUMES = ("ct", "masks", "dose")


def augment(batch: Tensors, config: AugmentConfig, rng: keras.random.SeedGenerator) -> Tensors:
    """Change ct (raw), masks (bits) and dose (B, S, S, S) of `batches.decode` together."""
    count = batch["ct"].shape[0]

    def drawn(*limits: float) -> Any:
        """Return random numbers (B, len(limits)), each column between ± its limit."""
        return keras.random.uniform((count, len(limits)), -1, 1, seed=rng) * ops.convert_to_tensor(limits, "float32")

    out = dict(batch)
    if config.flip:
        out |= flip(out, drawn(1.0)[:, 0] < 0)
    if config.rotate or config.scale or config.shift:
        angle, size, place = drawn(math.radians(config.rotate)), drawn(*[config.scale] * 2), drawn(*[config.shift] * 3)
        out |= warp_plane(out, angle[:, 0], ops.exp(size[:, 0]), place[:, :2])
        if config.scale or config.shift:
            out |= warp_length(out, ops.exp(size[:, 1]), place[:, 2])
    return out


def flip(batch: Tensors, which: Any) -> Tensors:
    """Exchange left and right where `which` (B,) is true; the parotids exchange their names."""
    turned = {name: ops.flip(batch[name], LEFT_RIGHT) for name in VOLUMES}
    turned["masks"] = swap_sides(turned["masks"])
    return {name: ops.where(which[:, None, None, None], turned[name], batch[name]) for name in VOLUMES}


def warp_plane(batch: Tensors, angle: Any, scale: Any, shift: Any) -> Tensors:
    """Turn axial slices by `angle`, enlarge them `scale` times, then move them by `shift`.

    `angle` (B,) is in radians and turns as numpy.rot90 turns the first two axes; `scale` is (B,); `shift` (B, 2) is a
    share of the grid. CT and dose are interpolated linearly, masks take the nearest voxel. Voxels from outside the grid
    are 0: air in raw CT numbers, no mask, no dose.
    """
    _, *plane, depth = batch["ct"].shape
    y, x = _source(angle, scale, shift, plane)
    values = ops.concatenate([batch["ct"], batch["dose"]], axis=-1)
    low_y, low_x = ops.floor(y), ops.floor(x)
    down, right = (y - low_y)[..., None], (x - low_x)[..., None]
    top = (1 - right) * _pick(values, low_y, low_x) + right * _pick(values, low_y, low_x + 1)
    bottom = (1 - right) * _pick(values, low_y + 1, low_x) + right * _pick(values, low_y + 1, low_x + 1)
    warped = (1 - down) * top + down * bottom
    masks = _pick(batch["masks"], ops.floor(y + 0.5), ops.floor(x + 0.5))
    return {"ct": warped[..., :depth], "masks": masks, "dose": warped[..., depth:]}


def warp_length(batch: Tensors, scale: Any, shift: Any) -> Tensors:
    """Stretch the last axis `scale` (B,) times, then move it by `shift` (B,), a share of its length.

    Interpolation is that of `warp_plane`.
    """
    count, height, width, depth = batch["ct"].shape
    places = ops.arange(depth, dtype="float32")
    centre = (depth - 1) / 2
    source = (places - centre - depth * shift[:, None]) / scale[:, None] + centre
    weights = ops.relu(1 - ops.abs(source[:, None, :] - places[:, None]))  # (B, from, to)

    def linear(volume: Any) -> Any:
        lines = ops.reshape(volume, (count, height * width, depth))
        return ops.reshape(ops.matmul(lines, weights), volume.shape)

    nearest = ops.floor(source + 0.5)
    inside = (nearest >= 0) & (nearest < depth)
    index = ops.cast(ops.clip(nearest, 0, depth - 1), "int32") + depth * ops.arange(count, dtype="int32")[:, None]
    slices = ops.reshape(ops.transpose(batch["masks"], (0, 3, 1, 2)), (count * depth, height, width))
    picked = ops.take(slices, index, axis=0)
    masks = ops.where(inside[:, :, None, None], picked, ops.zeros_like(picked))
    return {"ct": linear(batch["ct"]), "masks": ops.transpose(masks, (0, 2, 3, 1)), "dose": linear(batch["dose"])}


def _source(angle: Any, scale: Any, shift: Any, plane: Sequence[int]) -> tuple[Any, Any]:
    """Return the source rows and columns (B, H, W) of each voxel of the warped slice; `plane` is (H, W)."""
    centres = [(size - 1) / 2 for size in plane]
    rows, columns = (
        (ops.arange(size, dtype="float32") - centre - size * shift[:, axis, None]) / scale[:, None]
        for axis, (size, centre) in enumerate(zip(plane, centres, strict=True))
    )
    rows, columns = rows[:, :, None], columns[:, None, :]
    cos, sin = ops.cos(angle)[:, None, None], ops.sin(angle)[:, None, None]
    return cos * rows + sin * columns + centres[0], cos * columns - sin * rows + centres[1]


def _pick(values: Any, rows: Any, columns: Any) -> Any:
    """Return values (B, H, W, C) at rows and columns (B, H, W, whole numbers): (B, H, W, C), 0 outside."""
    count, height, width, channels = values.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    row = ops.cast(ops.clip(rows, 0, height - 1), "int32")
    column = ops.cast(ops.clip(columns, 0, width - 1), "int32")
    index = (ops.arange(count, dtype="int32")[:, None, None] * height + row) * width + column
    picked = ops.take(ops.reshape(values, (count * height * width, channels)), index, axis=0)
    return ops.where(inside[..., None], picked, ops.zeros_like(picked))
