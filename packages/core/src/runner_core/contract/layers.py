"""Objects for viewers: the labels that a prediction holds, and a record as layers that lie upon each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner_core.contract.values import Array


@dataclass(frozen=True)
class Label:
    """A value that predictions and annotations hold, with its name and its colour: `Pictures.labels`."""

    value: int
    """Above 0; 0 is the background."""
    name: str
    colour: tuple[int, int, int]
    """Red, green and blue, 0 to 255."""


@dataclass(frozen=True)
class Layer:
    """An image or labels of one record, for a viewer: `Pictures.layers`.

    All layers of a record show the same place: axes, shape and `spacing` are equal. The last two axes are rows
    (downwards) and columns (to the right) of what the screen shows.
    """

    name: str
    values: Array
    """(H, W) or (D, H, W): numbers of an image, or integers of labels (`Label.value`)."""
    spacing: tuple[float, ...]
    """Size of a voxel along each axis, in `unit`."""
    unit: Literal["mm", "µm", "pixel"] = "mm"
    labels: tuple[Label, ...] = ()
    """What the values mean; an image has none."""
    colours: str = "gray"
    """Of an image: a colour map of matplotlib and napari, such as magma."""
    limits: tuple[float, float] | None = None
    """Of an image: the values at the ends of its colours. Without them the viewer chooses."""
    visible: bool = True
    """Whether it is shown at first."""
