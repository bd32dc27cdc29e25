"""Each step of `preprocess.steps` against SciPy, pybaselines or its published equation, and what it must not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import polynomial
from pybaselines import Baseline
from runner_core import BadInput
from runner_core.testing import refusal
from runner_ssmunet.axis import plan
from runner_ssmunet.config import PreprocessConfig, SpectraConfig, demo
from runner_ssmunet.preprocess import prepare
from runner_ssmunet.project import SSMUNet
from runner_ssmunet.steps import denoise, emsc, mie
from runner_ssmunet.steps.operations import OPERATIONS, applied
from runner_ssmunet.steps.pipeline import Pipeline, Place, opened
from runner_ssmunet.steps.spectrafile import Spectra, read
from runner_ssmunet.steps.spikes import without_spikes
from scipy import linalg, signal

MEASURED = np.linspace(900.0, 1800.0, 226)
AXIS = plan(MEASURED, SpectraConfig(), "core_1")
KEPT = AXIS.wavenumbers
HOST = ["spikes", "asls", "polynomial", "savgol", "rubberband"]
SIDES = [segment.points for segment in AXIS.segments]
PLACE = Place(MEASURED, AXIS, "core_1")


def tissue(count: int = 6, seed: int = 0, noise: float = 0.002) -> np.ndarray:
    """Spectra (count, L) of protein with more or less of two other bands."""
    rng = np.random.default_rng(seed)
    bands = [np.exp(-(((KEPT - at) / width) ** 2)) for at, width in ((1240, 25), (1085, 35))]
    pixels = mie.protein(KEPT) + 0.3 * rng.random((count, 2)) @ bands
    return (pixels * rng.uniform(0.5, 1, (count, 1)) + rng.normal(0, noise, pixels.shape)).astype(np.float32)


def steps(*names: Any, files: dict[str, Spectra] | None = None, **changed: Any) -> Pipeline:
    return Pipeline(PreprocessConfig(steps=names, **changed), files or {})


def done(pixels: np.ndarray, *names: Any, files: dict[str, Spectra] | None = None, **changed: Any) -> np.ndarray:
    return steps(*names, files=files, **changed).on_pixels(pixels, PLACE)


def by_side(pixels: np.ndarray, function: Any) -> np.ndarray:
    """`function` (spectrum, wavenumbers) of each spectrum on either side of the gap, in float64."""
    rows = [[function(row[side].astype(np.float64), KEPT[side]) for side in SIDES] for row in pixels]
    return np.array([np.concatenate(parts) for parts in rows])


def residual(found: np.ndarray, wanted: np.ndarray) -> float:
    """The root mean square of what differs after the best scale, offset and slope of each spectrum."""
    errors = []
    for own, pure in zip(found.astype(np.float64), wanted.astype(np.float64), strict=True):
        design = np.stack([own, np.ones_like(own), KEPT / 1000], axis=1)
        errors.append(np.mean((design @ np.linalg.lstsq(design, pure, rcond=None)[0] - pure) ** 2))
    return float(np.sqrt(np.mean(errors)))


# ---------------------------------------------------------------- simple steps


def test_baselines_are_those_of_pybaselines() -> None:
    pixels = tissue() + np.float32(0.2) + (KEPT / 5000).astype(np.float32)

    def asls(own: np.ndarray, axis: np.ndarray) -> np.ndarray:
        return own - Baseline(axis).asls(own, lam=1e5, p=0.02, tol=0)[0]

    def poly(own: np.ndarray, axis: np.ndarray) -> np.ndarray:
        return own - Baseline(axis).modpoly(own, poly_order=3, tol=1e-3, max_iter=250)[0]

    found = done(pixels, "asls", asls_smoothness=1e5, asls_asymmetry=0.02)
    np.testing.assert_allclose(found, by_side(pixels, asls), atol=1e-5)
    np.testing.assert_allclose(done(pixels, "polynomial", polynomial_degree=3), by_side(pixels, poly), atol=1e-5)
    rubberband = by_side(pixels, lambda own, axis: own - Baseline(axis).rubberband(own)[0])
    np.testing.assert_allclose(done(pixels, "rubberband"), rubberband, atol=1e-5)


@pytest.mark.parametrize("derivative, order, window", [(0, 2, 7), (1, 3, 9), (2, 5, 11), (3, 4, 13), (0, 0, 5)])
def test_savitzky_golay_of_any_order_is_scipys(derivative: int, order: int, window: int) -> None:
    def savgol(own: np.ndarray, axis: np.ndarray) -> np.ndarray:
        return signal.savgol_filter(own, window, order, deriv=derivative, delta=0.4)

    found = done(tissue(), "savgol", savgol_derivative=derivative, savgol_order=order, savgol_window=window)
    np.testing.assert_allclose(found, by_side(tissue(), savgol), atol=2e-5)


def test_normalisations_are_their_definitions() -> None:
    pixels = tissue().astype(np.float64)
    centred = pixels - pixels.mean(1, keepdims=True)
    np.testing.assert_allclose(done(tissue(), "snv"), centred / pixels.std(1, keepdims=True), atol=1e-4)
    root = np.sqrt((pixels**2).mean(1, keepdims=True))
    np.testing.assert_allclose(done(tissue(), "vector"), pixels / root, rtol=1e-5, atol=1e-6)
    found = done(tissue(), "area")
    widths = np.concatenate([np.full(side.stop - side.start, 4.0) for side in SIDES])
    np.testing.assert_allclose(np.abs(found) @ widths / widths.sum(), 1, rtol=1e-5)
    band = (KEPT >= 1600) & (KEPT <= 1700)
    height = np.trapezoid(pixels[:, band] - np.linspace(pixels[:, band][:, 0], pixels[:, band][:, -1], band.sum()).T,
                          KEPT[band], axis=1) / 100  # fmt: skip
    np.testing.assert_allclose(done(tissue(), "amide1"), pixels / height[:, None], rtol=1e-3, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.2, 5), offset=st.floats(-2, 2), seed=st.integers(0, 99))
def test_snv_and_emsc_do_not_see_scale_and_offset(scale: float, offset: float, seed: int) -> None:
    pixels = tissue(3, seed).astype(np.float64)
    moved = (scale * pixels + offset).astype(np.float32)
    np.testing.assert_allclose(done(moved, "snv"), done(pixels.astype(np.float32), "snv"), atol=2e-4)
    operation = emsc.model(mie.protein(KEPT), KEPT, 2)
    np.testing.assert_allclose(applied(moved, [operation]), applied(pixels, [operation]), atol=2e-3)


def test_nothing_stays_nothing() -> None:
    blank = np.zeros((2, len(KEPT)), np.float32)
    for step in ("snv", "vector", "area", "amide1", "rubberband", "asls", "polynomial", "spikes", "rmies", "savgol"):
        assert np.abs(done(blank, step)).max() < 1e-6, step


def test_spikes_go_and_tissue_stays() -> None:
    pixels = tissue(40)
    np.testing.assert_array_equal(done(pixels, "spikes"), pixels)
    hit, rng = pixels.copy(), np.random.default_rng(3)
    rows, columns = np.arange(40), rng.integers(3, len(KEPT) - 3, 40)
    columns = np.where(np.abs(columns - SIDES[1].start) < 4, 20, columns)
    hit[rows, columns] += rng.choice([-0.3, 0.5], 40)
    found = done(hit, "spikes")
    assert np.abs(found - pixels).max() < 0.03
    assert (found != hit).sum() <= 2 * 40
    wide = pixels[:, SIDES[0]].copy()
    wide[:, 30:32] += 0.4
    wide[:, 60:63] -= 0.3
    assert np.abs(without_spikes(wide, 8.0) - pixels[:, SIDES[0]]).max() < 0.02


# ---------------------------------------------------------------- EMSC, atmosphere


def test_emsc_takes_planted_effects_off() -> None:
    """x = b · (reference + r) + a + d ν + e ν² + paraffin, exactly, for r that the model cannot show otherwise."""
    rng, reference = np.random.default_rng(0), mie.protein(KEPT)
    paraffin = np.exp(-(((KEPT - 1340) / 12) ** 2))[None]
    operation = emsc.model(reference, KEPT, 2, [paraffin])
    shapes = np.concatenate([reference[None], operation[1]["shapes"]])
    free = rng.normal(0, 0.05, (5, len(KEPT)))
    free -= free @ np.linalg.pinv(shapes) @ shapes
    pure = reference + free
    x = (KEPT - KEPT[0]) / (KEPT[-1] - KEPT[0]) * 2 - 1
    effects = rng.normal(0, 1, (5, 3)) @ np.stack([x**0, x, x**2]) + rng.random((5, 1)) * paraffin
    found = applied(rng.uniform(0.3, 3, (5, 1)) * pure + effects, [operation])
    np.testing.assert_allclose(found, pure, atol=2e-4)


def test_replicates_are_what_differs_between_cores_of_a_class() -> None:
    rng, reference = np.random.default_rng(1), mie.protein(KEPT)
    basic = emsc.model(reference, KEPT, 1)
    planted = np.sin(KEPT / 40)
    means = [(k, reference * (1 + 0.1 * k) + a * planted) for k in (1, 2) for a in rng.normal(0, 0.1, 4)]
    shape = emsc.replicate_shapes(means, basic, 1)
    operation = emsc.model(reference, KEPT, 1, [shape])
    spread = [
        np.std([applied(m[None], [own])[0] for k, m in means if k == 1], axis=0).max() for own in (basic, operation)
    ]
    assert spread[1] < 0.03 * spread[0]
    with pytest.raises(BadInput, match=r"preprocess.replicates 7: the training records have 6 pairs of cores"):
        emsc.replicate_shapes(means, basic, 7)


def vapour() -> Spectra:
    """Two spectra of narrow lines, on an axis of their own."""
    rng, axis = np.random.default_rng(5), np.arange(880.0, 1821.0, 1.0)
    lines = [sum(rng.random() * np.exp(-(((axis - at) / 3) ** 2)) for at in rng.uniform(900, 1800, 60)) for _ in "ab"]
    return Spectra("vapour.csv", axis, np.stack(lines))


def test_vapour_goes_and_bands_stay() -> None:
    pure, own = tissue(20, noise=0.0), vapour()
    added = np.random.default_rng(0).uniform(-0.1, 0.2, (20, 2)) @ own.on(MEASURED, AXIS)
    found = done((pure + added).astype(np.float32), "atmosphere", files={"vapour": own}, vapour=Path("v"))
    assert np.abs(added).max() > 0.1
    assert np.abs(found - pure).max() < 0.02 * np.abs(added).max()
    twice = Spectra("v.csv", own.wavenumbers, np.repeat(own.spectra[:1], 2, axis=0))
    with pytest.raises(BadInput, match=r"v.csv: its spectra have no lines on the kept axis, or are multiples"):
        done(pure, "atmosphere", files={"vapour": twice}, vapour=Path("v"))


# ---------------------------------------------------------------- resonant Mie scattering


def scattered(pixels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Add the extinction of spheres whose index varies with each spectrum's own absorbance."""
    rng = np.random.default_rng(seed)
    out = pixels.astype(np.float64)
    for row, variation in zip(out, mie.index_variation(pixels.astype(np.float64), KEPT), strict=True):
        phase = 4 * np.pi * rng.uniform(2.5, 7) * 1e-4 * KEPT * rng.uniform(0.15, 0.45)
        row += rng.uniform(0.1, 0.4) * mie.extinction(phase * (1 + rng.uniform(0, 0.4) * variation))
    return out.astype(np.float32)


