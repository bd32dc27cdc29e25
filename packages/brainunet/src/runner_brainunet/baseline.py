"""The trivial method to compare with: a threshold."""

from __future__ import annotations

from runner_core import Array

from runner_brainunet.slices import otsu
from runner_brainunet.whole import one_brain


def baseline(scan: Array) -> Array:
    """Return the largest object above Otsu's threshold, with its holes filled."""
    return one_brain(scan > otsu(scan))
