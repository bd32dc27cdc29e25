"""Spectral filters: where they look, what they compute, and that their edges stay in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runner_ssmunet.axis import gaps
from runner_ssmunet.filters import (
    MIN_WIDTH,
    NAMED_BANDS,
    SOFTNESS,
    TAPS,
    BandEdges,
    BandFilters,
    SincFilters,
    default_centres,
)

FULL = np.linspace(900, 1800, 425)
WITHOUT_WAX = FULL[(FULL < 1350) | (FULL > 1490)]


def band_at(wavenumbers: np.ndarray, places: np.ndarray, width: float = 6.0) -> torch.Tensor:
    """A spectrum for each place (cm⁻¹), with one Gaussian band there: (places, L)."""
    return torch.from_numpy(np.exp(-0.5 * ((wavenumbers - places[:, None]) / width) ** 2)).float()


def answers(filters: BandFilters | SincFilters, spectra: torch.Tensor) -> np.ndarray:
    """Energy of each filter's output, relative to the spectrum's: (P, F)."""
    with torch.no_grad():
        energy = filters(spectra).square().sum(1) / spectra.square().sum(1, keepdim=True)
    return energy.numpy()


@pytest.mark.parametrize("axis", [FULL, WITHOUT_WAX], ids=["whole axis", "without wax"])
def test_a_filter_named_1655_answers_to_a_band_at_1655_and_nowhere_else(axis: np.ndarray) -> None:
    filters = BandFilters(axis.tolist(), [1655.0])
    places = axis[::3]
    found = answers(filters, band_at(axis, places))[:, 0]
    distance = np.abs(places - 1655)
    assert found[distance < 20].min() > 0.9
    assert found[distance > 80].max() < 1e-4


def test_no_filter_reaches_across_a_gap() -> None:
    """1340 and 1500 cm⁻¹ are ten channels apart where the wax is left out; for the filters they are 160 cm⁻¹ apart."""
    filters = BandFilters(WITHOUT_WAX.tolist(), [1340.0, 1500.0], width=40.0)
    found = answers(filters, band_at(WITHOUT_WAX, np.array([1340.0, 1500.0])))
    assert found[[0, 1], [0, 1]].min() > 0.8
    assert found[[0, 1], [1, 0]].max() < 1e-6


def test_every_named_filter_prefers_its_own_band() -> None:
    filters = BandFilters(FULL.tolist(), list(NAMED_BANDS.values()), width=50.0)
    found = answers(filters, band_at(FULL, np.array(list(NAMED_BANDS.values()))))
    assert (found.argmax(1) == np.arange(len(NAMED_BANDS))).all()


def test_windows_are_the_products_of_sigmoids_of_the_definition() -> None:
    filters = BandFilters(FULL.tolist(), [1655.0, 1080.0], width=70.0).double()
    with torch.no_grad():
        filters.edges.shift += torch.tensor([0.3, -0.2])
        filters.edges.stretch += torch.tensor([-0.5, 0.4])
        (low, high), windows = filters.bands().numpy().T, filters.windows().numpy()
        x = torch.randn(3, 425, dtype=torch.float64)
        y = filters(x).numpy()
    expected = 1 / (1 + np.exp(-(FULL[:, None] - low) / SOFTNESS)) / (1 + np.exp(-(high - FULL[:, None]) / SOFTNESS))
    np.testing.assert_allclose(windows, expected, atol=1e-5)  # the axis was kept in float32
    np.testing.assert_allclose(y, x.numpy()[:, :, None] * windows, rtol=1e-12)


def test_filters_begin_where_they_are_named() -> None:
    centres = default_centres(24, 900, 1800)
    bands = BandFilters(FULL.tolist(), centres, width=80.0).bands().detach().numpy()
    np.testing.assert_allclose(bands.mean(1), centres, atol=0.05)
    np.testing.assert_allclose(bands[:, 1] - bands[:, 0], 80, atol=0.05)


@given(st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=2, max_size=2))
def test_edges_stay_in_order_whatever_the_parameters_become(values: list[float]) -> None:
    edges = BandEdges(WITHOUT_WAX.tolist(), [1655.0], 80.0)
    with torch.no_grad():
        edges.shift.fill_(values[0])
        edges.stretch.fill_(values[1])
        ((lower, upper),) = edges().tolist()
    assert upper - lower >= MIN_WIDTH - 1e-3
    assert upper - lower <= 900 + 1e-3
    assert 900 - 1e-3 <= (lower + upper) / 2 <= 1800 + 1e-3


@pytest.mark.parametrize("kind", [BandFilters, SincFilters])
def test_absurd_gradients_break_nothing(kind: type[BandFilters] | type[SincFilters]) -> None:
    filters = kind(FULL.tolist(), default_centres(8, 900, 1800))
    optimizer = torch.optim.SGD(filters.parameters(), lr=1e6)
    for seed in range(4):
        x = torch.randn(2, 425, generator=torch.Generator().manual_seed(seed))
        (filters(x) * torch.randn(2, 425, 8)).sum().mul(1e6).backward()
        optimizer.step()
        lower, upper = filters.bands().detach().unbind(-1)
        assert (upper - lower >= MIN_WIDTH - 1e-3).all()
        assert filters(x).isfinite().all()


def test_a_filter_learns_where_the_band_is() -> None:
    """If a band at 1690 means something and one at 1600 does not, the filter in between keeps the first."""
    filters = BandFilters(FULL.tolist(), [1645.0])
    useful, useless = band_at(FULL, np.array([1690.0, 1600.0]))
    optimizer = torch.optim.Adam(filters.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        kept, let_in = (filters(x[None]).square().sum() for x in (useful, useless))
        (let_in - kept).backward()
        optimizer.step()
    lower, upper = filters.bands()[0].tolist()
    assert lower > 1600
    assert upper > 1690


def test_weight_decay_pulls_a_filter_back_to_where_it_began() -> None:
    edges = BandEdges(FULL.tolist(), [1655.0], 80.0)
    with torch.no_grad():
        edges.shift += 1.0
        edges.stretch += 1.0
        (far,) = edges().mean(1).tolist()
        edges.shift *= 0.1
        edges.stretch *= 0.1
        (near,) = edges().mean(1).tolist()
    assert abs(near - 1655) < 0.2 * abs(far - 1655)


def test_gaps_of_an_axis() -> None:
    assert gaps(FULL.tolist()) == []
    ((last, first),) = gaps(WITHOUT_WAX.tolist())
    assert last < 1350
    assert first > 1490
    assert first - last == pytest.approx(WITHOUT_WAX[WITHOUT_WAX > 1490][0] - WITHOUT_WAX[WITHOUT_WAX < 1350][-1])
    assert gaps([1000.0]) == []
    assert gaps([1000.0, 1002.0]) == []


def test_centres_are_the_named_bands_and_then_evenly_spaced() -> None:
    named = [1655, 1545, 1740, 1240, 1080, 1450, 1395, 1160]
    assert default_centres(3, 900, 1800) == named[:3]
    assert default_centres(8, 900, 1800) == named
    centres = default_centres(24, 900, 1800)
    assert centres[:8] == named
    np.testing.assert_allclose(np.diff(centres[8:]), 900 / 16)
    assert centres[8] == pytest.approx(900 + 900 / 32)


@pytest.mark.parametrize("count", [1, 3, 8, 24, 40])
@pytest.mark.parametrize("axis", [FULL, WITHOUT_WAX, WITHOUT_WAX[::4], FULL[FULL > 1500], FULL[FULL < 1000]], ids=len)
def test_no_filter_begins_where_the_axis_has_nothing(axis: np.ndarray, count: int) -> None:
    """In the wax gap, that is: filters at 1450 and 1395 would see nothing and learn nothing."""
    centres = default_centres(count, axis[0], axis[-1], gaps(axis.tolist()))
    assert len(centres) == count
    assert max(np.abs(axis - centre).min() for centre in centres) <= np.median(np.diff(axis))
    windows = BandFilters(axis.tolist(), centres).windows()
    assert (windows.amax(0) > 0.9).all()
    if len(axis) < 425:
        assert not {1450.0, 1395.0} & set(centres) or axis[0] > 1490


def plain_kernel(low: float, high: float, axis: np.ndarray) -> np.ndarray:
    """The legacy kernel, written out in float64."""
    length = len(axis)
    delta = (axis[-1] - axis[0]) / (length - 1)
    w_low, w_high = (2 * np.pi * ((edge - axis[0]) / delta) / length for edge in (low, high))
    n = np.arange(TAPS) - TAPS // 2
    n_safe = np.where(n == 0, 1, n)
    h = np.where(n == 0, (w_high - w_low) / np.pi, (np.sin(w_high * n) - np.sin(w_low * n)) / (np.pi * n_safe))
    h *= 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(TAPS) / (TAPS - 1))
    return h / np.linalg.norm(h)


def test_legacy_is_the_published_convolution() -> None:
    filters = SincFilters(FULL.tolist(), [1655.0, 1080.0, 930.0])
    x = torch.randn(4, 425, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y, kernels = filters(x).numpy(), filters.kernels().numpy()
    for k, (low, high) in enumerate(filters.bands().tolist()):
        expected = plain_kernel(low, high, FULL)
        np.testing.assert_allclose(kernels[k], expected, atol=2e-4)  # sines of up to 400 in float32
        for pixel in range(4):
            np.testing.assert_allclose(y[pixel, :, k], np.convolve(x[pixel], kernels[k], "same"), atol=1e-5)


def test_legacy_is_shift_invariant() -> None:
    """Its "1655" answers alike to bands anywhere, moved as they are: it does not know where it looks."""
    filters = SincFilters(FULL.tolist(), [1655.0])
    spectra = torch.zeros(2, 425)
    spectra[0, 150:171] = spectra[1, 250:271] = torch.hann_window(21)
    with torch.no_grad():
        here, there = filters(spectra)
    torch.testing.assert_close(here[80:240], there[180:340])
    assert np.ptp(answers(filters, spectra)) < 1e-6
    placed = answers(BandFilters(FULL.tolist(), [float(FULL[160])]), spectra)[:, 0]
    assert placed[0] > 0.9
    assert placed[1] < 1e-6


def test_legacy_cannot_tell_mirrored_bands_apart() -> None:
    """Above the middle of the axis its frequencies exceed what samples can tell."""
    step = FULL[1] - FULL[0]
    mirrored = 2 * FULL[0] + step * len(FULL) - 1655.0
    kernels = SincFilters(FULL.tolist(), [1655.0, mirrored]).kernels().detach()
    assert torch.dot(kernels[0], kernels[1]) > 0.999


@pytest.mark.parametrize("kind", [BandFilters, SincFilters])
@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_short_axes_and_no_pixels(kind: type[BandFilters] | type[SincFilters], length: int) -> None:
    axis = [1600.0 + 4 * i for i in range(length)]
    filters = kind(axis, default_centres(2, axis[0], axis[-1]))
    assert filters(torch.ones(3, length)).isfinite().all()
    assert filters(torch.ones(0, length)).shape == (0, length, 2)
