"""Generated head-and-neck patients in the challenge's file format.

They have a body, organs, targets at three dose levels, and the dose of a plan.

Lengths are millimetres in the patient's frame (x to the patient's left, y to the back, z to the feet; the origin is the
middle of the neck). Surfaces are ellipsoids and tubes roughened by smooth noise. Sizes, doses and the frequency of
missing regions follow the challenge's patients; the dose is `phantom_dose.planned_dose`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runner_openkbp.csvfiles import write_indices, write_values, write_voxels
from runner_openkbp.phantom_dose import planned_dose
from runner_openkbp.rois import GRID, OARS, POSSIBLE, SIDE, TARGETS, Array, Patient, pack_masks

TRAINING = 10
VALIDATION = 3
FIRST_VALIDATION = 201
"""Number of the challenge's first validation patient."""
VOXELS_MM = ((3.906, 2.5), (4.0, 2.5), (4.625, 3.0), (4.68, 3.0), (4.75, 2.5), (4.88, 2.5), (5.078, 2.5), (3.75, 2.32))
"""Voxel sizes of scanners: (in plane, between slices)."""
ABSENT = {"Brainstem": 0.05, "LeftParotid": 0.05, "Esophagus": 0.5, "Larynx": 0.5, "Mandible": 0.25}
"""Share of the patients in which a region is not contoured."""
_ROWS = slice(20, 108)
"""Extent of a body along the first axis; the rest of the grid is air."""


class Places(NamedTuple):
    """Coordinates (mm) of the voxels, to be broadcast against each other."""

    x: Array
    y: Array
    z: Array


@dataclass(frozen=True)
class Anatomy:
    """Sizes of one person in mm, and the noise that roughens surfaces."""

    size: float
    neck: float
    shoulders: float
    slope: float
    """Distance from the origin down to where the shoulders begin."""
    drift: float
    """Distance by which the spine bends towards the back on its way to the feet."""
    fat: float
    lumps: Array
    """(88, 128, 128) smooth noise of unit variance."""


def write_phantom(folder: Path, rng: np.random.Generator, files: str = "csv") -> None:
    """Write TRAINING patients below train-pats and VALIDATION below validation-pats, each from its own generator.

    `files` is csv, the challenge's format, or dicom.
    """
    train = [folder / "train-pats" / f"pt_{1 + i}" for i in range(TRAINING)]
    validation = [folder / "validation-pats" / f"pt_{FIRST_VALIDATION + i}" for i in range(VALIDATION)]
    patients = [*train, *validation]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # most of the work releases the interpreter's lock
        list(pool.map(write_patient, patients, rng.spawn(len(patients)), [files] * len(patients)))


def write_patient(folder: Path, rng: np.random.Generator, files: str = "csv") -> None:
    """Write one generated patient."""
    folder.mkdir(parents=True)
    voxel_mm, ct, dose, masks = make_patient(rng)
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    if files == "dicom":
        from runner_openkbp.phantom_dicom import write_dicom

        write_dicom(folder, folder.name, Patient(ct, dose.astype(np.float32), pack_masks(masks), voxel_mm), masks)
        return
    write_voxels(folder / "voxel_dimensions.csv", voxel_mm)
    write_values(folder / "ct.csv", ct)
    write_values(folder / "dose.csv", dose, masks[POSSIBLE])
    for name, mask in masks.items():
        write_indices(folder / f"{name}.csv", mask)


