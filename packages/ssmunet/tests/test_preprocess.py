"""The kept axis and what is cached of a spectrum: against plain loops, SciPy and pybaselines, and blind across gaps."""

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
from runner_ssmunet.bands import amide1_weights, segments
from runner_ssmunet.config import SpectraConfig, demo, wrong_axis
from runner_ssmunet.preprocess import prepare, processed, rubberband, tissue_mask
from runner_ssmunet.project import SSMUNet
from runner_ssmunet.readers import base
from scipy import signal

WAVENUMBERS = np.linspace(900.0, 1800.0, 226)
"""4 cm⁻¹ apart."""
SIDES = (WAVENUMBERS < 1350.0, WAVENUMBERS > 1490.0)
"""Wavenumbers on either side of the gap that the default settings leave out."""
KEPT = SIDES[0] | SIDES[1]


def settings_of(**changed: Any) -> SpectraConfig:
    return replace(SpectraConfig(normalise="none"), **changed)


def random_spectra(count: int = 7, channels: int = len(WAVENUMBERS), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(0, 0.05, (count, channels)), axis=1).astype(np.float32) + 1


def process(pixels: np.ndarray, data: SpectraConfig, wavenumbers: np.ndarray = WAVENUMBERS) -> np.ndarray:
    return processed(pixels, plan(wavenumbers, data, "core"), data, "core")


# ---------------------------------------------------------------- segments


def test_crop_and_gap_make_two_segments() -> None:
    axis = plan(WAVENUMBERS, settings_of(low=1000.0, high=1700.0), "core")
    kept = WAVENUMBERS[(WAVENUMBERS >= 1000) & (WAVENUMBERS <= 1700) & ((WAVENUMBERS < 1350) | (WAVENUMBERS > 1490))]
    np.testing.assert_array_equal(axis.wavenumbers, kept)
    assert [axis.wavenumbers[s.points][[0, -1]].tolist() for s in axis.segments] == [[1000, 1348], [1492, 1700]]


def test_without_a_gap_there_is_one() -> None:
    assert segments(WAVENUMBERS, settings_of(gap=None)) == [slice(0, 226)]


def test_a_file_without_the_gap_is_cut_there_all_the_same() -> None:
    removed = WAVENUMBERS[(WAVENUMBERS < 1350) | (WAVENUMBERS > 1490)]
    for data in (settings_of(), settings_of(gap=None), settings_of(gap=(1400.0, 1401.0))):
        cuts = segments(removed, data)
        assert [removed[s][[0, -1]].tolist() for s in cuts] == [[900, 1348], [1492, 1800]]


def test_a_narrow_gap_between_two_wavenumbers_cuts_too() -> None:
    cuts = segments(WAVENUMBERS, settings_of(gap=(1400.5, 1401.0)))
    assert [WAVENUMBERS[s][[0, -1]].tolist() for s in cuts] == [[900, 1400], [1404, 1800]]


def test_wavenumbers_rounded_in_a_file_are_the_same() -> None:
    data = settings_of(gap=(1348.0, 1492.0))
    exact = plan(WAVENUMBERS, data, "core").wavenumbers
    for shift in (-1e-4, 1e-4):
        np.testing.assert_allclose(plan(WAVENUMBERS + shift, data, "core").wavenumbers, exact, atol=1e-3)


@pytest.mark.parametrize("factor, pieces", [(1.4, 1), (1.6, 2)])
def test_what_a_hole_is(factor: float, pieces: int) -> None:
    axis = 1000 + np.concatenate([np.arange(20), 19 + factor + np.arange(20)])
    assert len(segments(axis, settings_of(gap=None))) == pieces


def test_nothing_left() -> None:
    with pytest.raises(BadInput, match=r"core_7: nothing is left of its axis, 900 to 1800 cm⁻¹, between data.low 2000"):
        plan(WAVENUMBERS, settings_of(low=2000.0, high=3000.0), "core_7")


