"""Stored batches → network inputs, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops
from runner_core import Tensors

from runner_openkbp.config import OpenKBPConfig
from runner_openkbp.rois import POSSIBLE, ROIS, bit


def on_device(batch: Tensors, config: OpenKBPConfig, rng: Any | None) -> Tensors:
    """Return the network's inputs (see `images`) from a stored batch, augmented if `rng` is given.

    For the residual network the image's twelfth channel is the possible-dose mask.
    """
    out = decode(batch)
    if rng is not None:
        from runner_openkbp.augment import augment

        out = augment(out, config.augment, rng)
    out = images(out, config.data.ct_offset, config.data.ct_window)
    if config.model.network == "residual":
        out["image"] = ops.concatenate([out["image"], out["mask"]], axis=-1)
    return out


def decode(batch: Tensors) -> Tensors:
    """Return ct (raw numbers, float32), masks (bits, int32) and, if there is one, dose (Gy, float32).

    Each is (B, S, S, S); everything else in the batch is kept. `batch` holds ct int16, masks uint16 and dose uint16 (B,
    1, S, S, S) and dose_step float32 (B, 1, 1) in Gy per unit, or comes from `samples.UnpackedSamples`.
    """
    out = {name: value for name, value in batch.items() if name not in ("dose_step", "rois")}
    out["ct"] = ops.cast(batch["ct"][:, 0], "float32")
    out["masks"] = _bits(batch["rois"][:, 0]) if "rois" in batch else ops.cast(batch["masks"][:, 0], "int32")
    if "dose_step" in batch:
        out["dose"] = ops.cast(batch["dose"][:, 0], "float32") * batch["dose_step"][:, :, :, None]
    elif "dose" in batch:
        out["dose"] = batch["dose"][:, 0]
    return out


def images(batch: Tensors, ct_offset: float, ct_window: tuple[float, float]) -> Tensors:
    """Return image (B, S, S, S, 11), mask and dose (B, S, S, S, 1) of a decoded batch, all float32.

    The image holds CT (HU / 1000, clipped to the window) and the ROI masks in the order of `ROIS`. The mask is the
    possible-dose mask; the dose is in Gy.
    """
    out = {name: value for name, value in batch.items() if name not in ("ct", "masks")}
    ct = ops.clip(batch["ct"] - ct_offset, *ct_window) / 1000
    rois = _flags(batch["masks"], [bit(name) for name in ROIS])
    out["image"] = ops.concatenate([ct[..., None], rois], axis=-1)
    out["mask"] = _flags(batch["masks"], [bit(POSSIBLE)])
    if "dose" in batch:
        out["dose"] = batch["dose"][..., None]
    return out


def _bits(rois: Any) -> Any:
    """(…, 11) float32 of 0 and 1 → (…) int32, one bit per mask."""
    values = np.asarray([1 << place for place in range(rois.shape[-1])], np.float32)
    return ops.cast(ops.sum(rois * values, -1), "int32")


def _flags(masks: Any, bits: list[int]) -> Any:
    """(…) int32 → (…, len(bits)) float32 of 0 and 1."""
    values = np.asarray([1 << b for b in bits], np.int32)
    return ops.cast(ops.not_equal(ops.bitwise_and(masks[..., None], values), 0), "float32")
