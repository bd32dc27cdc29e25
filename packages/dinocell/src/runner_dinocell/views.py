"""Outputs of student and teacher for the crops of a batch: the interface between the network and its losses.

B images with two global and L local crops each, T tokens a global crop, K prototypes, D numbers in an embedding. Crops
lie crop by crop: first crop 0 of all images, then crop 1 of all images, and so on.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class StudentOutputs(NamedTuple):
    global_logits: Tensor
    """(2B, K): CLS tokens of the global crops, with their masks."""
    local_logits: Tensor
    """(L·B, K): CLS tokens of the local crops."""
    masked_logits: Tensor
    """(M, K): masked patches, in the order of `masked_index`."""
    masked_index: Tensor
    """(M,) int64: positions of the masked patches in (2B · T), rising."""
    features: Tensor
    """(2B, D): CLS tokens of the global crops before the head."""
    patches: Tensor
    """(2B, T, D): patch tokens of the global crops."""


class TeacherOutputs(NamedTuple):
    """Outputs without gradients, for crops without masks."""

    global_logits: Tensor
    """(2B, K)."""
    masked_logits: Tensor
    """(M, K): the patches that the student had masked."""
    features: Tensor
    """(2B, D)."""
