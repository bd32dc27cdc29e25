"""The way from an annotated picture to a core's grid: an affine map through landmarks that a user marked in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from runner_core import BadInput, counted, read_table

Array = np.ndarray[Any, np.dtype[Any]]
Remark = tuple[Literal["note", "warning"], str]

SUFFIX = ".landmarks.csv"
COLUMNS = ("x_image", "y_image", "x_ir", "y_ir")
_EXAMPLE = f"It needs the columns {', '.join(COLUMNS)} (pixels) and three rows or more."
_ABSURD = 0.1
"""Largest residual, as a share of the landmarks' extent, that a map can have."""
_LARGE = 2.0
"""Mean residual (pixels of the core) from which there is a warning."""
_STRETCHED = (1.2, 4.0)
"""Ratio of the scales of both axes from which there is a warning, and from which the landmarks are refused."""


@dataclass(frozen=True)
class Placement:
    """An affine map from the picture's coordinates to the core's: `matrix` (2, 3). `remarks` describe it."""

    matrix: Array
    remarks: tuple[Remark, ...] = ()

    def __call__(self, points: Array) -> Array:
        """Return points (N, 2) of the picture in the core's coordinates."""
        return np.asarray(points @ self.matrix[:, :2].T + self.matrix[:, 2])

    def moved(self, polygons: Sequence[Sequence[Array]]) -> list[list[Array]]:
        return [[self(ring) for ring in polygon] for polygon in polygons]

    def sampled(self, labels: Array, grid: tuple[int, int]) -> Array:
        """Return the picture's label at the centre of each of the core's pixels, 0 beside the picture."""
        found = np.zeros(grid, labels.dtype)
        across = np.arange(grid[1]) + 0.5
        for row, own in enumerate(found):  # a slide has too many pixels for all coordinates at once
            centres = np.stack([across, np.full(grid[1], row + 0.5)]) - self.matrix[:, 2:]
            x, y = np.floor(np.linalg.solve(self.matrix[:, :2], centres)).astype(int)
            inside = (x >= 0) & (y >= 0) & (x < labels.shape[1]) & (y < labels.shape[0])
            own[inside] = labels[y[inside], x[inside]]
        return found


def read(path: Path, grid: tuple[int, int]) -> Placement:
    """Return the map through the landmarks of a table, by least squares. Raises BadInput if they cannot be right."""
    table = read_table(path, _EXAMPLE)
    columns = [table.required(name, example=_EXAMPLE) for name in COLUMNS]
    points = np.array([_numbers(row, line, path) for line, *row in zip(table.lines, *columns, strict=True)])
    if len(points) < 3:
        raise BadInput(f"{path}: {counted(len(points), 'landmark')}; an affine map needs three or more.")
    image, core = points[:, :2], points[:, 2:]
    for line, (x, y) in zip(table.lines, core, strict=True):
        if not (-1 <= x <= grid[1] + 1 and -1 <= y <= grid[0] + 1):
            raise BadInput(
                f"{path}: line {line}: x_ir {x:g}, y_ir {y:g} lies beside the core, which has {grid[1]} × {grid[0]} "
                "pixels (width × height). x_ir and y_ir are pixels of the core, x_image and y_image of the picture."
            )
    for name, places in (("picture", image), ("core", core)):
        small, large = np.sort(np.linalg.svd(places - places.mean(0), compute_uv=False))
        if small < 0.02 * large or not large:
            raise BadInput(f"{path}: the landmarks lie on one line in the {name}. Add one that is far from the line.")
    matrix = np.linalg.lstsq(np.c_[image, np.ones(len(image))], core, rcond=None)[0].T
    return Placement(matrix, tuple(_described(matrix, Placement(matrix)(image) - core, core, table.lines, path)))


def _described(matrix: Array, off: Array, core: Array, lines: Sequence[int], path: Path) -> list[Remark]:
    """Return what there is to say of a map. Raises BadInput if it is absurd."""
    residuals = np.hypot(*off.T)
    worst, mean = int(residuals.argmax()), math.sqrt(float((residuals**2).mean()))
    extent = float(np.hypot(*np.ptp(core, axis=0)))
    where = f"{residuals[worst]:.2f} (line {lines[worst]})"
    if residuals[worst] > _ABSURD * extent:
        raise BadInput(
            f"{path}: no affine map fits these landmarks: the largest residual is {where} pixels of the core, and "
            f"they span {extent:.0f}. Are two rows or two columns swapped, or x and y?"
        )
    large, small = np.linalg.svd(matrix[:, :2], compute_uv=False)
    if large > _STRETCHED[1] * small:
        raise BadInput(
            f"{path}: these landmarks stretch the picture {large / small:.1f} times as much along one axis as along "
            "the other. Are two rows or two columns swapped?"
        )
    side = -1 if np.linalg.det(matrix[:, :2]) < 0 else 1
    turned = round(math.degrees(math.atan2(side * matrix[1, 0], side * matrix[0, 0])))
    mirrored = "mirrored left to right (right if the section lay upside down), " if side < 0 else ""
    text = f"one pixel of the core is {2 / (large + small):.3g} of the picture, {mirrored}turned by {turned}°; "
    if len(lines) == 3:
        text += "three landmarks always fit: a fourth one would check them"
    else:
        text += (
            f"residuals of {len(lines)} landmarks: {mean:.2f} pixels of the core (root mean square), {where} at most"
        )
    remarks: list[Remark] = [("warning" if mean > _LARGE else "note", f"{path.name}: {text}")]
    if large > _STRETCHED[0] * small:
        remarks.append(("warning", f"{path.name}: stretches one axis {large / small:.2f} times as much as the other"))
    return remarks


def _numbers(row: Sequence[str], line: int, path: Path) -> list[float]:
    for name, text in zip(COLUMNS, row, strict=True):
        try:
            if math.isfinite(float(text)):
                continue
        except ValueError:
            pass
        raise BadInput(f"{path}: line {line}: {name} is '{text}'; a number of pixels is needed.")
    return [float(text) for text in row]
