"""Generate heads in NFBS names: brain, fluid, skull, scalp, muscle, eyes, neck, bias field, noise.

Anatomy is made of ellipsoids in millimetres (x right, y front, z up, the brain's centre at the origin) whose
surfaces are roughened by smooth noise. Brain, muscle and marrow are about equally bright and joined by vessels and
nerves, so that no threshold separates them: shape and place must be learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]
Places = tuple[Array, Array, Array]
"""x, y, z (mm) of every voxel in the head's frame."""

SUBJECTS = 7
TWICE = 2
"""Subjects with two sessions."""


@dataclass(frozen=True)
class Scanner:
    """The geometry and contrast of one session."""

    spacing: tuple[float, float, float]
    tilt: tuple[float, float, float]
    """Head position against the grid (degrees about x, y, z)."""
    tissues: tuple[float, ...]
    """Brightness of white matter, grey matter, fluid, bone, fat, muscle."""
    bias: float
    noise: float
    axes: str
    """Orientation of the stored array, such as RAS or LPS."""


def write_phantom(folder: Path, rng: np.random.Generator) -> None:
    """Write SUBJECTS people as NIfTI in NFBS names, the first TWICE of them with two sessions."""
    for number in range(SUBJECTS):
        person = _person(rng)
        for session in range(2 if number < TWICE else 1):
            scan, mask, affine = make_head(person, _scanner(rng, number + session), rng)
            name = f"sub-P{number + 1:02d}_ses-{session + 1}_T1w"
            place = folder / f"sub-P{number + 1:02d}"
            place.mkdir(parents=True, exist_ok=True)
            _save(scan, affine, place / f"{name}.nii.gz")
            _save(mask.astype(np.uint8), affine, place / f"{name}_brainmask.nii.gz")