def make_patient(rng: np.random.Generator) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Return voxel size (3,) mm, CT (int16, HU + 1024), dose (float64, Gy) and masks (bool), all on 128³.

    CT is 0 outside the body.
    """
    in_plane, between = VOXELS_MM[rng.integers(len(VOXELS_MM))]
    voxel_mm = np.array([in_plane, in_plane, between])
    at = _places(voxel_mm, rng)
    person = Anatomy(
        size=rng.uniform(0.92, 1.08),
        neck=rng.uniform(0.88, 1.12),
        shoulders=rng.uniform(175, 225),
        slope=rng.uniform(75, 105),
        drift=rng.uniform(25, 55),
        fat=rng.uniform(5, 14),
        lumps=_noise(rng, at, 6, 55),
    )
    depth = _depth(person, at)
    organs = _organs(person, at, depth)
    targets = _targets(person, at, depth, organs["SpinalCord"], rng)
    drawn = {name: organs[name] < 0 for name in OARS if rng.random() >= ABSENT.get(name, 0)}
    possible = _possible(depth, targets, between, rng)
    dose = planned_dose(targets, drawn, depth, voxel_mm, rng)
    ct = _ct(person, at, depth, organs, rng)
    masks = {name: _full(mask) for name, mask in (drawn | targets | {POSSIBLE: possible}).items()}
    return voxel_mm, _full(ct), np.round(_full(np.where(possible, dose, 0).astype(np.float64)), 3), masks


def _full(part: Array) -> Array:
    whole = np.zeros(GRID, part.dtype)
    whole[_ROWS] = part
    return whole


def _places(voxel_mm: Array, rng: np.random.Generator) -> Places:
    """Return the voxels' coordinates; the patient lies a little off the grid's middle."""
    shift = rng.normal(0, 1, 3) * (9, 5, 15)
    y, x, z = ((np.arange(SIDE) - SIDE / 2 + 0.5) * mm + by for mm, by in zip(voxel_mm, shift, strict=True))
    x, y, z = (a.astype(np.float32) for a in (x, y, z))
    return Places(x[None, :, None], y[_ROWS, None, None], z[None, None, :])


def _noise(rng: np.random.Generator, at: Places, count: int, wavelength: float) -> Array:
    """Return smooth noise of unit variance: plane waves of about `wavelength` mm in random directions."""
    total = np.zeros(np.broadcast_shapes(*(a.shape for a in at)), np.float32)
    for _ in range(count):
        direction = rng.standard_normal(3)
        wave = direction / np.linalg.norm(direction) * 2 * np.pi / (wavelength * rng.uniform(0.7, 1.4))
        plane = np.exp(1j * (wave[0] * at.x + wave[1] * at.y + rng.uniform(0, 2 * np.pi))).astype(np.complex64)
        total += (plane * np.exp(1j * wave[2] * at.z).astype(np.complex64)).real
    return total * np.float32(np.sqrt(2 / count))


# ---------------------------------------------------------------- shapes: about the distance (mm), negative inside


def _ellipsoid(at: Places, centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Array:
    scaled = [((a - c) / r) ** 2 for a, c, r in zip(at, centre, radii, strict=True)]
    return (np.sqrt(scaled[0] + scaled[1] + scaled[2]) - 1) * np.float32(np.prod(radii) ** (1 / 3))


def _tube(at: Places, x: Array | float, y: Array | float, radii: tuple[float, float], z: tuple[float, float]) -> Array:
    """Return a tube along z between two heights; its middle may move with z."""
    across = (np.hypot((at.x - x) / radii[0], (at.y - y) / radii[1]) - 1) * np.float32(np.sqrt(radii[0] * radii[1]))
    return np.maximum(across, np.maximum(z[0] - at.z, at.z - z[1]))


def _spine(person: Anatomy, at: Places) -> Array:
    """Return y of the spinal cord at every height."""
    return 20 + person.drift * (np.maximum(at.z + 40, 0) / 190) ** 2


def _depth(person: Anatomy, at: Places) -> Array:
    """Return the depth below the skin (about mm; negative outside)."""
    s = person.size
    head = _ellipsoid(at, (0, -8 * s, -115 * s), (74 * s, 96 * s, 118 * s))
    face = _ellipsoid(at, (0, -52 * s, -55 * s), (54 * s, 56 * s, 52 * s))
    widening = 1 / (1 + np.exp(-(at.z - person.slope) / 13))
    wide = 62 * s * person.neck + widening * (person.shoulders - 62 * s)
    deep = 62 * s * person.neck + widening * 38
    middle = 8 + 0.4 * (_spine(person, at) - 20)
    round_ = ((at.x / wide) ** 2 + ((at.y - middle) / deep) ** 2) ** 0.5
    trunk = np.maximum((round_ - 1) * deep, -80 * s - at.z)
    return -np.minimum(np.minimum(head, face), trunk) - 1.2 * person.lumps


def _organs(person: Anatomy, at: Places, depth: Array) -> dict[str, Array]:
    """Return the challenge's organs and the airway."""
    s, rough, spine = person.size, 1.3 * person.lumps, _spine(person, at)
    inside = 3 - depth
    horseshoe = np.abs(np.hypot(at.x / (47 * s), (at.y + 40 * s) / (50 * s)) - 1) * 48 * s - 6.5
    jaw = np.maximum(np.maximum(horseshoe, at.y + 36 * s), np.maximum(-58 * s - at.z, at.z + 22 * s))
    rami = np.maximum(np.maximum(horseshoe + 1, np.abs(at.y + 24 * s) - 15), np.maximum(-88 * s - at.z, at.z + 32 * s))
    parotids = {
        f"{name}Parotid": np.maximum(_ellipsoid(at, (side * 57 * s, -18 * s, -54 * s), (16, 24, 29)) + rough, inside)
        for name, side in (("Right", -1), ("Left", 1))
    }
    mandible = np.maximum(np.minimum(jaw, rami), inside)
    return {
        "Brainstem": _ellipsoid(at, (0, 17, -88 * s), (15, 15, 30)) + 0.5 * rough,
        "SpinalCord": _tube(at, 0, spine, (6.5, 6.5), (-62 * s, 125 * s)),
        **{name: np.maximum(gland, 1 - mandible) for name, gland in parotids.items()},
        "Esophagus": _tube(at, 3, spine - 27, (9, 8), (45 * s, 118 * s)) + 0.3 * rough,
        "Larynx": _ellipsoid(at, (0, -30 * s, 42 * s), (16, 19, 20)) + 0.7 * rough,
        "Mandible": mandible,
        "Airway": np.minimum(
            _tube(at, 0, spine - 48 * s, (9, 7), (-75 * s, 400)),
            _ellipsoid(at, (0, -62 * s, -78 * s), (14, 30, 16)) + 2 * rough,
        ),
    }


