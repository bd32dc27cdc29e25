"""ssmunet's preprocessing: pixels a second of each step on one core, and how much of planted faults it takes away."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from runner_ssmunet import baseline, phantom, scores
from runner_ssmunet.axis import plan
from runner_ssmunet.config import PreprocessConfig, SpectraConfig
from runner_ssmunet.preprocess import on_axis
from runner_ssmunet.statistics import balanced
from runner_ssmunet.steps import denoise, emsc, mie
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import Pipeline, Place
from runner_ssmunet.steps.spectrafile import Spectra

from benchmarks.harness import Options, Result, Table, Turns, Way, number

MEASURED = np.linspace(900, 1800, 425)
AXIS = plan(MEASURED, SpectraConfig(), "phantom")
KEPT = AXIS.wavenumbers
PLACE = Place(MEASURED, AXIS, "phantom")
HELD_OUT = ("P03", "P05", "P10")
"""Patients that nothing is fitted to."""
SHOWN = 15_000
"""Annotated pixels of each side in the logistic regression."""
STEP = 8
"""The coarser axis of `data.step` (cm⁻¹), in place of 2.1."""
Change = Callable[[np.ndarray], np.ndarray]
Core = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Spectra (H, W, L), tissue and labels."""


def vapour() -> Spectra:
    """Two spectra of narrow lines at random places: what a vapour's look like, not water's own."""
    rng, axis = np.random.default_rng(5), np.arange(880.0, 1821.0, 1.0)
    lines = [sum(rng.random() * np.exp(-(((axis - at) / 3) ** 2)) for at in rng.uniform(900, 1800, 60)) for _ in "ab"]
    return Spectra("vapour", axis, np.stack(lines))


def cores(quick: bool) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Patient, spectra (H, W, L), tissue and labels of the phantom's cores."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        phantom.write_phantom(Path(folder), np.random.default_rng(0), faulty=False)
        for file in sorted(Path(folder).glob("*.npz"))[: 4 if quick else None]:
            core = np.load(file)
            pixels = on_axis(core["X"].reshape(-1, len(MEASURED)), AXIS)
            shape = core["tissue_mask"].shape
            found.append((file.name[5:8], pixels.reshape(*shape, -1), core["tissue_mask"], core["y"]))
    return found


# ---------------------------------------------------------------- faults that are planted


