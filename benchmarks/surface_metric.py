"""vesuvius's official score: each part against the library that defines it, and a whole volume in time and memory."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from runner_vesuvius.components import label26
from runner_vesuvius.metric import score
from runner_vesuvius.metric.betti import betti_counts
from runner_vesuvius.metric.surface import surface_dice
from runner_vesuvius.metric.voi import variation_of_information
from scipy import ndimage

from benchmarks.harness import Aim, Cell, Options, Result, Table, Turns, Way, at_least, compared, peak_bytes

Masks = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
OURS = "runner"


def sheets(side: int) -> Masks:
    """Wavy sheets 4 voxels thick, 14 apart, and a rough prediction of them: thousands of small holes and specks."""
    rng = np.random.default_rng(0)

    def field(scale: float) -> np.ndarray[Any, Any]:
        values = ndimage.gaussian_filter(rng.standard_normal((side,) * 3, np.float32), scale)
        return values / values.std()

    z, y, x = np.indices((side,) * 3, np.float32, sparse=True)
    phase = (x + 0.3 * y + 0.15 * z + 6 * field(12)) / 14
    truth = 14 * np.abs(phase - np.round(phase)) < 2
    away = 14 * np.abs(phase - np.round(phase) + 0.04 * field(6))
    return 2 - away + field(1.2) + 0.5 * field(5) > 0, truth


def parts() -> dict[str, dict[str, Any]]:
    """Return the contenders of each part: by name, a function that makes the contender."""

    def ours(function: Any) -> Any:
        return lambda: lambda masks: function(*masks)

    return {
        "Betti matching": {OURS: ours(betti_counts), "Betti-Matching-3D": betti_matching_3d},
        "surface Dice": {OURS: ours(surface_dice), "MONAI": monai, "surface-distance": surface_distance},
        "variation of information": {OURS: ours(variation_of_information), "SciPy + scikit-image": scikit_image},
        "26-connected components": {
            OURS: lambda: lambda masks: label26(masks[0]),
            "SciPy": lambda: lambda masks: ndimage.label(masks[0], np.ones((3, 3, 3))),
            "connected-components-3d": cc3d,
        },
    }


def betti_matching_3d() -> Way:
    """The compiled module within topolosses; the package around it wants torchvision."""
    package = importlib.util.find_spec("topolosses")
    folder = Path(package.origin or "").parent if package else Path()
    for file in folder.glob("losses/betti_matching/src/betti_matching.*") if package else ():
        if file.suffix in importlib.machinery.all_suffixes():
            spec = importlib.util.spec_from_file_location("betti_matching", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return lambda masks: module.compute_matching(
                *[np.ascontiguousarray(1.0 - mask) for mask in masks], include_input2_unmatched_pairs=True
            )
    raise ImportError("topolosses, which has it, is not installed")


def monai() -> Way:
    import torch
    from monai.metrics import compute_surface_dice

    def way(masks: Masks) -> Any:
        predicted, truth = (torch.from_numpy(mask)[None, None].float() for mask in masks)
        return compute_surface_dice(predicted, truth, [2.0], include_background=True, use_subvoxels=True)

    return way


def surface_distance() -> Way:
    library = importlib.import_module("surface_distance")

    def way(masks: Masks) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distances = library.compute_surface_distances(masks[1], masks[0], (1, 1, 1))
            return library.compute_surface_dice_at_tolerance(distances, 2)

    return way


def scikit_image() -> Way:
    from skimage.metrics import variation_of_information as library

    def way(masks: Masks) -> Any:
        labels = [ndimage.label(mask, np.ones((3, 3, 3)))[0] for mask in masks]
        either = masks[0] | masks[1]
        return library(labels[1][either], labels[0][either])

    return way


def cc3d() -> Way:
    library = importlib.import_module("cc3d")

    return lambda masks: library.connected_components(masks[0], connectivity=26)


def run(options: Options) -> Result:
    side, whole = (40, 64) if options.quick else (160, 320)
    masks = sheets(side)
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    aims: list[Aim] = []
    for part, contenders in parts().items():
        turns = Turns(1 if options.quick else 3)
        for name, make in contenders.items():
            turns.add(name, make)
        times = turns.run(lambda turn: masks)
        left_out |= turns.left_out
        tables.append(compared(times, OURS, f"{part}, {side}³ voxels"))
        for other in times.keys() - {OURS}:
            aims += at_least(times, OURS, other, 1)
    masks = sheets(whole)
    turns = Turns(1, warmup=0)
    turns.add("score", lambda: lambda masks: score(*masks))
    seconds = turns.run(lambda turn: masks)["score"].median
    peak = peak_bytes(lambda: score(*masks))
    cells: list[Cell] = [f"{whole}³", seconds, peak / 1e6 if peak else None, score(*masks).score]
    tables.append(Table(["whole score of a volume", "s", "MB at most", "score"], [cells]))
    return Result(
        title="The official score of surface detection",
        what=f"Wavy sheets and a rough prediction of them with thousands of holes ({side}³: a tile of the official "
        "score's). All contenders give the same numbers (packages/vesuvius/tests/test_oracles_metric.py).",
        tables=tables,
        aims=aims,
        left_out=left_out,
        packages=("monai", "numba", "numpy", "scikit-image", "scipy", "surface-distance", "topolosses"),
    )
