"""Weights that a training starts from (`train --from`), and how they fit its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runner_core.contract.values import Tensors


@dataclass(frozen=True)
class Fit:
    """Names of weights, by whether they were taken over.

    Attributes:
        fitted: Weights of the network that were set.
        kept: Weights of the network that the source does not have; they keep their initial values.
        unused: Weights of the source that the network does not have.
        differ: Weights that both have in different shapes, with both shapes; they keep their initial values.
    """

    fitted: Sequence[str]
    kept: Sequence[str] = ()
    unused: Sequence[str] = ()
    differ: Mapping[str, str] = field(default_factory=dict)


@dataclass
class StartWeights:
    """Weights from another run or from a file; the engine puts them into its new network and sets `fit`.

    Attributes:
        source: Absolute path of the checkpoint or of the file.
        digest: Digest of the weights.
        about: What they are, in words: "averaged weights of step-00000120".
        foreign: True for a file, False for a checkpoint of a run.
        read: Returns the weights by name, in host memory.
        restored: True for a resumed run, whose checkpoint has the weights: nothing is read.
        fit: How they fit the network; None before there is one.
    """

    source: str
    digest: str
    about: str
    foreign: bool
    read: Callable[[], Tensors]
    restored: bool = False
    fit: Fit | None = None