def test_a_bin_larger_than_any_stretch_is_named() -> None:
    with pytest.raises(BadInput, match=r"core_7: data.bin is 500, but no stretch .* more than 113 wavenumbers"):
        plan(WAVENUMBERS, settings_of(bin=500), "core_7")
    plan(WAVENUMBERS, settings_of(bin=113), "core_7")


# ---------------------------------------------------------------- nothing reaches across

PIPELINES = st.fixed_dictionaries(
    {
        "baseline": st.sampled_from(["none", "rubberband"]),
        "derivative": st.sampled_from(["none", "second"]),
        "bin": st.integers(1, 3),
        "step": st.sampled_from([None, 5.0, 12.0]),
        "window": st.sampled_from([5, 7]),
    }
)


@settings(max_examples=60, deadline=None)
@given(changed=PIPELINES, place=st.floats(0.3, 0.7), side=st.integers(0, 1), seed=st.integers(0, 99))
def test_no_step_reaches_across_a_gap_or_a_hole(changed: dict[str, Any], place: float, side: int, seed: int) -> None:
    """The kept part of one side does not change by a bit, whatever the other side holds."""
    rng = np.random.default_rng(seed)
    middle = 900 + 900 * place
    options: dict[str, Any] = dict(changed)
    if rng.random() < 0.5:  # a gap in the settings, or a hole that the instrument left
        axis, options["gap"] = WAVENUMBERS, (middle - 30, middle + 30)
    else:
        axis = WAVENUMBERS[np.abs(WAVENUMBERS - middle) > 30]
        options["gap"] = (middle - 40, middle + 40) if options["step"] else None
    data = settings_of(**options)
    pixels = random_spectra(3, len(axis), seed)
    other = pixels.copy()
    far = (axis > middle) == bool(side)
    other[:, far] = rng.normal(0, 100, (3, int(far.sum())))
    kept = plan(axis, data, "core").wavenumbers
    before, after = process(pixels, data, axis), process(other, data, axis)
    near = (kept > middle) != bool(side)
    assert near.any()
    np.testing.assert_array_equal(before[:, near], after[:, near])
    assert (before[:, ~near] != after[:, ~near]).any()


def test_normalisation_is_one_factor_for_the_whole_spectrum() -> None:
    pixels = random_spectra()
    other = pixels.copy()
    other[:, WAVENUMBERS > 1490] *= 3
    data = settings_of(normalise="vector", derivative="second")
    near = plan(WAVENUMBERS, data, "core").wavenumbers < 1350
    ratio = process(other, data)[:, near] / process(pixels, data)[:, near]
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], ratio.shape), rtol=1e-4)


# ---------------------------------------------------------------- each step against its definition


def by_segment(pixels: np.ndarray, function: Any) -> np.ndarray:
    """`function` (spectra, wavenumbers) of either side of the gap, in float64."""
    return np.concatenate([function(pixels[:, s].astype(np.float64), WAVENUMBERS[s]) for s in SIDES], axis=1)


def test_cropping_leaves_the_values_as_they_are() -> None:
    pixels = random_spectra()
    np.testing.assert_array_equal(process(pixels, settings_of()), pixels[:, KEPT])


@pytest.mark.parametrize("size", [2, 3, 7])
def test_bins_are_means_of_neighbours(size: int) -> None:
    def bins(own: np.ndarray, wavenumbers: np.ndarray) -> np.ndarray:
        starts = range(0, len(wavenumbers) - size + 1, size)
        return np.stack([own[:, start : start + size].mean(1) for start in starts], axis=1)

    pixels = random_spectra()
    np.testing.assert_allclose(process(pixels, settings_of(bin=size)), by_segment(pixels, bins), rtol=1e-6)
    centres = by_segment(np.broadcast_to(WAVENUMBERS, (1, 226)), bins)[0]
    np.testing.assert_allclose(plan(WAVENUMBERS, settings_of(bin=size), "core").wavenumbers, centres)


