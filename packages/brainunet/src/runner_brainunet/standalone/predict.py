"""Find the brain in T1 scans with the exported network: python predict.py SCAN.nii.gz… --out DIR.

Writes NAME_brainmask.nii.gz for each scan, in its own grid: the same voxels as `runner brainunet predict`. Needs NumPy
and the network's runtime; grid.py, slices.py and session.py lie beside this file. Reads single-file NIfTI-1 with a
qform or an sform. The numbers are in predict.json.

For research, not for diagnosis.
"""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grid
import numpy as np
import session
import slices

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]
Settings = dict[str, Any]

_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
"""NumPy's types by NIfTI's codes."""
_MILLIMETRES = {0: 1.0, 1: 1000.0, 2: 1.0, 3: 0.001}
"""Millimetres per unit of length, by NIfTI's codes."""
_LARGEST_GRID = 128
"""Points along the longest axis of the grid on which the body is searched."""


class Scan(NamedTuple):
    """A NIfTI file: its header's 348 bytes, their byte order, its affine in its own unit, mm per unit, the voxels."""

    header: bytes
    order: str
    affine: Array
    unit: float
    voxels: Array


# ---------------------------------------------------------------- from a scan to a mask


def predict(scan: Scan, infer: Infer, settings: Settings) -> Array:
    """Return the brain (bool) on the scan's own grid."""
    grids = grid.Grid.of(scan.voxels.shape, scan.affine, settings["spacing_mm"], scan.unit)
    volume = grids.to_model(scan.voxels)
    head = volume > slices.air_threshold(volume)
    box = body(head.astype(np.uint8), settings["crop"])
    inside = probability(volume[box], head[box], infer, settings)
    whole = np.zeros(volume.shape, np.float32)
    whole[box] = inside
    found = one_brain(grids.to_scanner(whole) > settings["threshold"], settings["fill_holes"])
    return with_margin(found, settings["margin_mm"], grids.scanner_spacing)


def probability(volume: Array, head: Array, infer: Infer, settings: Settings) -> Array:
    """Return the probability of brain (x, y, z) float32 of a cropped head, the mean over its views."""
    half = settings["neighbours"] // 2
    layout = slices.Layout(volume.shape, settings["size"], tuple(settings["views"]), half)
    rows = layout.slices(slices.to_uint8(volume, head))
    total = of_rows(rows, layout, infer, settings)
    if settings["mirrored"]:
        total += layout.mirrored(of_rows(layout.mirrored_slices(rows), layout, infer, settings))
        total /= np.float32(2)
    return total


def of_rows(rows: Array, layout: slices.Layout, infer: Infer, settings: Settings) -> Array:
    """Return the probability (x, y, z) of slices (rows, size, size); slices without anything in them get 0."""
    out = np.zeros(rows.shape, np.float32)
    seen = np.asarray(rows.any(axis=(1, 2)))
    stack = slices.windows(rows, settings["neighbours"])
    for block, height, width in layout.parts(settings["multiple"]):
        numbers = block.start + np.flatnonzero(seen[block])
        for first in range(0, len(numbers), settings["batch"]):
            some = numbers[first : first + settings["batch"]]
            logits = infer({"image": np.ascontiguousarray(stack[some, :, height, width])})["prediction"][:, 0]
            out[some, height, width] = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float32)))
    return layout.fuse(out)


