"""Optimisations of vesuvius, and the settings that switch them off."""

from __future__ import annotations

from runner_core import Remedy

OPTIMISATIONS = (
    Remedy(
        "targets",
        off={"loss.targets": "step"},
        part="loss",
        why="Medial surface, tube and distances are prepared of whole volumes; without, of each patch in every step. "
        "Near a patch's border they differ.",
        same=False,
    ),
    Remedy(
        "skeleton-recall",
        off={"loss.skeleton_recall.weight": 0.0, "loss.cldice.weight": 1.0, "loss.cldice_skeleton": "pools"},
        part="loss",
        why="Skeleton recall looks after thin parts; without, clDice does, as its paper's code computes it.",
        same=False,
    ),
    Remedy(
        "checkpointing",
        off={"model.checkpointing": False},
        part="network",
        why="Levels of the network are computed again for the gradient; without, all of them are kept: faster, in more "
        "memory.",
    ),
)
