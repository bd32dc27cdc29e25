"""A measurement of whether brightness tells wells apart, or only plates: `data.scale` keeps it or throws it away.

A field's brightness is the log2 of the distance between its grey values at `data.percentiles`, for each channel: what
becomes 1 with `data.scale field`. Its variance is divided into that of plates, of wells in a plate and of sites in a
well (nested analysis of variance by moments, for unequal numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from runner_core import Array


class Brightness(NamedTuple):
    """Standard deviations (log2) of brightness; NaN for one that the fields cannot show."""

    plate: float
    well: float
    site: float
    p: float
    """Of the F-test of wells against their sites, with the degrees of freedom of one channel; NaN without sites."""
    fields: int

    @property
    def scale(self) -> Literal["field", "set"]:
        """Return the `data.scale` that keeps more of the wells than of the plates: set if wells differ more."""
        plate = 0.0 if math.isnan(self.plate) else self.plate
        return "set" if self.well > plate else "field"

    def __str__(self) -> str:
        parts = {"plates": self.plate, "wells of a plate": self.well, "sites of a well": self.site}
        shown = ", ".join(f"{name} by {2**value:.2f}-fold" for name, value in parts.items() if not math.isnan(value))
        if not shown:
            return "no plate has two wells with two sites each, so it is not known whether brightness tells wells apart"
        chance = f" (wells beyond chance: p = {self.p:.2g})" if not math.isnan(self.p) else ""
        return f"brightness differs, in one standard deviation, between {shown}{chance}, in {self.fields} fields"


def brightness(levels: Array, keys: Sequence[str]) -> Brightness:
    """Return the variance of fields' brightness by its sources, as the mean over channels.

    Args:
        levels: (N, C, 2), grey values at the lower and the upper percentile. Channels that any field lacks, or that are
            constant in any, are left out.
        keys: …/plate/well/site of each field.
    """
    distance = levels[..., 1].astype(np.float64) - levels[..., 0]
    values = np.log2(distance[:, (distance > 0).all(0)])
    plates, wells = (_numbers(key.rsplit("/", cut)[0] for key in keys) for cut in (2, 1))
    nothing = Brightness(math.nan, math.nan, math.nan, math.nan, len(keys))
    if not values.size:
        return nothing
    count, per_plate, per_well = len(values), np.bincount(plates), np.bincount(wells)
    plate_of_well = plates[np.unique(wells, return_index=True)[1]]
    of_well, of_plate = _means(values, wells)[wells], _means(values, plates)[plates]
    free = count - len(per_well), len(per_well) - len(per_plate), len(per_plate) - 1
    squares = (values - of_well), (of_well - of_plate), (of_plate - values.mean(0))
    site, well, plate = (
        float((part**2).sum(0).mean() / degrees) if degrees else math.nan
        for part, degrees in zip(squares, free, strict=True)
    )
    shares = float((per_well**2 / per_plate[plate_of_well]).sum())
    if not free[0] or not free[1]:
        return nothing
    wells_variance = max(0.0, (well - site) / ((count - shares) / free[1]))
    plates_variance = math.nan
    if free[2]:
        wells_share = (shares - float((per_well**2).sum()) / count) / free[2]
        expected = site + wells_share * wells_variance
        plates_variance = max(0.0, (plate - expected) / ((count - float((per_plate**2).sum()) / count) / free[2]))
    return Brightness(
        math.sqrt(plates_variance), math.sqrt(wells_variance), math.sqrt(site), _p(well, site, free), count
    )


def _p(well: float, site: float, free: Sequence[int]) -> float:
    from scipy.stats import f  # slow to import

    return float(f.sf(well / site, free[1], free[0])) if site > 0 else 0.0 if well > 0 else 1.0


def _means(values: Array, groups: Array) -> Array:
    """Return the mean row of each group."""
    sums = np.zeros((groups.max() + 1, values.shape[1]))
    np.add.at(sums, groups, values)
    return np.asarray(sums / np.bincount(groups)[:, None])


def _numbers(names: Iterable[str]) -> Array:
    return np.unique(np.array(list(names)), return_inverse=True)[1]
