"""Optimisations of dinocell beyond the core's for streamed data, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Optimisation

OPTIMISATIONS = (
    Optimisation(
        "windows",
        {"data.windows": 1},
        "data",
        "A fetched field serves for several samples; without, it is fetched for each.",
        same=False,
    ),
)