@pytest.mark.parametrize("window", [5, 9, 21])
def test_the_derivative_is_scipys_on_each_segment(window: int) -> None:
    def savgol(own: np.ndarray, wavenumbers: np.ndarray) -> np.ndarray:
        return -signal.savgol_filter(own, window, 3, deriv=2, delta=0.4, axis=1)  # 4 cm⁻¹ in units of 10

    pixels = random_spectra()
    data = settings_of(derivative="second", window=window)
    np.testing.assert_allclose(process(pixels, data), by_segment(pixels, savgol), atol=2e-5)


def test_the_derivative_of_a_cubic_is_exact_to_the_ends() -> None:
    x = (WAVENUMBERS - 1350) / 100
    coefficients = [1.0, 0.3, -0.2, 0.05]
    wanted = -polynomial.polyval(x, polynomial.polyder(coefficients, 2)) / 100  # per (10 cm⁻¹)² instead of per 100²
    pixels = polynomial.polyval(x, coefficients)[None].astype(np.float32)
    np.testing.assert_allclose(process(pixels, settings_of(derivative="second"))[0], wanted[KEPT], atol=2e-5)


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Andrew's monotone chain (1979), in plain Python."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (x[b] - x[a]) * (y[i] - y[a]) - (y[b] - y[a]) * (x[i] - x[a]) > 0:
                break
            hull.pop()
        hull.append(i)
    return np.interp(x, x[hull], y[hull])


def test_the_rubber_band_is_the_lower_hull_of_each_segment() -> None:
    def own_hull(own: np.ndarray, wavenumbers: np.ndarray) -> np.ndarray:
        return own - np.stack([lower_hull(wavenumbers, spectrum) for spectrum in own])

    def library(own: np.ndarray, wavenumbers: np.ndarray) -> np.ndarray:
        return own - np.stack([Baseline(wavenumbers).rubberband(spectrum)[0] for spectrum in own])

    pixels = random_spectra()
    found = process(pixels, settings_of(baseline="rubberband"))
    np.testing.assert_allclose(found, by_segment(pixels, own_hull), atol=1e-6)
    np.testing.assert_allclose(found, by_segment(pixels, library), atol=1e-6)


def test_a_rubber_band_takes_off_straight_lines_whatever_is_on_them() -> None:
    band = np.exp(-(((WAVENUMBERS - 1100) / 20) ** 2))
    pixels = (band + 0.3 + 0.002 * (WAVENUMBERS - 900))[None].astype(np.float32)
    found = process(pixels, settings_of(baseline="rubberband"))
    wanted = np.where(plan(WAVENUMBERS, settings_of(), "core").wavenumbers < 1350, 1, 0)
    assert found[0, : wanted.sum()].max() == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(found[0, wanted == 0], 0, atol=1e-6)


@pytest.mark.parametrize("points", [1, 2, 3, 50])
def test_flat_and_short_stretches_are_their_own_hull(points: int) -> None:
    for slope in (0.0, 1.0):
        line = (3 + slope * np.arange(points))[None].astype(np.float32)
        np.testing.assert_allclose(rubberband(line, 1000 + 4.0 * np.arange(points)), line)


def test_vector_normalisation_gives_the_root_of_the_length() -> None:
    pixels = random_spectra().astype(np.float64)
    kept = pixels[:, KEPT]
    wanted = kept / np.sqrt((kept**2).sum(1, keepdims=True)) * np.sqrt(kept.shape[1])
    np.testing.assert_allclose(process(random_spectra(), settings_of(normalise="vector")), wanted, rtol=1e-5)


def test_an_empty_spectrum_stays_empty() -> None:
    for normalise in ("vector", "amide1"):
        assert not process(np.zeros((2, 226), np.float32), settings_of(normalise=normalise)).any()


