"""The optimisations of ssmunet, each with the settings that switch it off."""

from __future__ import annotations

from runner_core import Remedy

OPTIMISATIONS = (
    Remedy(
        "scan",
        off={"model.scan": "reference"},
        plain={"model.scan": "eager"},
        part="network",
        why="The Mamba layers by kernels that keep no states; without, the textbook's loop over the wavenumbers.",
    ),
    Remedy(
        "chunks",
        off={"model.chunk": 0},
        part="network",
        why="The spectral layers go over chunks of pixels and are computed again for the gradient; without, everything "
        "between spectra and features is kept.",
    ),
    Remedy(
        "tissue",
        off={"model.tissue_only": False},
        part="network",
        why="Only tissue passes the spectral layers, the rest is one spectrum; without, every pixel does.",
    ),
    Remedy(
        "annotated",
        off={"data.unlabelled": True},
        part="data",
        why="Patches without an annotated pixel are left out; without, they are trained on and teach nothing.",
        same=False,
    ),
    Remedy(
        "side-by-side",
        off={"data.overlap": 0.5},
        part="data",
        why="Training patches lie side by side; without, each overlaps the next by half: four times as many.",
        same=False,
    ),
)
