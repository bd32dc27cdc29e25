"""vesuvius's post-processing on probabilities with seeded faults: what it mends, what it costs where nothing is broken,
and how exactly a surface must lie for its topology to be scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.labels import IGNORE
from runner_vesuvius.metric import Score, score
from runner_vesuvius.papyrus import roll, smooth
from runner_vesuvius.phantom import annotated, make_scrolls
from runner_vesuvius.postprocess import surface
from scipy import ndimage

from benchmarks.harness import Aim, Cell, Options, Result, Table

Volume = np.ndarray
SIDE, VOLUMES, FAULTS = 96, 2, 24
SETTINGS: Mapping[str, ScrollPredictConfig] = {
    "off": ScrollPredictConfig(),
    "averages": ScrollPredictConfig(along_sheets=3.5),
    "drawn anew": ScrollPredictConfig(thickness=3.4),
    "averages, drawn anew": ScrollPredictConfig(along_sheets=3.5, thickness=3.4),
}
MENDED = "averages, drawn anew"
TOPOLOGY = 0.5
PARTS = ("score", "topology", "surface_dice", "components")


class Truth(NamedTuple):
    """A generated volume."""

    surface: Volume
    """bool: the surface, also where nobody annotated it."""
    label: Volume


def sure(surface: Volume, rng: np.random.Generator) -> Volume:
    """The surface, slightly blurred: a network that is nearly perfect."""
    return np.rint(12 + 230 * ndimage.gaussian_filter(surface.astype(np.float32), 0.6)).astype(np.uint8)


def unsure(surface: Volume, rng: np.random.Generator) -> Volume:
    """The surface, blurred further, under correlated noise: a network like that of the preset `demo`."""
    blurred = ndimage.gaussian_filter(surface.astype(np.float32), 1.1)
    noise = 0.8 * smooth(surface.shape, 2.0, rng) + 0.6 * smooth(surface.shape, 5, rng)
    logits = 9 * (blurred - 0.4) + 1.3 * noise
    return np.rint(255 / (1 + np.exp(-logits))).astype(np.uint8)


def pinholes(volume: Volume, label: Volume, rng: np.random.Generator) -> None:
    for place in _some(label == 1, rng):
        volume[_cube(place, -1, 2)] = 60


def bridges(volume: Volume, label: Volume, rng: np.random.Generator) -> None:
    """From one sheet straight to another, two voxels thick."""
    pieces, _ = ndimage.label(label == 1, np.ones((3, 3, 3)))
    done = 0
    for place in rng.permutation(np.argwhere(label == 1)):
        step = np.zeros(3, int)
        step[rng.integers(3)] = rng.choice([-1, 1])
        path = [place + k * step for k in range(1, 15)]
        path = [each for each in path if (each >= 0).all() and (each < label.shape).all()]
        ends = [k for k, each in enumerate(path) if label[tuple(each)]]
        if ends and ends[0] >= 2 and label[tuple(path[ends[0]])] == 1:
            if pieces[tuple(path[ends[0]])] == pieces[tuple(place)]:
                continue
            for each in path[: ends[0]]:
                region = volume[_cube(each, 0, 2)]
                np.maximum(region, 200, out=region)
            done += 1
        if done == FAULTS:
            return


def specks(volume: Volume, label: Volume, rng: np.random.Generator) -> None:
    for place in _some((label == 0) & ~ndimage.binary_dilation(label == 1, iterations=3), rng):
        volume[_cube(place, 0, 2)] = 200


def _some(mask: Volume, rng: np.random.Generator) -> Volume:
    places = np.argwhere(mask)
    return places[rng.choice(len(places), min(FAULTS, len(places)), replace=False)]


def _cube(place: Volume, first: int, end: int) -> tuple[slice, ...]:
    return tuple(slice(max(0, at + first), at + end) for at in place.tolist())


PROBABILITIES: Mapping[str, Callable[[Volume, np.random.Generator], Volume]] = {
    "unsure network": unsure,
    "nearly perfect network": sure,
}
SEEDED: Mapping[str, Callable[[Volume, Volume, np.random.Generator], None] | None] = {
    "": None,
    f", {FAULTS} pinholes": pinholes,
    f", {FAULTS} bridges": bridges,
    f", {FAULTS} specks": specks,
}


def moved(surface: Volume, deviation: float, thicker: float = 0) -> Volume:
    """The surface with its faces moved by a smooth random field of this standard deviation, and outwards (voxels)."""
    outside, inside = ndimage.distance_transform_edt(~surface), ndimage.distance_transform_edt(surface)
    distance = np.where(surface, 0.5 - inside, outside - 0.5)
    field = smooth(surface.shape, 6.0, np.random.default_rng(5))
    return np.asarray(distance <= thicker + deviation * field)


NEARLY: Mapping[str, Callable[[Volume], Volume]] = {
    "the surface itself": lambda surface: surface,
    "blurred by 0.7, cut at a half": lambda surface: ndimage.gaussian_filter(surface.astype(np.float32), 0.7) >= 0.5,
    "blurred by 1, cut at a half": lambda surface: ndimage.gaussian_filter(surface.astype(np.float32), 1.0) >= 0.5,
    "faces moved at random by 0.25": lambda surface: moved(surface, 0.25),
    "faces moved at random by 0.5": lambda surface: moved(surface, 0.5),
    "faces moved at random by 0.75": lambda surface: moved(surface, 0.75),
    "all faces moved outwards by 0.6": lambda surface: moved(surface, 0, 0.6),
    "the whole moved by one voxel": lambda surface: np.roll(surface, 1, 0),
}
"""Predictions that are nearly the truth; voxels."""


def labels(count: int, side: int) -> list[Truth]:
    rng = np.random.default_rng(11)
    found = []
    for rolling, _ in make_scrolls(count, rng):
        piece = roll(rolling, (side,) * 3, rng)
        label = np.where(annotated(piece, rng), piece.surface, IGNORE).astype(np.uint8)
        found.append(Truth(piece.surface, label))
    return found


def exactness(truths: list[Truth]) -> Table:
    """Score surfaces that are nearly the truth."""
    rows: list[list[Cell]] = []
    for name, change in NEARLY.items():
        scores = [score(change(truth.surface), truth.label) for truth in truths]
        rows.append([name, *(float(np.mean([getattr(each, part) for each in scores])) for part in PARTS)])
    return Table(["nearly the truth", *(part.replace("_dice", " Dice") for part in PARTS)], rows)


def run(options: Options) -> Result:
    truths = labels(1 if options.quick else VOLUMES, 40 if options.quick else SIDE)
    found: dict[tuple[str, str], list[Score]] = {}
    seconds = dict.fromkeys(SETTINGS, 0.0)
    for name, make in PROBABILITIES.items():
        for fault, seed in SEEDED.items():
            for number, truth in enumerate(truths):
                volume = make(truth.surface, np.random.default_rng(number))
                if seed is not None:
                    seed(volume, truth.label, np.random.default_rng(number))
                for setting, config in SETTINGS.items():
                    begun = time.process_time()
                    mask = surface(volume, config)
                    seconds[setting] += time.process_time() - begun
                    found.setdefault((name + fault, setting), []).append(score(mask, truth.label))
    return result(found, {n: s / len(found) * len(SETTINGS) / len(truths) for n, s in seconds.items()}, truths)


def result(found: Mapping[tuple[str, str], list[Score]], seconds: Mapping[str, float], truths: list[Truth]) -> Result:
    def mean(row: str, setting: str, part: str) -> float:
        return float(np.mean([getattr(each, part) for each in found[row, setting]]))

    rows = list(dict.fromkeys(row for row, _ in found))
    scores: list[list[Cell]] = [[row, *(mean(row, setting, "score") for setting in SETTINGS)] for row in rows]
    unsure, exact = PROBABILITIES
    details: list[list[Cell]] = [
        [f"runner, {setting}", *(mean(unsure, setting, part) for part in PARTS), seconds[setting]]
        for setting in SETTINGS
    ]
    gains = [mean(unsure, MENDED, part) - mean(unsure, "off", part) for part in PARTS[1:]]
    lost = mean(exact, "off", "score") - mean(exact, MENDED, "score")
    reached = max(mean(unsure, setting, "topology") for setting in SETTINGS)
    side = len(truths[0].label)
    return Result(
        title="Post-processing of sheets",
        what=f"Probabilities made from the surfaces of {len(truths)} generated scrolls ({side}³), with faults seeded "
        "into them: pinholes of 3 × 3 × 3 voxels, bridges and specks 2 voxels thick. Means of the official score. "
        "`averages`: predict.along_sheets 3.5; `drawn anew`: predict.thickness 3.4. "
        "The second table shows the parts of the score for the unsure network without seeded "
        "faults, and the seconds of a volume on one core. The third shows how exactly a surface must lie: nothing is "
        "post-processed in it. The surface goes on where nobody annotated it, and the score cuts it there.",
        tables=[
            Table(["official score", *SETTINGS], scores),
            Table([unsure, "score", "topology", "surface Dice", "components", "seconds"], details),
            exactness(truths),
        ],
        aims=[
            Aim(
                f"{MENDED}: no part of an unsure network's score falls (least gain {min(gains):+.3f})", min(gains) >= 0
            ),
            Aim(f"{MENDED}: a nearly perfect network loses nothing (it loses {lost:.3f}: off by default)", lost <= 0),
            Aim(f"an unsure network's topology reaches {TOPOLOGY} (it reaches {reached:.2f})", reached >= TOPOLOGY),
        ],
        packages=("numpy", "scipy"),
    )
