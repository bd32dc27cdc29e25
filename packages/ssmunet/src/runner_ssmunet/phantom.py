"""Generate tissue-microarray cores in the real file format, core_*.npz. Version 3.

A pixel's absorbance is a mixture of tissue components, each a sum of bands where its molecules absorb:

    A(ν) = thickness · Σ amount_c · component_c(ν) + paraffin + scatter slope + baseline + noise + artefacts

Positions (cm⁻¹) are those of the literature: amide I 1655 (α-helix), 1630 and 1690 (β-sheet), amide II 1545 and 1530,
amide III 1240 to 1310 (Barth, "Infrared spectroscopy of proteins", 2007); collagen 1204, 1240, 1280, 1338 with 1033 and
1082 (Belbachir et al., "Collagen types analysis and differentiation by FTIR spectroscopy", 2009); lipid ester 1740,
CH₂ 1468, C–O 1170; phosphate 1235 and 1086, DNA 966; glycogen 1152, 1080, 1025; mucin 1120, 1076, 1044, 1375
(Movasaghi, Rehman and Rehman, "Fourier transform infrared (FTIR) spectroscopy of biological tissues", 2008).

What makes it hard: a pixel is a few cells, so that its amounts scatter widely about its tissue's, and tissues overlap;
a single spectrum says little, its neighbourhood much, and slope and thickness vary more than chemistry does. Patients
differ by a few per cent. `SCATTER` (of the amounts) and `NOISE` were chosen once, by the score of the per-pixel
logistic regression alone (mIoU 0.54 on patients that it was not fitted to; 0.45 to 0.6 was wanted), before any setting
of the network was tuned.

Artefacts are what instruments and annotators add, in `artefacts.py`: resonant Mie scattering, edges, lines of water
vapour, and labels that spill over borders. Without them the cores are those of version 2 (1 had no classes.csv).
Whoever changes what is written raises `SSMUNet.phantom_version`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from runner_ssmunet import artefacts

Array = np.ndarray[Any, np.dtype[Any]]

PATIENTS = 10
CORES = 2
"""Cores of each patient. Together they show all eight tissues."""
SIDE = 48
CHANNELS = 425
TISSUES_A_CORE = 5
ANNOTATED = (0.06, 0.18)
"""Share of a core's pixels that have a label."""
SCATTER = 0.7
"""Standard deviation of the logarithm of a pixel's amounts around those of its tissue."""
VAPOUR_FILE = "vapour.csv"
NOISE = 0.01
"""Standard deviation of the noise (absorbance; amide I is about 0.6 high)."""

# Component: (position, full width at half maximum, height) of its bands, cm⁻¹ and relative to the highest.
BANDS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "helix": (
        (1655, 42, 1.0), (1545, 46, 0.6), (1453, 28, 0.16), (1396, 34, 0.14), (1305, 40, 0.10), (1245, 40, 0.10),
        (1170, 26, 0.05),
    ),
    "sheet": (
        (1631, 34, 1.0), (1690, 20, 0.18), (1530, 42, 0.6), (1450, 28, 0.14), (1394, 34, 0.14), (1236, 36, 0.16),
        (1110, 60, 0.08),
    ),
    "haemoglobin": (
        (1657, 34, 1.0), (1548, 38, 0.62), (1452, 26, 0.16), (1392, 26, 0.18), (1304, 26, 0.14), (1166, 20, 0.07),
    ),
    "collagen": (
        (1660, 46, 1.0), (1635, 30, 0.25), (1555, 48, 0.62), (1452, 26, 0.18), (1404, 26, 0.10), (1338, 18, 0.12),
        (1280, 22, 0.16), (1240, 26, 0.24), (1204, 18, 0.13), (1082, 26, 0.12), (1033, 28, 0.14),
    ),
    "nucleic": ((1235, 42, 0.9), (1086, 38, 1.0), (1055, 26, 0.45), (966, 20, 0.40), (1660, 60, 0.7), (1712, 28, 0.25)),
    "lipid": ((1740, 24, 1.0), (1468, 16, 0.5), (1380, 16, 0.15), (1170, 46, 0.7), (1240, 40, 0.25), (1085, 46, 0.3)),
    "glycogen": ((1025, 34, 1.0), (1080, 36, 0.75), (1152, 26, 0.6), (930, 24, 0.2)),
    "mucin": ((1044, 46, 0.9), (1076, 40, 1.0), (1120, 36, 0.75), (1375, 22, 0.25), (1230, 34, 0.2), (1640, 60, 0.3)),
}  # fmt: skip
PARAFFIN = ((1463.0, 14.0, 1.0), (1378.0, 12.0, 0.45))

