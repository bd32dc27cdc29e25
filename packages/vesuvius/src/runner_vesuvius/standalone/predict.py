"""Find papyrus surfaces with the exported network: python predict.py VOLUME.npy… --out DIR.

A volume is (depth, height, width), uint8, or uint16, of which the high byte is used. Writes NAME.npy for each (uint8,
1 is surface): what `runner vesuvius predict` finds, but for voxels whose probability the runtime's rounding moves
across the threshold. Needs NumPy and the network's runtime; whole.py and session.py lie beside this file. The numbers
are in predict.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import session
import whole

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]
Settings = dict[str, Any]


def predict(image: Array, infer: Infer, settings: Settings) -> Array:
    """Return the surface (uint8, 0 or 1) of a volume (uint8)."""
    total = np.zeros(image.shape, np.uint16)
    for view in ("", *settings["views"]):
        total += turned(_probability(np.ascontiguousarray(turned(image, view)), infer, settings), view, back=True)
    count = 1 + len(settings["views"])
    return surface(((total + count // 2) // count).astype(np.uint8), settings)


def _probability(image: Array, infer: Infer, settings: Settings) -> Array:
    def scaled(arrays: dict[str, Array]) -> dict[str, Array]:
        if settings["scale"] is None:
            return infer(arrays)
        scale = np.tile(np.asarray(settings["scale"], np.float32), (len(arrays["image"]), 1))
        return infer({**arrays, "scale": scale})

    return whole.predict(image, scaled, settings["patch"], settings["overlap"], settings["batch"])


def turned(volume: Array, view: str, back: bool = False) -> Array:
    """Return a view of a volume, or with `back` the volume of a view."""
    kind, _, how = view.partition("-")
    if kind == "mirror":
        return np.flip(volume, tuple("zyx".index(axis) for axis in how))
    if kind == "turn":
        return np.rot90(volume, (-1 if back else 1) * int(how) // 90, (1, 2))
    if kind in ("transpose", "antitranspose"):
        return np.swapaxes(np.rot90(volume, 2 if kind == "antitranspose" else 0, (1, 2)), 1, 2)
    return volume


def surface(probability: Array, settings: Settings) -> Array:
    """Return the surface (uint8, 0 or 1) of a probability of 0 to 255."""
    mask = probability >= settings["threshold"]
    if settings["seed"] > settings["threshold"]:
        labels = pieces(mask, corners=True)
        seeded = np.zeros(int(labels.max()) + 1, bool)
        seeded[labels[probability >= settings["seed"]]] = True
        seeded[0] = False
        mask = seeded[labels]
    if settings["min_size"] > 1:
        labels = pieces(mask, corners=True)
        large = np.bincount(labels.ravel()) >= settings["min_size"]
        large[0] = False
        mask = large[labels]
    if settings["fill_holes"] > 0 and min(mask.shape) >= 3:
        labels = pieces(~mask, corners=False)
        small = np.bincount(labels.ravel()) <= settings["fill_holes"]
        for axis in range(3):
            for side in (0, -1):
                small[np.take(labels, side, axis)] = False
        small[0] = False
        mask = mask | small[labels]
    return mask.astype(np.uint8)


def pieces(mask: Array, corners: bool) -> Array:
    """Return the number (from 1) of the piece that each voxel is of, 0 outside.

    Voxels that share a face touch; with `corners`, also those that share an edge or a corner. Runs of voxels along the
    last axis are joined with those of the neighbouring lines until nothing changes.
    """
    starts = mask.copy()
    starts[..., 1:] &= ~mask[..., :-1]
    runs = np.cumsum(starts.ravel()).reshape(mask.shape)  # number of the run, from 1, also between runs
    count = int(runs.flat[-1]) if runs.size else 0
    steps = [(0, 1, 0), (1, 0, 0)]
    if corners:
        steps = [(z, y, x) for z, y in ((0, 1), (1, -1), (1, 0), (1, 1)) for x in (-1, 0, 1)]
    pairs = [np.zeros(0, np.int64)]
    for step in steps:
        to = tuple(slice(max(0, d), n + min(0, d)) for d, n in zip(step, mask.shape, strict=True))
        of = tuple(slice(max(0, -d), n + min(0, -d)) for d, n in zip(step, mask.shape, strict=True))
        both = mask[to] & mask[of]
        pairs.append(np.unique(runs[to][both].astype(np.int64) * (count + 1) + runs[of][both]))
    first, second = np.divmod(np.concatenate(pairs), count + 1)
    parent = np.arange(count + 1)
    while first.size:
        low, high = np.minimum(parent[first], parent[second]), np.maximum(parent[first], parent[second])
        apart = low < high
        first, second = first[apart], second[apart]
        np.minimum.at(parent, high[apart], low[apart])
        while not np.array_equal(shorter := parent[parent], parent):
            parent = shorter
    numbers = np.unique(parent, return_inverse=True)[1]
    return np.where(mask, numbers[runs], 0)


def read(path: Path) -> Array:
    """Return a volume as uint8. Raises ValueError for a file that is none."""
    volume: Array = np.load(path, allow_pickle=False)
    if volume.ndim != 3 or volume.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"a volume (depth, height, width) of uint8 or uint16 is needed, not {volume.dtype}")
    return volume if volume.dtype == np.uint8 else (volume >> 8).astype(np.uint8)


def main() -> int:
    """Predict the volumes that the command line names."""

    def found(path: Path, infer: Infer, settings: Settings) -> Array:
        return predict(read(path), infer, settings)

    def written(path: Path, mask: Array) -> str:
        np.save(path, mask, allow_pickle=False)
        return f"{np.count_nonzero(mask)} voxels"

    script = session.Script(__doc__, "volume", "masks", files=".npy")
    return script.run(script.parser.parse_args(), lambda path: f"{path.stem}.npy", found, written)


if __name__ == "__main__":
    sys.exit(main())