def _save(data: Array, affine: Array, path: Path) -> None:
    image = nibabel.Nifti1Image(data, affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(affine, 1)
    image.set_sform(affine, 1)
    nibabel.save(image, path)


def _person(rng: np.random.Generator) -> dict[str, Any]:
    """Draw sizes (mm) and shapes of one head, equal in all its sessions."""
    size = rng.uniform(0.9, 1.08)
    return {
        "brain": np.array([66, 84, 60]) * size * rng.uniform(0.96, 1.04, 3),
        "fluid": rng.uniform(2, 5),
        "bone": rng.uniform(5, 8),
        "fat": rng.uniform(5, 9),
        "folds": _waves(rng, 7, 20),
        "lumps": _waves(rng, 4, 75),
        "neck": rng.uniform(0.8, 1.1),
    }


def _scanner(rng: np.random.Generator, number: int) -> Scanner:
    low = rng.uniform(1.9, 2.4, 3)
    spacing = (float(low[0]), float(low[0]), float(low[2] * (1.4 if number % 3 == 2 else 1)))
    grey = rng.uniform(0.42, 0.58)
    return Scanner(
        spacing=spacing,
        tilt=(float(rng.normal(0, 9)), float(rng.normal(0, 4)), float(rng.normal(0, 6))),
        tissues=(
            grey * float(rng.uniform(1.2, 1.5)),
            float(grey),
            float(rng.uniform(0.1, 0.2)),
            float(rng.uniform(0.03, 0.08)),
            float(rng.uniform(0.75, 1.2)),
            grey * float(rng.uniform(0.8, 1.15)),
        ),
        bias=float(rng.uniform(0.1, 0.3)),
        noise=float(rng.uniform(0.01, 0.04)),
        axes=("RAS", "LPS", "LAS", "RAS")[number % 4],
    )


def make_head(person: dict[str, Any], scanner: Scanner, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return scan (int16), mask (bool) and affine of one session, with a tilted head and air around it."""
    at = x, y, z = _places(scanner)
    fat = person["brain"] + person["fluid"] + person["bone"] + person["fat"]
    folds, lumps = _noise(person["folds"], at), _noise(person["lumps"], at)
    brain = _brain(at, person, folds, lumps)
    skull_in = _ellipsoid(at, (0, 0, 0), person["brain"] + person["fluid"]) + 0.7 * lumps
    hind = _ellipsoid(at, (0, -38, -48), np.array([52, 40, 34]) * 0.95 + 0)
    inside = np.minimum(skull_in, hind + 2)
    canal = _tube(at, 0, -22, 9) + np.where(z > -40, 50, 0)
    inside = np.minimum(inside, canal)
    bone = np.minimum(inside - person["bone"], canal - 7)
    head = np.minimum(_ellipsoid(at, (0, 0, 0), fat), _ellipsoid(at, (0, 30, -65), (62, 68, 62)))
    neck = np.maximum(_tube(at, 0, -25, 62 * person["neck"]), z + 40)
    skin = np.minimum(head, neck) + 1.5 * lumps

    white, grey, fluid, dark, bright, muscle = scanner.tissues
    flesh = _noise(_waves(rng, 5, 34), at)
    scan = np.where(skin < 0, np.where((skin > -person["fat"]) | (flesh > 0.9), bright, muscle), 0.0)
    temporal = (np.abs(x) > person["brain"][0] * 0.8) & (z < -5) & (skin < -4) & (y > -20)
    scan = np.where(temporal & (bone > 0), muscle, scan)
    scan = np.where(_cavities(at, flesh) & (skin < -6) & (bone > 0), dark * 0.5, scan)
    scan = np.where(bone < 0, np.where((bone > -4) & (bone < -2) & (flesh > 0.2), grey, dark), scan)
    scan = np.where(inside < 0, fluid, scan)
    cord = _tube(at, 0, -22, 6) + np.where(z > -60, 50, 0)
    scan = np.where(np.minimum(brain, cord) < 0, grey, scan)
    scan = np.where((brain + 3.0 + 1.0 * folds < 0) | (cord < -1), white, scan)
    scan = np.where(_ventricles(at), fluid, scan)
    scan = _eyes(scan, at, fluid, bright)
    vessels = (np.abs(x) < 2.5) & (inside < 0) & (inside > -4) & (z > 0)
    scan = np.where(vessels & (brain > 0), bright * 0.8, scan)

    field = _noise(_waves(rng, 3, 260), at)
    scan = ndimage.gaussian_filter(scan.astype(np.float32), 0.45) * np.exp(scanner.bias * field)
    sigma = scanner.noise
    scan = np.hypot(scan + rng.normal(0, sigma, scan.shape), rng.normal(0, sigma, scan.shape))
    return _stored((scan * 900).astype(np.int16), brain < 0, scanner)


def _places(scanner: Scanner) -> Places:
    """Return coordinates (mm, in the head's frame) of every voxel of a 190 × 230 × 220 mm field of view."""
    axes = [
        (np.arange(round(extent / s)) - round(extent / s) / 2 + 0.5) * s + shift
        for extent, s, shift in zip((190, 230, 220), scanner.spacing, (0, 8, -22), strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)
    turned = np.tensordot(_rotation(scanner.tilt).astype(np.float32), grid, axes=1)
    return turned[0], turned[1], turned[2]


def _rotation(degrees: tuple[float, float, float]) -> Array:
    matrix = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        a, b = {0, 1, 2} - {axis}
        turn = np.eye(3)
        turn[a, a] = turn[b, b] = np.cos(angle)
        turn[a, b], turn[b, a] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    return matrix


def _ellipsoid(at: Places, centre: Any, radii: Any) -> Array:
    """Return roughly the signed distance (mm) to the surface, negative inside."""
    x, y, z = at
    a, b, c = (float(r) for r in radii)
    r = np.sqrt(((x - centre[0]) / a) ** 2 + ((y - centre[1]) / b) ** 2 + ((z - centre[2]) / c) ** 2)
    return (r - 1) * np.float32((a * b * c) ** (1 / 3))


def _tube(at: Places, cx: float, cy: float, radius: float) -> Array:
    """Return the signed distance (mm) to a vertical cylinder."""
    x, y, _ = at
    return np.hypot(x - cx, y - cy) - radius


def _waves(rng: np.random.Generator, count: int, wavelength: float) -> Array:
    """Draw `count` plane waves (wave vector in 1/mm, phase) of about `wavelength` mm in random directions."""
    direction = rng.standard_normal((count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    vectors = direction * (2 * np.pi / (wavelength * rng.uniform(0.7, 1.4, (count, 1))))
    return np.concatenate([vectors, rng.uniform(0, 2 * np.pi, (count, 1))], axis=1).astype(np.float32)


def _noise(waves: Array, at: Places) -> Array:
    """Return smooth noise of unit variance, fixed to the head: the sum of its waves."""
    x, y, z = at
    total = np.zeros_like(x)
    for a, b, c, phase in waves:
        total += np.cos(a * x + b * y + c * z + phase)
    return total * np.float32(np.sqrt(2 / len(waves)))


def _brain(at: Places, person: dict[str, Any], folds: Array, lumps: Array) -> Array:
    """Return the signed distance to hemispheres, cerebellum and brainstem, with folds and the cleft."""
    x, y, z = at
    a, b, c = person["brain"]
    folds = 1.8 * folds + 1.2 * lumps
    hemispheres = _ellipsoid(at, (0, 0, 0), (a, b, c)) + folds
    # flat below in front (the skull base), a cleft above
    hemispheres = np.maximum(hemispheres, -(z + 0.42 * c) - np.where(y < 25, 30, 0) - 6)
    cleft = 2.0 - np.abs(x) - np.where(z < 0.35 * c, 40, 0)
    hemispheres = np.maximum(hemispheres, cleft)
    temporal = np.minimum(
        _ellipsoid(at, (0.62 * a, 12, -0.5 * c), (22, 42, 20)),
        _ellipsoid(at, (-0.62 * a, 12, -0.5 * c), (22, 42, 20)),
    )
    cerebellum = _ellipsoid(at, (0, -40, -50), (47, 32, 25)) + 0.5 * folds
    stem = np.maximum(_tube((x, y + 0.15 * z, z), 0, -22, 11), np.maximum(z, -78 - z))
    return np.minimum(np.minimum(hemispheres, temporal + 0.5 * folds), np.minimum(cerebellum, stem))


def _ventricles(at: Places) -> Array:
    lateral = np.minimum(_ellipsoid(at, (11, -4, 10), (5, 30, 9)), _ellipsoid(at, (-11, -4, 10), (5, 30, 9)))
    return np.minimum(lateral, _ellipsoid(at, (0, -32, -42), (6, 5, 8))) < 0


def _cavities(at: Places, flesh: Array) -> Array:
    """Return the voxels of nose, sinuses, mouth and throat: air in the face."""
    z = at[2]
    nose = _ellipsoid(at, (0, 68, -62), (16, 24, 20)) + 4 * flesh
    throat = _tube(at, 0, 22, 9) + np.where(z > -60, 50, 0)
    ears = np.minimum(_ellipsoid(at, (58, -18, -52), (12, 14, 10)), _ellipsoid(at, (-58, -18, -52), (12, 14, 10)))
    return np.minimum(np.minimum(nose, throat), ears + 3 * flesh) < 0


def _eyes(scan: Array, at: Places, fluid: float, bright: float) -> Array:
    x, y, z = at
    for side in (-32, 32):
        eye = _ellipsoid(at, (side, 80, -38), (12, 12, 12))
        orbit = _ellipsoid(at, (side * 0.9, 68, -38), (17, 24, 16))
        nerve = np.hypot(x - side * 0.75, z + 38) - 2 + np.where((y > 72) | (y < 40), 50, 0)
        scan = np.where((orbit < 0) & (eye > 0) & (scan < bright), bright, scan)
        scan = np.where(nerve < 0, 0.6, scan)
        scan = np.where(eye < 0, fluid * 1.5, scan)
    return scan


def _stored(scan: Array, mask: Array, scanner: Scanner) -> tuple[Array, Array, Array]:
    """Turn a RAS array into the scanner's own axes, with its affine (oblique, as the head is tilted)."""
    flips = [-1 if letter in "LPI" else 1 for letter in scanner.axes]
    turn = tuple(slice(None, None, f) for f in flips)
    shape = np.array(scan.shape)
    # a slight obliquity, as technicians angle the slices: the world is turned against the grid
    direction = _rotation((scanner.tilt[0] / 2, 0.0, 0.0)) @ np.diag(np.array(scanner.spacing) * flips)
    affine = np.eye(4)
    affine[:3, :3] = direction
    affine[:3, 3] = -direction @ ((shape - 1) / 2)
    return np.ascontiguousarray(scan[turn]), np.ascontiguousarray(mask[turn]), affine