def test_planted_scattering_is_taken_off() -> None:
    """The residual error is half of that without correction, and two thirds of what EMSC alone leaves."""
    pure = tissue(60, noise=0.0005)
    seen = scattered(pure)
    plain = applied(seen, [emsc.model(mie.protein(KEPT), KEPT, 2)])
    before, without, after = (residual(own, pure) for own in (seen, plain, done(seen, "rmies", mie_iterations=2)))
    assert after < 0.5 * before
    assert after < 0.7 * without


def test_van_de_hulst_and_kramers_kronig_are_their_formulas() -> None:
    assert mie.extinction(np.array([4.086])) == pytest.approx(3.173, abs=2e-3)  # the first and highest maximum
    assert mie.extinction(np.array([1e-2])) == pytest.approx(0.5e-4, rel=1e-2)  # ρ²/2 for small spheres
    axis = np.arange(400.0, 3000.0, 2.0)
    absorbance = 15**2 / ((axis - 1600) ** 2 + 15**2)
    found = mie.index_variation(absorbance[None], axis)[0]
    wanted = -15 * (axis - 1600) / ((axis - 1600) ** 2 + 15**2)  # the Lorentzian's own dispersion
    np.testing.assert_allclose(found / np.abs(found).max(), wanted / np.abs(wanted).max(), atol=0.03)


