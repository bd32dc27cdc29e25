"""Targets of a patch computed in the step that reads them: `loss.targets: step`.

They are there to compare with: `runner vesuvius ablate` measures what the cache saves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from runner_core import Tensors
from scipy import ndimage
from torch import Tensor

from runner_vesuvius.medial import medial_surface
from runner_vesuvius.targets import CAP, widened

Mask = NDArray[np.bool_]


def computed(batch: Tensors, wanted: set[str], tube: int) -> Tensors:
    """Return those of tube, medial (bool) and distance (float32) that are `wanted`, each (B, 1, D, H, W).

    They are computed from the batch's surface and known, and lie on its device. Voxels beyond the patch are treated as
    not annotated, so near its border the targets differ from those of the whole volume.
    """
    surfaces, known = batch["surface"] > 0, batch["known"]
    arrays_by_name: dict[str, list[NDArray[Any]]] = {}
    pairs = zip(surfaces[:, 0].cpu().numpy(), known[:, 0].cpu().numpy(), strict=True)
    for surface, annotated in pairs:
        for name, array in _of_patch(surface, ~annotated, wanted, tube).items():
            arrays_by_name.setdefault(name, []).append(array)
    return {name: _stacked(arrays, surfaces) for name, arrays in arrays_by_name.items()}


def _of_patch(surface: Mask, ignored: Mask, wanted: set[str], tube: int) -> dict[str, NDArray[Any]]:
    """Return the wanted targets of one patch, (D, H, W) each."""
    arrays_by_name: dict[str, NDArray[Any]] = {}
    if wanted & {"tube", "medial"}:
        medial = medial_surface(surface, ignored)
        arrays_by_name = {"medial": medial, "tube": widened(medial, tube) & surface}
    if "distance" in wanted:
        arrays_by_name["distance"] = _distance(surface)
    return {name: array for name, array in arrays_by_name.items() if name in wanted}


def _distance(surface: Mask) -> NDArray[np.float32]:
    """Return the signed distance in voxels, below 0 inside, up to the cache's largest."""
    most = math.sqrt(CAP)
    if not surface.any() or surface.all():  # there are no voxels of the other kind
        return np.full(surface.shape, -most if surface.any() else most, np.float32)
    inside, outside = (ndimage.distance_transform_edt(mask) for mask in (surface, ~surface))
    return np.clip(np.where(surface, -inside, outside), -most, most).astype(np.float32)


def _stacked(arrays: list[NDArray[Any]], like: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(arrays))[:, None].to(like.device)
