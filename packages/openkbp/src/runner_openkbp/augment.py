"""Augmentation of decoded batches on the device: mirrored and turned patients.

It works on the packed masks (one integer a voxel): eleven masks are carried at the price of one.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops
from runner_core.protocols import Tensors

from runner_openkbp.config import AugmentConfig
from runner_openkbp.mirror import swap_sides

LEFT_RIGHT = 2
"""Axis of (B, S, S, S) from the patient's right to the left."""


def augment(batch: Tensors, config: AugmentConfig, rng: keras.random.SeedGenerator) -> Tensors:
    """`batch` of `batch.decode`: ct (raw), masks (bits), dose (B, S, S, S) → the same, changed together."""
    out = dict(batch)
    count = batch["ct"].shape[0]
    if config.flip:
        out |= flip(out, keras.random.uniform((count,), seed=rng) < 0.5)
    if config.rotate:
        angle = keras.random.uniform((count,), -config.rotate, config.rotate, seed=rng)
        chosen = keras.random.uniform((count,), seed=rng) < config.probability
        out |= rotate(out, ops.where(chosen, angle * (math.pi / 180), 0.0))
    return out


def flip(batch: Tensors, which: Any) -> Tensors:
    """Left ↔ right where `which` (B,) is true; the parotids change names."""
    chosen = which[:, None, None, None]
    out = {name: batch[name] for name in ("ct", "masks", "dose")}
    turned = {name: ops.flip(value, LEFT_RIGHT) for name, value in out.items()}
    turned["masks"] = swap_sides(turned["masks"])
    return {name: ops.where(chosen, turned[name], out[name]) for name in out}


def rotate(batch: Tensors, angle: Any) -> Tensors:
    """Turn about the patient's long axis by `angle` (B,) radians, as numpy.rot90 turns the first two axes.

    CT and dose are interpolated linearly, masks take the nearest voxel; what comes from outside the grid is 0: air in
    raw CT numbers, no mask, no dose.
    """
    _, size, _, depth = batch["ct"].shape
    y, x = _source(angle, size)
    values = ops.concatenate([batch["ct"], batch["dose"]], axis=-1)
    low_y, low_x = ops.floor(y), ops.floor(x)
    down, right = (y - low_y)[..., None], (x - low_x)[..., None]
    top = (1 - right) * _pick(values, low_y, low_x) + right * _pick(values, low_y, low_x + 1)
    bottom = (1 - right) * _pick(values, low_y + 1, low_x) + right * _pick(values, low_y + 1, low_x + 1)
    turned = (1 - down) * top + down * bottom
    masks = _pick(batch["masks"], ops.floor(y + 0.5), ops.floor(x + 0.5))
    return {"ct": turned[..., :depth], "masks": masks, "dose": turned[..., depth:]}


def _source(angle: Any, size: int) -> tuple[Any, Any]:
    """Where each voxel of the turned slice comes from: rows and columns (B, size, size)."""
    centre = (size - 1) / 2
    at = ops.arange(size, dtype="float32") - centre
    cos, sin = ops.cos(angle)[:, None, None], ops.sin(angle)[:, None, None]
    rows, columns = at[None, :, None], at[None, None, :]
    return cos * rows + sin * columns + centre, cos * columns - sin * rows + centre


def _pick(values: Any, rows: Any, columns: Any) -> Any:
    """values (B, S, S, C) at rows, columns (B, S, S, whole numbers) → (B, S, S, C); 0 outside."""
    count, size, _, channels = values.shape
    inside = (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)
    row = ops.cast(ops.clip(rows, 0, size - 1), "int32")
    column = ops.cast(ops.clip(columns, 0, size - 1), "int32")
    index = (ops.arange(count, dtype="int32")[:, None, None] * size + row) * size + column
    picked = ops.take(ops.reshape(values, (count * size * size, channels)), index, axis=0)
    return ops.where(inside[..., None], picked, ops.zeros_like(picked))
