"""What makes dinocell fast, besides what the core does of all that is streamed, and the settings that do without it."""

from __future__ import annotations

from runner_core.protocols import Optimisation

OPTIMISATIONS = (
    Optimisation(
        "windows",
        {"data.windows": 1},
        "data",
        "A fetched field serves for several samples; without, it is fetched for each.",
        same=False,
    ),
)
