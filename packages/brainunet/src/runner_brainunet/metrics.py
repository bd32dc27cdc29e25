"""Volume Dice and IoU of a validation, counted on the device and read once an epoch."""

from __future__ import annotations

from typing import Any

import torch


class VolumeOverlap:
    """Voxel counts per record; `volume_dice` and `iou` are means over the records seen.

    With several views each voxel counts once per view. Nothing is read from the device before `compute`.
    """

    def __init__(self, cut: float = 0.0) -> None:
        """`cut`: brain is where the logit exceeds it."""
        self._cut = cut
        self._counts: list[Any] = []
        self._records: list[Any] = []

    def reset(self) -> None:
        self._counts, self._records = [], []

    def update(self, prediction: Any, batch: dict[str, Any]) -> None:
        """`prediction`: logits (B, 1, H, W); `batch`: mask (B, 1, H, W) in {0, 1}, record (B,) int64."""
        p = prediction.detach() > self._cut
        t = batch["mask"] > 0.5
        dims = (1, 2, 3)
        # clone: the loader may reuse the memory of `record`
        self._counts.append(torch.stack(((p & t).sum(dims), p.sum(dims), t.sum(dims)), dim=1))
        self._records.append(batch["record"].clone())

    def compute(self) -> dict[str, float]:
        """A record in which neither prediction nor truth has brain counts as 1. Without updates: NaN."""
        if not self._counts:
            return {"volume_dice": float("nan"), "iou": float("nan")}
        counts, records = torch.cat(self._counts), torch.cat(self._records).to(self._counts[0].device)
        _, number = torch.unique(records, return_inverse=True)
        sums = counts.new_zeros(int(number.max()) + 1, 3).index_add_(0, number, counts).double()
        both, either = sums[:, 0], sums[:, 1] + sums[:, 2]
        dice = torch.where(either > 0, 2 * both / either, 1.0)
        iou = torch.where(either > 0, both / (either - both), 1.0)
        return {"volume_dice": float(dice.mean()), "iou": float(iou.mean())}
