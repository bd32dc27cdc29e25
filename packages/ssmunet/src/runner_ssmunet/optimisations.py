"""The optimisations of ssmunet, each with the settings that switch it off."""

from __future__ import annotations

from runner_core import Optimisation

OPTIMISATIONS = (
    Optimisation(
        "scan",
        {"model.scan": "reference"},
        "network",
        "The Mamba layers by kernels that keep no states; without, the textbook's loop over the wavenumbers.",
    ),
    Optimisation(
        "chunks",
        {"model.chunk": 0},
        "network",
        "The spectral layers go over chunks of pixels and are computed again for the gradient; without, everything "
        "between spectra and features is kept.",
    ),
    Optimisation(
        "tissue",
        {"model.tissue_only": False},
        "network",
        "Only tissue passes the spectral layers, the rest is one spectrum; without, every pixel does.",
    ),
    Optimisation(
        "annotated",
        {"data.unlabelled": True},
        "data",
        "Patches without an annotated pixel are left out; without, they are trained on and teach nothing.",
        same=False,
    ),
    Optimisation(
        "side-by-side",
        {"data.overlap": 0.5},
        "data",
        "Training patches lie side by side; without, each overlaps the next by half: four times as many.",
        same=False,
    ),
)