def one_by_one(pixel: np.ndarray, reference: np.ndarray, components: int) -> np.ndarray:
    """Bassan's round of one spectrum, curve by curve: no series, a decomposition of all curves, least squares."""
    sizes, shares = mie.parameters((2.0, 8.0), (1.1, 1.5))
    variation = mie.index_variation(reference[None], KEPT)[0]
    curves = mie.extinction(sizes[:, None] * (1 + shares[:, None] * variation) * KEPT)
    shapes = np.linalg.svd(curves, full_matrices=False)[2][:components]
    design = np.stack([reference, np.ones_like(KEPT), KEPT / 1000, *shapes], axis=1)
    amounts = np.linalg.lstsq(design, pixel, rcond=None)[0]
    return (pixel - design[:, 1:] @ amounts[1:]) / amounts[0]


@pytest.mark.parametrize("iterations", [1, 3])
def test_every_pixel_is_corrected_as_if_its_curves_were_made_one_by_one(iterations: int) -> None:
    seen = scattered(tissue(3, noise=0.0))
    found = done(seen, "rmies", mie_iterations=iterations)
    for pixel, own in zip(seen.astype(np.float64), found, strict=True):
        wanted = mie.protein(KEPT)
        for _ in range(iterations):
            wanted = one_by_one(pixel, wanted, 7)
        np.testing.assert_allclose(own, wanted, atol=2e-3)