# Tissue: amount of each component, in the order of BANDS.
AMOUNTS: dict[str, tuple[float, ...]] = {
    "epithelium": (0.50, 0.20, 0.03, 0.06, 0.12, 0.07, 0.14, 0.04),
    "tumour": (0.46, 0.26, 0.03, 0.06, 0.20, 0.09, 0.06, 0.04),
    "stroma": (0.20, 0.10, 0.03, 0.50, 0.05, 0.05, 0.04, 0.06),
    "muscle": (0.58, 0.08, 0.04, 0.18, 0.05, 0.05, 0.10, 0.02),
    "lymphocytes": (0.42, 0.14, 0.04, 0.06, 0.27, 0.05, 0.05, 0.03),
    "blood": (0.22, 0.06, 0.52, 0.06, 0.05, 0.05, 0.04, 0.03),
    "necrosis": (0.26, 0.42, 0.04, 0.06, 0.10, 0.15, 0.05, 0.04),
    "mucin": (0.30, 0.16, 0.03, 0.08, 0.07, 0.05, 0.07, 0.22),
}


def write_phantom(folder: Path, rng: np.random.Generator, faulty: bool = True) -> None:
    """Write PATIENTS × CORES cores, 80 MB, the table of their class names, and the spectrum of the vapour in them.

    Cores that are not `faulty` have no artefacts.
    """
    lines = ["label,name", *(f"{label},{name}" for label, name in enumerate(AMOUNTS, start=1))]
    (folder / "classes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wavenumbers = np.linspace(900, 1800, CHANNELS)
    faults = rng.spawn(1)[0] if faulty else None
    if faulty:
        rows = np.stack([wavenumbers, artefacts.vapour(wavenumbers)], axis=1)
        np.savetxt(folder / VAPOUR_FILE, rows, "%.6g", ",", header="wavenumber,water vapour", comments="")
    for patient in range(PATIENTS):
        components = component_spectra(wavenumbers, rng)
        tissues = rng.permutation(len(AMOUNTS))
        for core in range(CORES):
            shown = np.roll(tissues, -core * len(tissues) // CORES)[:TISSUES_A_CORE]
            name = f"P{patient + 1:02d}-{core + 1}"
            meta = {"core_id": name, "patient_id": f"P{patient + 1:02d}", "slide_id": f"TMA{patient % 3 + 1}"}
            arrays = make_core(wavenumbers, components, shown, rng, faults)
            axis: dict[str, Any] = {"wn": wavenumbers, "delta_cm1": float(wavenumbers[1] - wavenumbers[0])}
            np.savez(folder / f"core_{name}.npz", **arrays, **axis, meta=json.dumps(meta))


def component_spectra(wavenumbers: Array, rng: np.random.Generator) -> Array:
    """Return one patient's spectra of the components (C, L).

    Between patients, heights differ by a few per cent and positions by a fraction of a cm⁻¹.
    """
    spectra = []
    for bands in BANDS.values():
        own = [(p + rng.normal(0, 0.4), w, h * np.exp(rng.normal(0, 0.03))) for p, w, h in bands]
        spectra.append(absorption(wavenumbers, own))
    return np.stack(spectra)


def absorption(wavenumbers: Array, bands: Any) -> Array:
    """Sum up bands (position, full width at half maximum, height), each the mean of Gaussian and Lorentzian."""
    total = np.zeros_like(wavenumbers)
    for position, width, height in bands:
        distance = 2 * (wavenumbers - position) / width
        total += height * (0.5 * np.exp(-np.log(2) * distance**2) + 0.5 / (1 + distance**2))
    return total


def make_core(
    wavenumbers: Array, components: Array, tissues: Array, rng: np.random.Generator,
    faults: np.random.Generator | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return X (H, W, L) float32, y (H, W) uint8 with 0 for unannotated, and tissue_mask (H, W) bool.

    `tissues` holds the numbers of the tissues that the core shows. Artefacts are drawn from `faults`; None: none.
    """
    mask = core_outline(rng)
    place = np.argmax([smooth(rng, 5.0) for _ in tissues], axis=0)
    truth = np.where(mask, np.asarray(tissues)[place] + 1, 0)
    amounts = np.array(list(AMOUNTS.values()))[truth - 1] * np.exp(
        rng.normal(0, SCATTER, (SIDE, SIDE, len(components)))
    )
    thickness = np.exp(0.3 * smooth(rng, 8.0) + rng.normal(0, 0.1, mask.shape)) * 0.7
    if faults is not None:
        thickness = thickness * (1 - artefacts.THINNER * artefacts.at_edge(mask))
    spectra = (amounts * (thickness * mask)[..., None]) @ components
    if faults is not None:
        fields = np.stack([smooth(faults, 4.0) for _ in range(4)])
        spectra += artefacts.scattered(spectra, wavenumbers, mask, fields)
        rows = ndimage.gaussian_filter1d(faults.normal(size=SIDE), 2.0, mode="wrap")
        spectra += artefacts.VAPOUR * (rows / rows.std())[:, None, None] * artefacts.vapour(wavenumbers)
    spectra += surroundings(wavenumbers, mask, rng)
    spectra += rng.normal(0, NOISE, spectra.shape)
    labels = annotated(truth, rng, faults).astype(np.uint8)
    return {"X": spectra.astype(np.float32), "y": labels, "tissue_mask": mask}


def surroundings(wavenumbers: Array, mask: Array, rng: np.random.Generator) -> Array:
    """Return all absorbance (H, W, L) that is not the tissue's chemistry: paraffin, scattering and an offset.

    Paraffin is stronger off the tissue. Scattering rises with the wavenumber and is stronger in tissue.
    """
    place = (wavenumbers - 900) / 900
    paraffin = np.exp(0.4 * smooth(rng, 6.0)) * np.where(mask, 0.06, 0.15)
    slope = (0.06 + 0.05 * smooth(rng, 6.0) + rng.normal(0, 0.02, mask.shape)) * np.where(mask, 1.0, 0.3)
    offset = 0.02 + 0.02 * smooth(rng, 10.0)
    return (
        paraffin[..., None] * absorption(wavenumbers, PARAFFIN)
        + slope[..., None] * (0.6 * place + 0.4 * place**2)
        + offset[..., None]
    )


def core_outline(rng: np.random.Generator) -> Array:
    """Return a disc with a rough edge and perhaps a hole: (H, W) bool."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2 - rng.uniform(-2, 2, (2, 1, 1))
    disc = np.hypot(y, x) < SIDE * 0.44 + 1.5 * smooth(rng, 3.0)
    return disc & (smooth(rng, 3.0) < rng.uniform(1.8, 2.6))


def annotated(truth: Array, rng: np.random.Generator, faults: np.random.Generator | None = None) -> Array:
    """Return the labels of small discs of tissue, up to the share in `ANNOTATED`; 0 elsewhere.

    With `faults`, some discs reach over the border to the next tissue, whose pixels they label wrongly.
    """
    wanted = rng.uniform(*ANNOTATED) * truth.size
    inside = np.argwhere(truth > 0)
    seen, spilled = np.zeros(truth.shape, bool), np.zeros_like(truth)
    y, x = np.mgrid[: truth.shape[0], : truth.shape[1]]
    while np.count_nonzero(seen) < wanted:
        centre = inside[rng.integers(len(inside))]
        disc = np.hypot(y - centre[0], x - centre[1]) <= rng.uniform(1.0, 2.5)
        own = disc & (truth == truth[tuple(centre)])
        seen |= own
        if faults is not None and faults.random() < artefacts.SPILLED:
            spilled[artefacts.beside(own, disc & (truth > 0))] = truth[tuple(centre)]
    return np.where(spilled > 0, spilled, np.where(seen, truth, 0))


def smooth(rng: np.random.Generator, sigma: float) -> Array:
    """Return a Gaussian random field (SIDE, SIDE): mean 0, standard deviation 1, correlated over `sigma` pixels."""
    field = ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), sigma, mode="wrap")
    return (field - field.mean()) / field.std()
