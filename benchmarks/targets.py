"""Measure what vesuvius prepares from a label: distances, medial surface, tube, coordinates; of a whole volume and of a
patch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.ndimage import distance_transform_edt

from benchmarks.harness import Aim, Options, Result, Table, Times, Turns, Way, at_least, compared, number

VOLUME, PATCH = (320, 320, 320), (72, 136, 136)
CAP, BUDGET = 255, 8.0
ALL, DISTANCE, MEDIAL = "runner: all that is prepared, distances too", "runner: distances", "runner: medial surface"
SCIPY, EDT = "SciPy: distances (distance_transform_edt)", "edt: distances, one thread"
SKELETON, SLICES = "scikit-image: skeleton (curves, not surfaces)", "scikit-image: skeletons of slices"
Label = np.ndarray[Any, np.dtype[np.uint8]]


def sheets(shape: tuple[int, ...]) -> Label:
    """Wavy sheets, four voxels thick and rough, a tenth of the volume; of it, two thirds are annotated."""
    z, y, x = np.ogrid[tuple(slice(n) for n in shape)]
    place = 0.25 * x + 0.1 * z + y + 6 * np.sin(x / 31 + z / 47) + 4 * np.sin(z / 23 - x / 60)
    rough = np.random.default_rng(0).normal(0, 0.3, shape)
    label = (np.abs((place + rough) % 40 - 20) <= 2).astype(np.uint8)
    label[:, :, shape[2] * 2 // 3 :] = 2
    return label


def by_scipy(label: Label) -> np.ndarray:
    surface = label == 1
    away = np.where(surface, distance_transform_edt(surface), distance_transform_edt(~surface))
    return np.minimum(np.rint(away**2), CAP).astype(np.uint8)


def with_edt() -> Callable[[Label], Any]:
    import edt

    def away(label: Label) -> np.ndarray:
        surface = label == 1
        both = edt.edtsq(surface, parallel=1) + edt.edtsq(~surface, parallel=1)
        return np.minimum(both, CAP).astype(np.uint8)

    return away


def distances() -> Callable[[Label], Any]:
    from runner_vesuvius.edt import distance_to_other

    return lambda label: distance_to_other(label == 1, CAP)


def medial() -> Callable[[Label], Any]:
    from runner_vesuvius.medial import medial_surface

    return lambda label: medial_surface(label == 1, label == 2)


def prepared() -> Callable[[Label], Any]:
    from runner_vesuvius.targets import prepare

    return partial(prepare, tube=1)


def skeleton(slices: bool) -> Callable[[Label], Any]:
    from skimage.morphology import skeletonize

    if slices:
        return lambda label: np.stack([skeletonize(each == 1) for each in label])
    return lambda label: skeletonize(label == 1)


WAYS: dict[str, tuple[Callable[[], Callable[[Label], Any]], bool]] = {
    ALL: (prepared, False),
    DISTANCE: (distances, False),
    SCIPY: (lambda: by_scipy, True),
    EDT: (with_edt, True),
    MEDIAL: (medial, False),
    SKELETON: (partial(skeleton, False), True),
    SLICES: (partial(skeleton, True), True),
}
"""Ways to each part, and whether they are slow."""
PARTS = {"distances": (DISTANCE, SCIPY, EDT), "medial surface, all": (MEDIAL, ALL, SKELETON, SLICES)}
"""The contenders of each comparison; the first is the reference."""


def measured(label: Label, turns: int, every: int) -> tuple[dict[str, Times], dict[str, str]]:
    """Slow ones have their turn every so many. Equal results are seen to first, on a small piece: that compiles too."""
    contest = Turns(turns, warmup=0)
    small = np.ascontiguousarray(label[:40, :40, :40])
    truth = by_scipy(small)

    def contender(name: str, make: Callable[[], Callable[[Label], Any]]) -> Way:
        way = make()
        found = way(small)
        if name in PARTS["distances"]:
            np.testing.assert_array_equal(found, truth)
        return lambda turn: way(label)

    for name, (make, slow) in WAYS.items():
        contest.add(name, partial(contender, name, make), every if slow else 1)
    return contest.run(), contest.left_out


def run(options: Options) -> Result:
    tables: list[Table] = []
    found: dict[str, dict[str, Times]] = {}
    left_out: dict[str, str] = {}
    sizes = {"volume": (64,) * 3 if options.quick else VOLUME, "patch": (24, 32, 32) if options.quick else PATCH}
    label = sheets(sizes["volume"])
    for name, shape in sizes.items():
        piece = np.ascontiguousarray(label[tuple(slice(n) for n in shape)])
        turns = 2 if options.quick else 3 if name == "volume" else 12
        times, left_out = measured(piece, turns, every=turns if name == "volume" else 4)
        found[name] = times
        for part, ways in PARTS.items():
            ran = {way: times[way] for way in ways if way in times}
            tables.append(compared(ran, ways[0], f"{part}: {name} of {' × '.join(map(str, shape))}"))
    seconds = found["volume"][ALL].median
    aims = [Aim(f"all of a volume in at most {BUDGET:.0f} s of one core: {number(seconds)}", seconds <= BUDGET)]
    aims += at_least(found["volume"], DISTANCE, SCIPY, 30) + at_least(found["patch"], DISTANCE, SCIPY, 20)
    return Result(
        title="Targets of a volume, once and for all",
        what="What vesuvius prepares of a label when it builds its cache, on one thread: distances to the other kind "
        "in and outside the surface, medial surface and tube, coordinates. Wavy rough sheets, four voxels thick, a "
        "third ignored. Distances of all are equal, up to the cap of 15.97 voxels.",
        tables=tables,
        aims=aims,
        remarks=[
            "Read from the cache, none of it is in a training step; computed for each patch, it would be.",
            "scikit-image thins to curves, in the volume or in its slices: another result, for the time alone.",
        ],
        left_out=left_out,
        packages=("numpy", "numba", "scipy", "scikit-image", "edt"),
    )
