"""The trivial method: the mean dose of the training patients."""

from __future__ import annotations

import numpy as np
from runner_openkbp.baseline import baseline
from runner_openkbp.rois import GRID, POSSIBLE, pack_masks


def test_it_is_spread_over_the_grid_inside_the_mask_only() -> None:
    """A ramp comes back as the same ramp (away from its ends), so the grids share their centres."""
    ramp = np.broadcast_to((np.arange(32.0) * 4 + 1.5)[:, None, None], (32, 32, 32))
    inside = np.ones(GRID, bool)
    inside[:, :, 100:] = False
    dose = baseline(ramp, pack_masks({POSSIBLE: inside}))
    assert dose.dtype == np.float32
    assert not dose[:, :, 100:].any()
    assert np.allclose(dose[2:126, 5, 5], np.arange(2, 126), atol=1e-3)
