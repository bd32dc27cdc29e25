"""Optimisations of dinocell beyond the core's for streamed data, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Remedy

OPTIMISATIONS = (
    Remedy(
        "windows",
        off={"data.windows": 1},
        part="data",
        why="A fetched field serves for several samples; without, it is fetched for each.",
        same=False,
    ),
)