# ---------------------------------------------------------------- all steps


@settings(max_examples=10, deadline=None)
@given(names=st.lists(st.sampled_from(HOST), min_size=1, unique=True),
       side=st.integers(0, 1), seed=st.integers(0, 99))  # fmt: skip
def test_filters_and_baselines_do_not_reach_across_the_gap(names: list[Any], side: int, seed: int) -> None:
    pixels = tissue(2, seed)
    other = pixels.copy()
    other[:, SIDES[side]] = np.random.default_rng(seed).normal(0, 100, other[:, SIDES[side]].shape)
    near = SIDES[1 - side]
    np.testing.assert_array_equal(done(pixels, *names)[:, near], done(other, *names)[:, near])


@pytest.mark.parametrize("step", ["spikes", "asls", "polynomial", "rubberband", "rmies", "savgol", "snv", "area"])
def test_a_pixel_is_the_same_alone_and_among_others(step: Any) -> None:
    pixels = scattered(tissue(300))
    alone, among = (done(own, step, mie_iterations=2) for own in (pixels[-2:], pixels))
    np.testing.assert_allclose(among[-2:], alone, atol=1e-5)


def test_operations_are_the_same_in_numpy_and_torch() -> None:
    import torch

    pipeline, pixels = steps("savgol"), tissue(4)
    operations = [pipeline.operation(step, PLACE) for step in ("savgol", "snv", "vector", "area", "amide1")]
    operations.append(emsc.model(mie.protein(KEPT), KEPT, 2))
    some = np.linalg.qr(np.random.default_rng(0).normal(size=(len(KEPT), 3)))[0]
    operations.append(("projected", {"mean": pixels.mean(0), "down": some, "up": some.T}))
    operations.append(("without", {"solve": some, "shapes": some.T}))
    assert {name for name, _ in operations} == set(OPERATIONS)
    for operation in operations:
        found = applied(torch.from_numpy(pixels).reshape(2, 2, -1), [operation]).reshape(4, -1).numpy()
        np.testing.assert_allclose(found, applied(pixels, [operation]), rtol=1e-4, atol=1e-4)


