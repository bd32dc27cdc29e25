"""Settings of what other recipes add to DINOv2: Gram anchoring, metadata, distillation. No framework is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from runner_core import AtLeast, Within


@dataclass
class GramConfig:
    """Gram anchoring (DINOv3): patches keep the similarities that they had for an earlier teacher."""

    weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the mean squared difference between the cosines of patches of a crop, the student's and those of an
    earlier teacher. 0: off."""
    start: Annotated[float, Within(0, 1)] = 0.5
    """Share of the training after which the loss begins, with the teacher of that moment."""
    every: Annotated[float, Within(0, 1)] = 0.0
    """Share of the training after which a newer teacher is taken, again and again; 0: never."""


@dataclass
class MetadataConfig:
    """Settings of what is known of fields besides their pixels: suppressed in embeddings, or learned from."""

    suppress: tuple[Literal["plate", "well"], ...] = ()
    """What embeddings should not tell: plate, or the position of the well. A head learns to tell it, and the network to
    prevent that (gradient reversal; Ganin 2015). Do not suppress the well if each compound has wells of its own."""
    suppress_weight: Annotated[float, AtLeast(0)] = 0.1
    """Weight of these losses; the reversed gradient rises from 0 to its full size in the course of the training."""
    guide: bool = False
    """Let the network also learn to tell the labels of training fields (`data.label`), such as compounds, as weak
    supervision (Caicedo 2018). Scores of these labels then no longer show what was learned without labels."""
    guide_weight: Annotated[float, AtLeast(0)] = 0.1
    """Weight of this loss."""
    hidden: Annotated[int, Within(1, 100000)] = 256
    """Hidden width of the heads."""

    @property
    def told(self) -> tuple[str, ...]:
        """Return what heads tell."""
        return (*self.suppress, *(("label",) if self.guide else ()))


@dataclass
class DistilConfig:
    """Distillation from a larger network of your own."""

    network: str | None = None
    """Folder that `runner dinocell export` wrote for a trained network of any size, with the same patches and channels.
    The student also learns to predict its CLS and patch tokens. Default: none."""
    weight: Annotated[float, AtLeast(0)] = 1.0
    """Weight of this loss: 1 - cosine, for CLS and for patches."""

    def __post_init__(self) -> None:
        if self.network:  # a run may be continued from another folder
            self.network = str(Path(self.network).absolute())


def faults(metadata: MetadataConfig) -> Iterator[str]:
    """Yield what is wrong with these settings."""
    if len(set(metadata.suppress)) < len(metadata.suppress):
        yield f"metadata.suppress {' '.join(metadata.suppress)} names one thing twice"
