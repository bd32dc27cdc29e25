"""The topology loss of vesuvius: Betti matching of a crop, beside the authors' library, and a barcode beside GUDHI."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage

from benchmarks.harness import Aim, Options, Result, Table, Times, Turns, Way, compared, number

RUNNER, AUTHORS, GUDHI = "runner", "Betti-Matching-3D (topolosses)", "GUDHI"
SURE, UNSURE = "a network that has learnt", "one that has not"
Crop = tuple[np.ndarray, np.ndarray]
"""Probability (float32) and truth (bool)."""


def crop(side: int, unsure: bool) -> Crop:
    """Curved, torn sheets; a probability that falls at their borders, under smooth noise, or one of noise alone."""
    rng = np.random.default_rng(side)
    z, y, x = np.mgrid[:side, :side, :side]
    height = z + 4 * np.sin(x / 11) + 3 * np.cos(y / 9)
    smooth, rough = (ndimage.gaussian_filter(rng.standard_normal((side,) * 3), sigma) for sigma in (4, 1))
    truth = (np.abs(height % 12 - 6) < 2) & (smooth < 2 * smooth.std())
    outside, inside = ndimage.distance_transform_edt(~truth), ndimage.distance_transform_edt(truth)
    logits = 2 * rough / rough.std() + (0 if unsure else np.clip(1.5 * (inside - outside), -6, 6))
    return (1 / (1 + np.exp(-logits))).astype(np.float32), truth


def volumes(given: Crop) -> tuple[np.ndarray, np.ndarray]:
    """Return what is matched: sublevel sets of prediction and truth, in double precision (the authors' code takes no
    other)."""
    probability, truth = given
    return 1 - probability.astype(np.float64), 1 - truth.astype(np.float64)


def runner_loss(given: Crop) -> Way:
    import torch
    from runner_vesuvius.topology import topology_loss

    torch.set_num_threads(1)
    probability, truth = (torch.from_numpy(part) for part in given)
    known = torch.ones(truth.shape, dtype=torch.bool)

    def step(turn: int) -> Any:
        free = probability.clone().requires_grad_()
        topology_loss(free, truth, known).backward()
        return free.grad

    return step


def runner_matching(given: Crop) -> Way:
    from runner_vesuvius.persistence import match

    first, second = volumes(given)
    return lambda turn: match(first, second)


def authors_matching(given: Crop) -> Way:
    from topolosses.losses.betti_matching.src import betti_matching

    first, second = volumes(given)
    return lambda turn: betti_matching.compute_matching(first, second)


def runner_barcode(given: Crop) -> Way:
    from runner_vesuvius.persistence import barcode

    first, _ = volumes(given)
    return lambda turn: barcode(first)


def gudhi_barcode(given: Crop) -> Way:
    import gudhi

    first, _ = volumes(given)

    def once(turn: int) -> Any:
        complex_ = gudhi.CubicalComplex(vertices=first)
        complex_.compute_persistence(homology_coeff_field=2)
        return complex_.vertices_of_persistence_pairs()

    return once


MATCHING = {RUNNER: runner_matching, "runner: loss and gradient": runner_loss, AUTHORS: authors_matching}
BARCODE = {RUNNER: runner_barcode, GUDHI: gudhi_barcode}


def run(options: Options) -> Result:
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    aims: list[Aim] = []
    for side in (16,) if options.quick else (48, 64):
        for kind in (SURE, UNSURE):
            given = crop(side, kind == UNSURE)
            for task, ways in (("Betti matching", MATCHING), ("barcode", BARCODE)):
                turns = Turns(2 if options.quick else 7)
                for name, make in ways.items():
                    turns.add(name, lambda make=make, given=given: make(given))
                times = turns.run()
                left_out |= turns.left_out
                tables.append(compared(times, RUNNER, f"{task}, {side}³, {kind}"))
                aims += _aim(times, side, kind)
    return Result(
        title="Persistent homology (vesuvius)",
        what="The topology loss looks at one crop of 48³ every 50 steps. Matching of the prediction's components, "
        "loops and cavities with the truth's, and the barcode of the prediction alone, exact, in double precision, "
        "one thread. Machine code is compiled in the warm-up.",
        tables=tables,
        aims=aims,
        remarks=["The tests compare the results with both libraries' (bar by bar: equal)."],
        left_out=left_out,
        packages=("numba", "numpy", "torch", "topolosses", "gudhi"),
    )


def _aim(times: dict[str, Times], side: int, kind: str) -> list[Aim]:
    if side != 48 or "runner: loss and gradient" not in times:
        return []
    seconds = times["runner: loss and gradient"].median
    return [Aim(f"loss and gradient of a crop of 48³ in at most 1 s, {kind}: {number(seconds)} s", seconds <= 1)]