def scattering(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Spheres of 2.5 to 7 µm whose index varies with each pixel's own absorbance."""
    out = pixels.astype(np.float64)
    for first in range(0, len(out), 2048):
        part = out[first : first + 2048]
        variation = mie.index_variation(part, KEPT)
        sizes, indices, shares, amounts = (rng.uniform(*of, (len(part), 1)) for of in (
            (2.5, 7), (0.15, 0.45), (0, 0.4), (0.1, 0.4)))  # fmt: skip
        part += amounts * mie.extinction(4e-4 * np.pi * sizes * KEPT * indices * (1 + shares * variation))
    return out.astype(np.float32)


def effects(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A polynomial of degree 2 and a factor."""
    place = np.interp(KEPT, (KEPT[0], KEPT[-1]), (-1, 1))
    curves = rng.normal(0, 0.2, (len(pixels), 3)) @ legendre.legvander(place, 2).T
    return np.float32(rng.uniform(0.5, 2, (len(pixels), 1))) * pixels + curves.astype(np.float32)


def lines(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return pixels + (rng.uniform(-0.1, 0.2, (len(pixels), 2)) @ vapour().on(MEASURED, AXIS)).astype(np.float32)


def spikes(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One spike in every pixel."""
    out = pixels.copy()
    out[np.arange(len(out)), rng.integers(0, out.shape[1], len(out))] += rng.uniform(0.2, 1, len(out))
    return out


def noise(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Noise five times the phantom's."""
    return pixels + rng.normal(0, 0.05, pixels.shape).astype(np.float32)


def between_cores(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One broad bell, as much of it in every pixel of a core."""
    return pixels + np.float32(rng.normal(0, 0.3)) * np.exp(-(((KEPT - 1080) / 60) ** 2) / 2).astype(np.float32)


FAULTS: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "polynomial and factor": effects, "Mie scattering": scattering, "vapour lines": lines, "spikes": spikes,
    "noise": noise, "a shape between cores": between_cores,
}  # fmt: skip


# ---------------------------------------------------------------- steps


def steps(name: str, **changed: Any) -> Change:
    files = {"vapour": vapour()} if name == "atmosphere" else {}
    pipeline = Pipeline(PreprocessConfig(steps=(name,), **changed), files)  # type: ignore[arg-type]
    return lambda pixels: pipeline.on_pixels(pixels, PLACE)


def fitted(name: str, training: list[Core]) -> Change:
    """A step that is fitted to the training cores."""
    if name.startswith("emsc"):
        reference = np.concatenate([spectra[mask] for spectra, mask, _ in training]).mean(0)
        operation = emsc.model(reference, KEPT, 2)
        if name == REPLICATES:
            means = emsc.class_means((labels, spectra) for spectra, _, labels in training)
            operation = emsc.model(reference, KEPT, 2, [emsc.replicate_shapes(means, operation, 1)])
    else:
        tissue = [(spectra, mask) for spectra, mask, _ in training]
        operation = (denoise.pca if name == "pca" else denoise.mnf)(lambda: tissue, len(KEPT), 20)
    return lambda pixels: np.asarray(applied(pixels, [operation]))


def coarser(means: bool) -> Change:
    """`data.step`, or the nearest wavenumbers instead of means."""
    axis = plan(KEPT, SpectraConfig(step=STEP), "phantom")
    nearest = np.abs(KEPT[:, None] - axis.wavenumbers).argmin(0)
    return lambda pixels: on_axis(pixels, axis) if means else pixels[:, nearest]


SIMPLE = ("spikes", "atmosphere", "rubberband", "asls", "polynomial", "savgol", "snv", "vector", "area", "amide1")
REPLICATES = "emsc, replicates 1"
COARSER = {f"means, data.step {STEP}": True, f"samples {STEP} cm⁻¹ apart": False}
REPAIRS: Mapping[str, tuple[str, ...]] = {
    "polynomial and factor": ("emsc", "polynomial", "rubberband", "asls"),
    "Mie scattering": ("emsc", "rmies, 1 round", "rmies, 3 rounds"),
    "vapour lines": ("atmosphere",), "spikes": ("spikes",), "noise": ("pca", "mnf", *COARSER),
    "a shape between cores": ("emsc", REPLICATES),
}  # fmt: skip


def ways(training: list[Core]) -> dict[str, Change]:
    rounds = {f"rmies, {n} round{'s' * (n > 1)}": steps("rmies", mie_iterations=n) for n in (1, 3)}
    return {name: steps(name) for name in SIMPLE} | rounds | {n: fitted(n, training) for n in ("emsc", "pca", "mnf")}


def speeds(pixels: np.ndarray, changes: Mapping[str, Change], quick: bool) -> Table:
    turns = Turns(1 if quick else 5)

    def timed(change: Change) -> Way:
        def way(turn: int) -> float:
            begun = time.process_time()
            change(pixels)
            return time.process_time() - begun

        return way

    for name, change in changes.items():
        turns.add(name, lambda change=change: timed(change), own_clock=True)
    rows: list[list[Any]] = [[name, len(pixels) / took.median] for name, took in turns.run().items()]
    return Table(["step", "pixels a second of one core"], rows)


def score(data: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]], change: Change) -> float:
    """mIoU of the logistic regression on annotated pixels of patients that it was not fitted to."""
    held_out = {*HELD_OUT} if len({patient for patient, *_ in data}) > 5 else {data[-1][0]}
    sides: dict[bool, tuple[list[np.ndarray], list[np.ndarray]]] = {True: ([], []), False: ([], [])}
    for patient, spectra, _, labels in data:
        spectra_of, labels_of = sides[patient in held_out]
        spectra_of.append(spectra[labels > 0])
        labels_of.append(labels[labels > 0].astype(np.int64) - 1)
    one, other = (
        (change(np.concatenate(a)[:SHOWN]), np.concatenate(b)[:SHOWN]) for a, b in (sides[False], sides[True])
    )
    mean, deviation = one[0].mean(0), one[0].std(0) + 1e-9
    counts = np.bincount(one[1], minlength=8)
    found = baseline.fit((one[0] - mean) / deviation, one[1], balanced(counts, 10))
    guess = baseline.baseline((other[0] - mean) / deviation, found).argmax(1)
    return float(scores.summary(scores.confusion(guess, other[1], 8), tuple(phantom.AMOUNTS))["miou"])


def left(change: Change, clean: np.ndarray, planted: np.ndarray) -> float:
    """Root mean square of what a fault changes in the spectra after `change`."""
    return float(np.sqrt(np.mean((change(planted) - change(clean)) ** 2)))


def normalised(change: Change) -> Change:
    snv = steps("snv")
    return lambda pixels: snv(change(pixels))


def run(options: Options) -> Result:
    data = cores(options.quick)
    training = [core for patient, *core in data if patient not in HELD_OUT]
    pixels = np.concatenate([spectra[mask] for spectra, mask, _ in training])[: 512 if options.quick else 4096]
    table = speeds(pixels, ways(training), options.quick)
    clean = score(data, normalised(lambda own: own))
    rows: list[list[Any]] = []
    for fault, plant in FAULTS.items() if not options.quick else list(FAULTS.items())[:1]:
        rng = np.random.default_rng(1)
        planted = []
        for patient, spectra, mask, labels in data:
            seen = spectra.copy()
            seen[mask] = plant(spectra[mask], rng)
            planted.append((patient, seen, mask, labels))
        seen = [core for patient, *core in planted if patient not in HELD_OUT]
        changes = ways(seen) | {name: coarser(means) for name, means in COARSER.items()}
        changes |= {REPLICATES: fitted(REPLICATES, seen), "nothing": lambda own: own}
        kept = [np.concatenate([s[m] for _, s, m, _ in both])[::20] for both in (data, planted)]
        whole = left(normalised(changes["nothing"]), *kept)
        for name in ("nothing", *REPAIRS[fault]):
            change = normalised(changes[name])
            rows.append([f"{fault}: {name}", left(change, *kept) / whole, score(planted, change)])
    return Result(
        title="ssmunet's preprocessing",
        what=f"Tissue of the phantom ({len(KEPT)} wavenumbers kept), float32. The second table plants one fault in "
        "every pixel. Left of the fault: root mean square of what it changes in a spectrum after the step and SNV, as "
        "a share of what it changes after SNV alone. mIoU: of the logistic regression after step and SNV, on single "
        f"pixels of patients that it was not fitted to; without a fault and a step it is {number(clean)}.",
        tables=[table, Table(["planted: step before SNV", "left of the fault", "mIoU"], rows)],
        remarks=[
            "The planted scattering is that of the model, with an index of each pixel's own; vapour lines are made up.",
            "The logistic regression learns by itself to look past shapes that vary at random in its training pixels: "
            "with a polynomial it scores higher than without a fault. It gains from fewer spikes and less noise, and "
            "nothing from the other corrections. In the phantom each pixel has a chemistry of its own, which mnf takes "
            "for noise.",
        ],
        packages=("numpy", "scipy", "pybaselines"),
    )