@pytest.mark.parametrize("derivative", ["none", "second"])
def test_amide_one_normalisation_takes_the_area_above_the_chord(derivative: str) -> None:
    band = (WAVENUMBERS >= 1600) & (WAVENUMBERS <= 1700)
    x = WAVENUMBERS[band]
    pixels = (np.exp(-(((WAVENUMBERS - 1650) / 25) ** 2)) * np.array([[0.2], [0.7]]) + 0.4).astype(np.float32)
    y = pixels[:, band].astype(np.float64)
    area = np.trapezoid(y, x, axis=1) - (y[:, 0] + y[:, -1]) / 2 * (x[-1] - x[0])
    found = process(pixels, settings_of(normalise="amide1", derivative=derivative))
    plain = process(pixels, settings_of(derivative=derivative))
    np.testing.assert_allclose(found, plain / (area / 100)[:, None], rtol=1e-4, atol=1e-5)


def test_noise_without_protein_is_not_blown_up() -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, (50, 226)).astype(np.float32)
    assert np.abs(process(noise, settings_of(normalise="amide1"))).max() < 1


def test_no_amide_one_to_normalise_by() -> None:
    data = settings_of(normalise="amide1", high=1500.0)
    axis = plan(WAVENUMBERS, data, "core_3")
    with pytest.raises(BadInput, match=r"core_3: data.normalise amide1 needs three points"):
        processed(random_spectra(), axis, data, "core_3")


# ---------------------------------------------------------------- resampling


def test_resampling_onto_a_finer_axis_interpolates() -> None:
    data = settings_of(step=2.0)
    points = plan(WAVENUMBERS, data, "core").wavenumbers
    np.testing.assert_array_equal(points, [*range(900, 1350, 2), *range(1492, 1802, 2)])
    pixels = random_spectra()
    halves = [
        np.stack([np.interp(own, WAVENUMBERS[side], row[side]) for row in pixels.astype(np.float64)])
        for side, own in zip(SIDES, (points[points < 1400], points[points > 1400]), strict=True)
    ]
    np.testing.assert_allclose(process(pixels, data), np.concatenate(halves, axis=1), rtol=1e-5)


@pytest.mark.parametrize("step", [10.0, 12.5, 40.0])
def test_resampling_onto_a_coarser_axis_averages(step: float) -> None:
    """Against the mean of the straight lines between the measured points, by a sum over a thousand places."""
    data = settings_of(step=step)
    wide = np.arange(820.0, 1884.0, 4.0)
    pixels = np.random.default_rng(0).random((4, len(wide))).astype(np.float32)
    points = plan(wide, data, "core").wavenumbers
    found = process(pixels, data, wide)
    kept = (wide < 1350 + 0.01, wide > 1490 - 0.01)
    for k, point in enumerate(points):
        side = kept[0] if point < 1400 else kept[1]
        own = wide[side]
        half = min(step / 2, point - own[0], own[-1] - point)  # beside the gap it shrinks, to stay centred
        at = point + half * (2 * (np.arange(1000) + 0.5) / 1000 - 1)
        expected = [np.interp(at, own, row[side].astype(np.float64)).mean() for row in pixels]
        np.testing.assert_allclose(found[:, k], expected, atol=2e-4)
    noise = process(np.random.default_rng(1).normal(0, 1, (400, len(wide))).astype(np.float32), data, wide)
    assert noise[:, len(points) // 4].std() < 1.1 * np.sqrt(4 / step)  # as the mean of independent channels has


@settings(max_examples=50, deadline=None)
@given(
    offset=st.floats(-1.4, 1.4), spacing=st.floats(1.5, 5.0), step=st.sampled_from([2.0, 4.0, 7.5]),
    size=st.integers(1, 3),
)  # fmt: skip
def test_any_instrument_gets_the_same_points(offset: float, spacing: float, step: float, size: int) -> None:
    """The axis depends on the settings alone, and a straight line stays one."""
    data = settings_of(step=step, bin=size, low=950.0, high=1750.0)
    own = np.arange(930 + offset, 1771, spacing)
    points = plan(own, data, "core").wavenumbers
    np.testing.assert_array_equal(points, plan(WAVENUMBERS, replace(data, bin=1), "core").wavenumbers)
    line = ((own - 900) / 100)[None].astype(np.float32)
    inside = np.abs(points - 1420) > 70 + 3 * spacing * size  # beside the gap the last value is held
    np.testing.assert_allclose(process(line, data, own)[0][inside], ((points - 900) / 100)[inside], atol=1e-4)


def test_resampled_axes_are_even_enough_for_the_derivative() -> None:
    own = WAVENUMBERS + np.tile([0.0, 0.9], 113)
    with pytest.raises(BadInput, match=r"core: from 900 to 1348 cm⁻¹ the spacing varies .* set data.step"):
        plan(own, settings_of(derivative="second"), "core")
    plan(own, settings_of(derivative="second", step=4.0), "core")


def test_a_core_that_does_not_reach_the_points_is_named() -> None:
    short = WAVENUMBERS[WAVENUMBERS > 940]
    with pytest.raises(BadInput, match=r"core_2: data.step 5 wants a point at 900 cm⁻¹, but .* from 944 to 1348"):
        plan(short, settings_of(step=5.0), "core_2")
    plan(short, settings_of(step=5.0, low=940.0), "core_2")


def test_a_segment_too_short_for_the_window() -> None:
    with pytest.raises(BadInput, match=r"core: from 900 to 928 cm⁻¹ it has 8 points only; data.window is 9"):
        plan(WAVENUMBERS, settings_of(derivative="second", gap=(930.0, 940.0)), "core")


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"low": 1800.0, "high": 900.0}, "data.low 1800 and data.high 900"),
        ({"gap": (1490.0, 1350.0)}, "the lower wavenumber comes first"),
        ({"derivative": "second", "window": 8}, "data.window is 8"),
        ({"derivative": "second", "window": 3}, "data.window is 3"),
    ],
)
def test_settings_that_make_no_sense(changed: dict[str, Any], said: str) -> None:
    assert said in (wrong_axis(settings_of(**changed)) or "")