def test_the_order_is_the_settings_and_the_result_is_cached() -> None:
    spectra, mask = np.zeros((1, 6, 226), np.float32), np.ones((1, 6), bool)
    spectra[..., np.isin(MEASURED, KEPT)] = tissue()
    own = steps("rubberband", "snv")
    found = prepare(spectra, MEASURED, mask, SpectraConfig(), "core_1", lambda p, axis: own.on_pixels(p, PLACE))[0]
    wanted = done(done(tissue(), "rubberband"), "snv")
    np.testing.assert_allclose(found[0], wanted, rtol=1e-3, atol=1e-3)
    assert np.abs(done(tissue(), "snv", "rubberband") - wanted).max() > 0.1


# ---------------------------------------------------------------- files and settings


def test_a_file_of_spectra_is_read_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "vapour.csv"
    file.write_text("wavenumber;water;CO2\n1800;0.5;0.1\n900;0.25;0\n\n")
    found = read(file)
    assert found.wavenumbers.tolist() == [900, 1800]
    assert found.spectra.tolist() == [[0.25, 0.5], [0, 0.1]]
    np.testing.assert_allclose(found.on(MEASURED, AXIS)[0], np.interp(KEPT, [900, 1800], [0.25, 0.5]))


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "it has 0 rows"),
        ("900,1\n", "it has 1 rows of 2 numbers"),
        (
            "900,1\n1800,x\n",
            r"row 2 of its numbers is '1800,x'; each row needs a wavenumber \(cm⁻¹\) and an absorbance",
        ),
        ("900,1,2\n1800,1,2\n", "it has 2 rows of 3 numbers; each needs a wavenumber"),
        ("900,1\n900,2\n", "it has a wavenumber twice"),
        ("900,nan\n901,2\n", "a value that is no finite number"),
        ("900,0\n901,0\n", "one of its spectra is 0 everywhere"),
    ],
)
def test_a_file_that_holds_no_spectrum(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "reference.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=rf"reference\.csv: .*{said}"):
        read(file, single=True)


def test_files_that_are_missing_or_too_short(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv: No such file or directory; a CSV file of spectra is needed"):
        opened(PreprocessConfig(steps=("emsc",), reference=tmp_path / "none.csv"), None)
    short = Spectra("short.csv", np.array([1000.0, 1700.0]), np.ones((1, 2)))
    with pytest.raises(BadInput, match=r"short.csv: it runs from 1000 to 1700 cm⁻¹, the cores' axis from 900 to 1800"):
        short.on(MEASURED, AXIS)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"steps": ("snv", "snv")}, "preprocess.steps names snv twice"),
        ({"steps": ("pca", "asls")}, "asls comes after pca, which is fitted in training: put asls before it"),
        ({"steps": ("emsc", "rmies")}, "rmies comes after emsc"),
        ({"steps": ("atmosphere",)}, "atmosphere needs the spectrum of the vapour on your instrument"),
        (
            {"steps": ("emsc",), "vapour": Path("v")},
            "preprocess.vapour is set, and no step of preprocess.steps reads",
        ),
        ({"steps": ("snv",), "reference": Path("r")}, "add rmies or emsc to the steps, or leave it out"),
        ({"interferents": Path("i")}, "preprocess.interferents is set"),
        ({"steps": ("pca",), "replicates": 2}, "preprocess.replicates is set"),
        ({"savgol_window": 8}, "preprocess.savgol_window is 8; an odd number of points above savgol_order"),
        ({"savgol_derivative": 4}, "savgol_derivative is 4; a polynomial of order 3 has none"),
        ({"mie_radius": (5.0, 2.0)}, "preprocess.mie_radius is 5 2; two ascending numbers above 0"),
        ({"asls_asymmetry": 0.7}, "preprocess.asls_asymmetry must lie between 0 and 0.5, not 0.7"),
    ],
)
def test_settings_that_cannot_be(changed: dict[str, Any], said: str) -> None:
    config = demo()
    config.preprocess = replace(config.preprocess, **changed)
    assert said in str(refusal(SSMUNet, config))


