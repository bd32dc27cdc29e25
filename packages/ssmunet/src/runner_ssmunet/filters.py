"""The first layer: learnable spectral filters, in one of two modes.

`BandFilters` are windows on the true wavenumber axis: a filter responds to the place of its band. `SincFilters` (mode
legacy) are convolutions along the channels, as in SincNet (Ravanelli & Bengio 2018), kept for parity: their output at
one channel depends on the shape of the spectrum around it, wherever on the axis it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_WIDTH = 10.0
"""Narrowest width of a filter (cm⁻¹)."""
SOFTNESS = 5.0
"""Scale τ (cm⁻¹) of the sigmoids at a window's edges."""
TAPS = 129
"""Length of the kernels in mode legacy (channels)."""

NAMED_BANDS = {
    "amide I": 1655.0,
    "amide II": 1545.0,
    "lipid ester": 1740.0,
    "amide III": 1240.0,
    "phosphate": 1080.0,
    "CH₂ bending": 1450.0,
    "COO⁻ stretching": 1395.0,
    "C–O stretching": 1160.0,
}
"""Centres (cm⁻¹) in the order in which they get a filter."""


def default_centres(count: int, low: float, high: float, missing: Sequence[tuple[float, float]] = ()) -> list[float]:
    """Return the centres of `count` filters (cm⁻¹): the named bands in order, then evenly spaced ones.

    A named band gets no filter if it lies outside the axis from `low` to `high`, or in one of its `missing` parts (see
    `axis.gaps`; without the wax range: 1450 and 1395). Such a filter would see nothing and learn nothing. The even
    spacing covers the parts that the axis has.
    """

    def seen(centre: float) -> bool:
        return low <= centre <= high and not any(a < centre < b for a, b in missing)

    named = [centre for centre in NAMED_BANDS.values() if seen(centre)][:count]
    rest = count - len(named)
    held = (high - low) - sum(b - a for a, b in missing)
    return named + [_on_axis(low + (i + 0.5) / rest * held, missing) for i in range(rest)]


def _on_axis(place: float, missing: Sequence[tuple[float, float]]) -> float:
    """Map a wavenumber on the axis without its missing parts to the axis with them."""
    for a, b in sorted(missing):
        if place > a:
            place += b - a
    return place


def seeing(centres: Sequence[float], wavenumbers: Sequence[float], width: float) -> list[float]:
    """Return the centres (cm⁻¹), each moved whose window of `width` holds none of the axis' wavenumbers.

    It moves to the nearest wavenumber without a filter, or to the nearest of all. Only axes of few, scattered
    wavenumbers have such windows.
    """
    axis, kept = torch.tensor(wavenumbers, dtype=torch.float64), list[float]()
    for centre in centres:
        distance = (axis - centre).abs()
        if distance.min() > width / 2:
            free = torch.tensor([point not in kept for point in wavenumbers])
            distance = torch.where(free, distance, torch.inf) if free.any() else distance
            centre = float(axis[distance.argmin()])
        kept.append(centre)
    return kept


class BandEdges(nn.Module):
    """Lower and upper edges of F bands (cm⁻¹), in order for any values of the parameters.

    Each band has two parameters, `shift` of its centre and `stretch` of its width. They are numbers around 1 that start
    at 0. A sigmoid each keeps centres between the first and the last wavenumber, and widths between `MIN_WIDTH` and the
    length of the axis. Weight decay pulls a band back to its start. A unit of either parameter moves an edge by about
    100 cm⁻¹ at most.
    """

    start: Tensor
    limits: Tensor

    def __init__(self, wavenumbers: Sequence[float], centres: Sequence[float], width: float) -> None:
        super().__init__()
        first, last = float(wavenumbers[0]), float(wavenumbers[-1])
        span = max(last - first, 4 * MIN_WIDTH)
        share = torch.stack(
            (
                (torch.tensor(centres, dtype=torch.float64) - first) / span,
                torch.full((len(centres),), (width - MIN_WIDTH) / (span - MIN_WIDTH), dtype=torch.float64),
            )
        )
        self.register_buffer("start", torch.logit(share, eps=1e-3).float(), persistent=False)
        self.register_buffer("limits", torch.tensor([first, span], dtype=torch.float32), persistent=False)
        self.shift = nn.Parameter(torch.zeros(len(centres)))
        self.stretch = nn.Parameter(torch.zeros(len(centres)))

    def forward(self) -> Tensor:
        """Return the edges (F, 2)."""
        first, span = self.limits
        centre = first + span * torch.sigmoid(self.start[0] + self.shift)
        half = (MIN_WIDTH + (span - MIN_WIDTH) * torch.sigmoid(self.start[1] + self.stretch)) / 2
        return torch.stack((centre - half, centre + half), -1)


