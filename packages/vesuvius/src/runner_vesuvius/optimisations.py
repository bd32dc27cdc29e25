"""Optimisations of vesuvius, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Optimisation

OPTIMISATIONS = (
    Optimisation(
        "targets",
        {"loss.targets": "step"},
        "loss",
        "Medial surface, tube and distances are prepared of whole volumes; without, of each patch in every step. Near "
        "a patch's border they differ.",
        same=False,
    ),
    Optimisation(
        "skeleton-recall",
        {"loss.skeleton_recall.weight": 0.0, "loss.cldice.weight": 1.0, "loss.cldice_skeleton": "pools"},
        "loss",
        "Skeleton recall looks after thin parts; without, clDice does, as its paper's code computes it.",
        same=False,
    ),
    Optimisation(
        "checkpointing",
        {"model.checkpointing": False},
        "network",
        "Levels of the network are computed again for the gradient; without, all of them are kept: faster, in more "
        "memory.",
    ),
)