def test_the_older_settings_and_steps_do_not_mix() -> None:
    config = demo()
    config.preprocess.steps = ("snv",)
    SSMUNet(config)
    config.data.derivative = "second"
    assert "preprocess.steps replaces data.baseline, data.derivative and data.normalise" in str(
        refusal(SSMUNet, config)
    )


def test_a_cubic_keeps_its_values_when_smoothed() -> None:
    line = polynomial.polyval((KEPT - 1350) / 100, [1.0, 0.3, -0.2, 0.05])[None].astype(np.float32)
    np.testing.assert_allclose(done(line, "savgol", savgol_derivative=0), line, atol=1e-4)


# ---------------------------------------------------------------- components


def core(rng: np.random.Generator, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smooth maps of two spectra with `noise` (L,) of each channel: pure (H, W, L), seen (H, W, L), tissue (H, W)."""
    y, x = np.mgrid[:24, :24] / 24
    pure = np.stack([np.sin(3 * x), np.cos(4 * y)], axis=-1) @ rng.normal(0, 1, (2, len(noise)))
    return pure, pure + rng.normal(0, 1, pure.shape) * noise, x + y < 1.6


def test_mnf_finds_faint_signals_that_pca_takes_for_noise() -> None:
    """Half of the channels are ten times as noisy: variance alone ranks them first."""
    rng = np.random.default_rng(0)
    noise = np.where(np.arange(12) < 6, 3.0, 0.3)
    pure, seen, mask = core(rng, noise)
    errors = {}
    for name, fit in (("pca", denoise.pca), ("mnf", denoise.mnf)):
        found = applied(seen, [fit(lambda: [(seen, mask)], 12, 2)])
        errors[name] = np.abs((found - pure)[mask]).mean()
    assert errors["mnf"] < 0.7 * errors["pca"]
    assert errors["mnf"] < 0.3 * np.abs((seen - pure)[mask]).mean()


def test_mnf_solves_its_equation_with_the_noise_of_neighbours() -> None:
    _, seen, mask = core(np.random.default_rng(1), np.linspace(0.5, 1, 8))
    constants = denoise.mnf(lambda: [(seen, mask)], 8, 3)[1]
    down, across = seen[:, 1:] - seen[:, :-1], seen[1:] - seen[:-1]
    pairs = np.concatenate([across[mask[1:] & mask[:-1]], down[mask[:, 1:] & mask[:, :-1]]])
    noise, spread = np.cov(pairs.T, bias=True) / 2, np.cov(seen[mask].T, bias=True)
    values = linalg.eigh(spread, noise, eigvals_only=True)[::-1][:3]
    vectors = constants["down"]
    np.testing.assert_allclose(spread @ vectors, noise @ vectors * values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(constants["up"] @ vectors, np.eye(3), atol=1e-6)


def test_covariances_are_added_in_parts() -> None:
    pixels = np.random.default_rng(0).normal(100, [0.01, 1, 5], (9000, 3))
    found = denoise.Covariance(3)
    for part in np.array_split(pixels, 5):
        found.add(part)
    np.testing.assert_allclose(found.matrix(), np.cov(pixels.T, bias=True), rtol=1e-9, atol=1e-12)


def test_mnf_needs_neighbours() -> None:
    one = np.ones((3, 3, 8)) + np.random.default_rng(0).normal(0, 1, (3, 3, 8))
    with pytest.raises(BadInput, match=r"mnf estimates the noise of 8 channels .* have 0 pairs"):
        denoise.mnf(lambda: [(one, np.eye(3, dtype=bool))] * 4, 8, 3)