def body(head: Array, crop: Settings) -> tuple[slice, ...]:
    """Return the box around the largest object of a head (uint8), or all of it if there is none."""
    everything = tuple(slice(0, n) for n in head.shape)
    if crop["mode"] == "none":
        return everything
    stride = max(1, -(-max(head.shape) // _LARGEST_GRID))
    coarse = head[(slice(None, None, stride),) * 3]
    found = largest(coarse > 0) if coarse.min() < coarse.max() else coarse > 1
    if not found.any():
        return everything
    grow, box = crop["margin"] + stride - 1, []
    for axis, length in enumerate(head.shape):
        hits = np.flatnonzero(found.any(axis=tuple({0, 1, 2} - {axis})))
        box.append(slice(max(0, hits[0] * stride - grow), min(length, hits[-1] * stride + 1 + grow)))
    return tuple(box)


def one_brain(mask: Array, fill_holes: bool) -> Array:
    """Return the largest piece of a mask (bool), with its holes filled."""
    brain = largest(mask)
    if fill_holes:
        outside = pieces(~np.pad(brain, 1))
        brain = (outside != outside[0, 0, 0])[1:-1, 1:-1, 1:-1]
    return brain


def largest(mask: Array) -> Array:
    """Return the largest piece of a mask; an empty mask stays empty."""
    labels = pieces(mask)
    sizes = np.bincount(labels.ravel(), minlength=2)
    sizes[0] = 0
    return mask & (labels == int(sizes.argmax()))


def pieces(mask: Array) -> Array:
    """Return the number (from 1) of the piece that each voxel is of, 0 outside; voxels that share faces touch.

    Runs of voxels along the last axis are joined with those of the neighbouring lines until nothing changes.
    """
    starts = mask.copy()
    starts[..., 1:] &= ~mask[..., :-1]
    runs = np.cumsum(starts.ravel()).reshape(mask.shape)  # number of the run, from 1, also between runs
    count = int(runs.flat[-1]) if runs.size else 0
    pairs = []
    for axis in (0, 1):
        one, other = np.moveaxis(runs, axis, 0)[1:], np.moveaxis(runs, axis, 0)[:-1]
        both = np.moveaxis(mask, axis, 0)[1:] & np.moveaxis(mask, axis, 0)[:-1]
        pairs.append(np.unique(one[both].astype(np.int64) * (count + 1) + other[both]))
    first, second = np.divmod(np.concatenate(pairs), count + 1)
    parent = np.arange(count + 1)
    while first.size:
        low, high = np.minimum(parent[first], parent[second]), np.maximum(parent[first], parent[second])
        apart = low < high
        first, second = first[apart], second[apart]
        np.minimum.at(parent, high[apart], low[apart])
        while (shorter := parent[parent]).tobytes() != parent.tobytes():
            parent = shorter
    numbers = np.unique(parent, return_inverse=True)[1]
    return np.where(mask, numbers[runs], 0)


def with_margin(mask: Array, margin: float, spacing: tuple[float, ...]) -> Array:
    """Return a mask that is grown by `margin` mm, or shrunk if it is negative; distances are Euclidean."""
    if not margin or not mask.any():
        return mask
    if margin > 0:
        return near(mask, margin, spacing)
    shrunk: Array = mask & ~near(~mask, -margin, spacing)
    if not shrunk.any():
        raise ValueError(f"margin_mm {margin:g} leaves nothing of the brain: use a smaller one")
    return shrunk


def near(mask: Array, distance: float, spacing: tuple[float, ...]) -> Array:
    """Return the voxels whose distance (mm) from one of the mask's is `distance` or less."""
    squares = np.where(mask, np.float32(0), np.float32(np.inf))  # of distances, along one more axis in each turn
    for axis, size in enumerate(spacing):
        nearest = squares.copy()
        before, now = np.moveaxis(squares, axis, 0), np.moveaxis(nearest, axis, 0)
        for step in range(1, min(int(distance // size) + 2, len(now))):
            further = np.float32((step * size) ** 2)
            np.minimum(now[step:], before[:-step] + further, out=now[step:])
            np.minimum(now[:-step], before[step:] + further, out=now[:-step])
        squares = nearest
    return np.asarray(np.sqrt(squares) <= distance * (1 + 1e-6))


# ---------------------------------------------------------------- NIfTI


def read(path: Path) -> Scan:
    """Return a scan, its voxels as float32. Raises ValueError for a file that this script cannot read."""
    raw = path.read_bytes()
    try:
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"truncated or damaged ({error})") from error
    order = "<" if content[:4] == struct.pack("<i", 348) else ">"
    if len(content) < 352 or struct.unpack(f"{order}i", content[:4])[0] != 348 or content[344:348] != b"n+1\0":
        raise ValueError("not a single-file NIfTI-1 (.nii, .nii.gz)")

    def value(form: str, offset: int) -> tuple[Any, ...]:
        return struct.unpack_from(order + form, content, offset)

    dims = value("8h", 40)
    shape = tuple(dims[1 : 1 + dims[0]])
    if len(shape) == 4 and shape[3] == 1:
        shape = shape[:3]
    kind = _TYPES.get(value("h", 70)[0])
    if len(shape) != 3 or kind is None:
        raise ValueError(f"shape {shape}, type {value('h', 70)[0]}: one volume of grey values is needed")
    offset, slope, intercept = (float(number) for number in value("3f", 108))
    voxels = np.frombuffer(content, np.dtype(order + kind), int(np.prod(shape)), max(352, int(offset)))
    voxels = voxels.reshape(shape, order="F")
    if np.isfinite(slope) and slope and (slope, intercept) != (1, 0):
        voxels = voxels * np.float64(slope) + np.float64(intercept)
    voxels = voxels.astype(np.float32)
    if not np.isfinite(voxels).all() or voxels.min() == voxels.max():
        raise ValueError("voxels that are not finite, or all equal")
    qform, sform = value("2h", 252)
    if sform > 0:
        affine = np.eye(4)
        affine[:3] = np.array(value("12f", 280)).reshape(3, 4)
    elif qform > 0:
        affine = _quaternion(value("8f", 76), value("6f", 256))
    else:
        raise ValueError("neither qform nor sform, so that left and right are unknown")
    if (unit := _MILLIMETRES.get(content[123] & 7)) is None:
        raise ValueError("its header's unit of length is none of NIfTI's")
    return Scan(content[:348], order, affine, unit, voxels)


def _quaternion(pixdim: tuple[float, ...], numbers: tuple[float, ...]) -> Array:
    """Return the affine of a qform: quaternion, offset and voxel sizes."""
    b, c, d, *place = map(np.float64, numbers)
    a = np.sqrt(max(0.0, 1 - (b * b + c * c + d * d)))
    if 1 - (b * b + c * c + d * d) < np.finfo(np.float32).eps * -3:
        raise ValueError("the header's quaternion is longer than 1")
    w, x, y, z = np.array([a, b, c, d]) / np.sqrt(a * a + b * b + c * c + d * d)
    rotation = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    sizes = np.array(pixdim[1:4], np.float64)
    sizes[2] *= -1 if pixdim[0] < 0 else 1
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation * sizes, place
    return affine


def write(scan: Scan, mask: Array, path: Path) -> None:
    """Write a mask as uint8 with the scan's grid."""
    header = bytearray(scan.header)
    struct.pack_into(f"{scan.order}2h", header, 70, 2, 8)
    struct.pack_into(f"{scan.order}3f", header, 108, 352, 1, 0)
    struct.pack_into(f"{scan.order}2f", header, 124, 1, 0)
    path.write_bytes(gzip.compress(bytes(header) + bytes(4) + mask.astype(np.uint8).tobytes(order="F"), mtime=0))


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".nii")


def main() -> int:
    """Predict the scans that the command line names."""

    def found(path: Path, infer: Infer, settings: Settings) -> tuple[Scan, Array]:
        scan = read(path)
        return scan, predict(scan, infer, settings)

    def written(path: Path, found: tuple[Scan, Array]) -> str:
        write(*found, path)
        return f"{np.count_nonzero(found[1])} voxels"

    script = session.Script(__doc__, "scan", "masks", files=".nii or .nii.gz")
    return script.run(script.parser.parse_args(), lambda path: f"{_stem(path)}_brainmask.nii.gz", found, written)


if __name__ == "__main__":
    sys.exit(main())