class BandFilters(nn.Module):
    """(P, L) spectra → (P, L, F): y_k(ν) = w_k(ν) x(ν), w_k(ν) = σ((ν − lower_k) / τ) σ((upper_k − ν) / τ).

    `wavenumbers` (L,) are in cm⁻¹ and ascend, with any gaps. `centres` and `width` (cm⁻¹) are the bands at the start.
    """

    wavenumbers: Tensor

    def __init__(self, wavenumbers: Sequence[float], centres: Sequence[float], width: float = 80.0) -> None:
        super().__init__()
        self.count = len(centres)
        self.edges = BandEdges(wavenumbers, centres, width)
        axis = torch.tensor(wavenumbers, dtype=torch.float64).float()
        self.register_buffer("wavenumbers", axis, persistent=False)

    def bands(self) -> Tensor:
        """Return the lower and upper edge of each band (F, 2), cm⁻¹."""
        return self.edges()

    def windows(self) -> Tensor:
        """Return the windows w (L, F), float32 also under autocast."""
        lower, upper = self.edges().unbind(-1)
        axis = self.wavenumbers[:, None]
        return torch.sigmoid((axis - lower) / SOFTNESS) * torch.sigmoid((upper - axis) / SOFTNESS)

    def forward(self, x: Tensor) -> Tensor:
        return x[..., None] * self.windows()


class SincFilters(nn.Module):
    """(P, L) spectra → (P, L, F): convolution along the channels with band-pass kernels. Mode legacy.

    With Δ = (ν_last − ν_first) / (L − 1), a wavenumber ν stands for the angular frequency ω(ν) = 2π((ν − ν_first) / Δ)
    / L. A band stands for the kernel h[n] = (sin ω_upper n − sin ω_lower n) / (πn), under a Hamming window, of length 1
    (L2). No filter knows the place of a channel on the axis: the filters are shift-invariant and run across gaps, and a
    band's name is that of a frequency, not of a place. Beyond the middle of the axis ω exceeds π, the highest frequency
    that samples can show: a band there has the kernel of its mirror image below the middle.
    """

    distance: Tensor
    taper: Tensor

    def __init__(self, wavenumbers: Sequence[float], centres: Sequence[float], width: float = 80.0) -> None:
        super().__init__()
        self.count = len(centres)
        self.edges = BandEdges(wavenumbers, centres, width)
        length, first, last = len(wavenumbers), float(wavenumbers[0]), float(wavenumbers[-1])
        self._first = first
        self._frequency = 2 * torch.pi / length / ((last - first) / max(1, length - 1) or 1.0)
        self.register_buffer("distance", torch.arange(1, TAPS // 2 + 1, dtype=torch.float32), persistent=False)
        taper = torch.hamming_window(TAPS, periodic=False, dtype=torch.float64).float()
        self.register_buffer("taper", taper, persistent=False)

    def bands(self) -> Tensor:
        """Return the lower and upper edge of each band (F, 2), cm⁻¹."""
        return self.edges()

    def kernels(self) -> Tensor:
        """Return the kernels h (F, K), float32 also under autocast."""
        lower, upper = ((self.edges() - self._first) * self._frequency).unbind(-1)
        n = self.distance
        side = (torch.sin(upper[:, None] * n) - torch.sin(lower[:, None] * n)) / (torch.pi * n)
        middle = (upper - lower)[:, None] / torch.pi
        return functional.normalize(torch.cat((side.flip(-1), middle, side), -1) * self.taper, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        around = functional.pad(x, (TAPS // 2, TAPS // 2)).unfold(-1, TAPS, 1)
        with torch.autocast(x.device.type, enabled=False):
            return around @ self.kernels().T  # channels last at once, and on a CPU faster than conv1d