def test_settings_that_do() -> None:
    for changed in ({}, {"gap": None}, {"step": 4.0, "derivative": "second", "window": 5}):
        assert wrong_axis(settings_of(**changed)) is None


# ---------------------------------------------------------------- whole cores


@pytest.mark.parametrize("normalise", ["vector", "amide1", "none"])
@pytest.mark.parametrize("derivative", ["none", "second"])
def test_storing_loses_no_more_than_float16_must(make_core, normalise: str, derivative: str) -> None:
    core = make_core(wavenumbers=WAVENUMBERS)
    data = settings_of(normalise=normalise, derivative=derivative)
    stored, axis = prepare(core["X"], core["wn"], core["tissue_mask"], data, "core")
    assert (stored.dtype, stored.shape) == (np.float16, (12, 14, len(axis)))
    assert not stored[~core["tissue_mask"]].any()
    exact = process(core["X"][core["tissue_mask"]], data)
    scale = np.sqrt((exact**2).mean())
    assert np.sqrt(((stored[core["tissue_mask"]] - exact) ** 2).mean()) < 2**-10 * scale
    assert 0.005 < scale < 20


def test_pixels_are_prepared_the_same_in_any_company(make_core) -> None:
    core = make_core(wavenumbers=WAVENUMBERS)
    whole, _ = prepare(core["X"], core["wn"], core["tissue_mask"], settings_of(), "core")
    part = (slice(2, 9), slice(3, 11))
    cut, _ = prepare(core["X"][part], core["wn"], core["tissue_mask"][part], settings_of(), "core")
    np.testing.assert_array_equal(cut, whole[part])


def test_more_pixels_than_are_worked_on_at_once(monkeypatch, make_core) -> None:
    core = make_core(wavenumbers=WAVENUMBERS)
    arguments = (core["X"], core["wn"], core["tissue_mask"], settings_of(normalise="vector"), "core")
    whole, _ = prepare(*arguments)
    monkeypatch.setattr("runner_ssmunet.preprocess._PIXELS", 5)
    np.testing.assert_array_equal(prepare(*arguments)[0], whole)


# ---------------------------------------------------------------- tissue