def _targets(person: Anatomy, at: Places, depth: Array, cord: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Return the three targets, which do not overlap.

    PTV70 is the tumour and usually a node, PTV63 the high-risk tissue beside it, PTV56 the neck's elective nodes.
    """
    side, z = rng.choice((-1.0, 1.0)), rng.uniform(-45, 32)
    rough = 4 * person.lumps
    middle = (side * rng.uniform(0, 20), rng.uniform(-36, -18), z)
    tumour = _ellipsoid(at, middle, (rng.uniform(26, 40), rng.uniform(24, 36), rng.uniform(28, 48)))
    node = _ellipsoid(
        at,
        (side * rng.uniform(34, 42), rng.uniform(-12, 6), z + rng.uniform(-15, 25)),
        (rng.uniform(15, 22), rng.uniform(16, 25), rng.uniform(24, 50)),
    )
    high = np.minimum(tumour, node) + rough if rng.random() < 0.75 else tumour + rough
    chain = {
        own: _tube(at, own * 42, -2 + 0.4 * (_spine(person, at) - 20), (rng.uniform(12, 17), rng.uniform(18, 24)), span)
        for own in (-1, 1)
        for span in [(-rng.uniform(20, 70), rng.uniform(35, 100))]
    }
    reach = rng.uniform(8, 14)
    medium = np.minimum(high - reach, np.maximum(chain[int(side)], np.abs(at.z - z) - rng.uniform(20, 50)))
    low = np.minimum(chain[int(side)] + 0.6 * rough, high - reach - rng.uniform(0, 6))
    if rng.random() < 0.7:  # both sides of the neck
        low = np.minimum(low, chain[-int(side)] + 0.6 * rough)
    allowed = (depth > 4) & (cord > 5)
    ptv70 = (high < 0) & allowed
    ptv63 = (medium < 0) & allowed & ~ptv70 & (rng.random() < 0.6)
    ptv56 = (low < 0) & allowed & ~ptv70 & ~ptv63 & (rng.random() < 0.93)
    return dict(zip(TARGETS, (ptv56, ptv63, ptv70), strict=True))


def _possible(depth: Array, targets: dict[str, Array], between: float, rng: np.random.Generator) -> Array:
    """Return the voxels for which a dose is computed: the body, from a margin above the targets to one below them."""
    slices = np.flatnonzero(np.logical_or.reduce(list(targets.values())).any(axis=(0, 1)))
    margin = rng.uniform(5, 50, 2) / between
    mask = depth > 0
    mask[..., : max(0, int(slices[0] - margin[0]))] = False
    mask[..., int(slices[-1] + margin[1]) + 1 :] = False
    return mask


def _ct(person: Anatomy, at: Places, depth: Array, organs: dict[str, Array], rng: np.random.Generator) -> Array:
    """Return HU + 1024 of the body, 0 outside: skin, fat, muscle, bone, teeth (some with metal), air."""
    s, spine = person.size, _spine(person, at)
    ct = np.where((depth > 2) & (depth < person.fat), 925, 1070 + 12 * person.lumps)
    vertebra = np.hypot(at.x, at.y - spine + 6) - 21
    bone = (vertebra < 0) & (at.z > -70 * s)
    ct = np.where(bone, np.where(np.mod(at.z, 22) < 5, 1110, 1290), ct)
    skull = _ellipsoid(at, (0, -8 * s, -115 * s), (66 * s, 88 * s, 110 * s))
    ct = np.where((np.abs(skull) < 4) & (at.z < -70 * s), 1900, ct)
    ct = np.where((skull < -4) & (at.z < -80 * s) & (at.y > -55 * s), 1056, ct)
    ct = np.where(organs["Mandible"] < 0, np.where(organs["Mandible"] < -4, 1500, 1950), ct)
    arch = np.abs(np.hypot(at.x / (40 * s), (at.y + 44 * s) / (42 * s)) - 1) * 40 < 4.5
    teeth = arch & (at.y < -50 * s) & (np.abs(at.z + 58 * s) < 9) & (np.mod(np.arctan2(at.x, -at.y - 30), 0.3) > 0.08)
    ct = np.where(teeth, rng.choice((2500, 2700, 3300)), ct)
    ct = np.where((organs["SpinalCord"] < 0) | (organs["Brainstem"] < 0), 1048, ct)
    ct = np.where((organs["RightParotid"] < 0) | (organs["LeftParotid"] < 0), 1010, ct)
    ct = np.where((np.abs(organs["Larynx"] + 3) < 2.5) & (at.z < 60 * s), 1180, ct)
    ct = np.where(organs["Airway"] < 0, 40, ct)
    ct = ct + rng.normal(0, 14, ct.shape).astype(np.float32)
    return np.where(depth > 0, np.clip(ct, 1, 4095), 0).astype(np.int16)