def core_of(arrays: dict[str, np.ndarray], mask: bool = True) -> base.Core:
    tissue = arrays["tissue_mask"] if mask else None
    return base.core(base.Raw(wavenumbers=arrays["wn"], spectra=arrays["X"], tissue=tissue), Path("core"))


def test_the_weights_are_the_trapezoid_rule_above_the_chord() -> None:
    pixels = random_spectra().astype(np.float64)
    band = (WAVENUMBERS >= 1600) & (WAVENUMBERS <= 1700)
    x, y = WAVENUMBERS[band], pixels[:, band]
    chord = y[:, :1] + (y[:, -1:] - y[:, :1]) * (x - x[0]) / (x[-1] - x[0])
    weights = amide1_weights(WAVENUMBERS)
    assert weights is not None
    np.testing.assert_allclose(pixels @ weights, np.trapezoid(y - chord, x, axis=1))
    assert amide1_weights(WAVENUMBERS[WAVENUMBERS < 1605]) is None


def test_tissue_is_found_by_its_amide_one(make_core) -> None:
    arrays = make_core(60, 60)
    arrays["X"] += np.linspace(0, 0.5, 101, dtype=np.float32)  # a sloping baseline has no area above its own chord
    arrays["X"][0, 0] = 1000 * arrays["X"][30, 30]  # a hot pixel
    arrays["X"][5, 5] = np.nan
    found = tissue_mask(core_of(arrays, mask=False), "auto", "core")
    wrong = found != arrays["tissue_mask"]
    wrong[0, 0] = False
    assert not wrong.any()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.8])
@pytest.mark.parametrize("spread", [0.1, 0.5])
@pytest.mark.parametrize("noise", [0.001, 0.02])
def test_tissue_of_any_amount_and_thickness_is_found(make_core, share: float, spread: float, noise: float) -> None:
    rng = np.random.default_rng(0)
    wanted = rng.random((80, 80)) < share
    band = np.exp(-(((WAVENUMBERS - 1655) / 22) ** 2))
    spectra = (wanted * rng.lognormal(-0.5, spread, wanted.shape))[..., None] * band
    spectra += rng.normal(0, noise, spectra.shape)
    core = core_of({"X": spectra.astype(np.float32), "wn": WAVENUMBERS}, mask=False)
    found = tissue_mask(core, "auto", "core")
    assert (found & wanted).sum() > 0.95 * (found | wanted).sum()


def test_the_files_mask_is_taken_unless_another_is_asked_for(make_core) -> None:
    arrays = make_core(60, 60)
    found = arrays["tissue_mask"].copy()
    arrays["tissue_mask"] = np.roll(found, 3, axis=0)
    for mode, wanted in (("auto", arrays["tissue_mask"]), ("file", arrays["tissue_mask"]), ("amide1", found)):
        np.testing.assert_array_equal(tissue_mask(core_of(arrays), mode, "core"), wanted)


def test_no_way_to_find_the_tissue(make_core) -> None:
    arrays = make_core()
    with pytest.raises(BadInput, match="core_4: no tissue mask in it"):
        tissue_mask(core_of(arrays, mask=False), "file", "core_4")
    with pytest.raises(BadInput, match="core_4: no amide-I area stands out from the rest"):
        tissue_mask(core_of(arrays | {"X": np.ones_like(arrays["X"])}, mask=False), "auto", "core_4")
    kept = arrays["wn"] < 1500
    with pytest.raises(BadInput, match="core_4: its axis, 900 to 1494 cm⁻¹, has no amide-I band"):
        tissue_mask(core_of(arrays | {"X": arrays["X"][..., kept], "wn": arrays["wn"][kept]}, False), "auto", "core_4")


@pytest.mark.parametrize(
    "changed, said",
    [({"bin": 0}, "data.bin must be at least 1, not 0"), ({"step": 0.0}, "data.step must be more than 0, not 0.0")],
)
def test_numbers_out_of_bounds(changed: dict[str, Any], said: str) -> None:
    config = demo()
    config.data = replace(config.data, **changed)
    assert refusal(SSMUNet, config) == f"setting {said}"
