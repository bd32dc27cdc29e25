"""Views: ways to look at a record, such as mirrored or turned, over which a prediction is averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract.data import Box, Cropped
from runner_core.contract.records import Decoded, Record
from runner_core.contract.values import Array, Arrays, Infer

Axes = Mapping[str, Sequence[int]]
"""Names of arrays, and for each the numbers of the axes that span the grid, in the same order."""
Soft = Callable[[Cropped, Infer], Arrays]


@dataclass(frozen=True)
class View:
    """A way to look at a record, for test-time augmentation: a mirror or a turn, as its two functions."""

    name: str
    """A short name without spaces, which users type: "mirror-x"."""
    apply: Callable[[Cropped], Arrays]
    """`apply(cropped)` returns the record's `prepared` arrays as this view shows them; it changes none in place."""
    undo: Callable[[Arrays], Arrays]
    """`undo(soft)` brings the soft arrays of the view back into the grid of the record itself."""


@dataclass(frozen=True)
class Seen:
    """A cropped record as a view shows it: its prepared arrays are the view's, all else is the record's own."""

    record: Record
    decoded: Decoded
    box: Box
    prepared: Arrays


def averaged(soft: Soft, cropped: Cropped, infer: Infer, views: Sequence[View]) -> Arrays:
    """Return the mean of the soft outputs of a record and of its views; without views, its own.

    One output and the sum are in memory, however many views there are. Raises BadInput if a view's output does not come
    back into the record's grid.
    """
    return mean(_outputs(soft, cropped, infer, views)) if views else soft(cropped, infer)


def _outputs(soft: Soft, cropped: Cropped, infer: Infer, views: Sequence[View]) -> Iterator[Arrays]:
    own = soft(cropped, infer)
    outline = {name: (array.shape, array.dtype) for name, array in own.items()}
    yield own
    del own
    for view in views:
        prepared = {name: np.ascontiguousarray(array) for name, array in view.apply(cropped).items()}
        seen = Seen(cropped.record, cropped.decoded, cropped.box, prepared)
        found = view.undo(soft(seen, infer))
        if {name: (array.shape, array.dtype) for name, array in found.items()} != outline:
            raise BadInput(
                f"{cropped.record.key}: the view {view.name!r} does not lead back to the record's own grid: undo "
                f"returned {', '.join(f'{name} {array.shape}' for name, array in found.items())} in place of "
                f"{', '.join(f'{name} {shape}' for name, (shape, _) in outline.items())}"
            )
        yield found
        del found


def mean(outputs: Iterator[Arrays]) -> Arrays:
    """Return the mean of arrays by name, in their own types; the first output's arrays are overwritten."""
    count, sums = 0, Arrays()
    for output in outputs:
        count += 1
        for name, array in output.items():
            if count == 1:
                sums[name] = array.astype(np.uint16) if array.dtype == np.uint8 else array
            else:
                sums[name] += array
        del output, array  # one output is in memory, never two
    for name, total in sums.items():
        if total.dtype == np.uint16:
            total += np.uint16(count // 2)  # rounds instead of cutting off
            total //= np.uint16(count)
            sums[name] = total.astype(np.uint8)
        else:
            total /= np.float32(count)
    return sums


# ---------------------------------------------------------------- mirrors and turns of a grid


def mirrors(prepared: Axes, soft: Axes, axes: Sequence[str]) -> tuple[View, ...]:
    """Return a view for every way to mirror a grid: along each of its `axes`, and along several at once.

    Args:
        prepared: Prepared arrays that lie in the grid, and their axes; other arrays stay as they are.
        soft: Soft arrays that lie in the grid, and their axes.
        axes: Names of the grid's axes: ("z", "y", "x") gives mirror-z, mirror-y, …, mirror-zyx.
    """
    some = [places for count in range(1, len(axes) + 1) for places in combinations(range(len(axes)), count)]
    turns = {f"mirror-{''.join(axes[n] for n in places)}": partial(_mirrored, places) for places in some}
    return tuple(_view(name, prepared, soft, turn, turn) for name, turn in turns.items())


def mirrors_and_turns(prepared: Axes, soft: Axes) -> tuple[View, ...]:
    """Return the seven mirrors and right-angle turns of a plane whose axes are y and x, in this order.

    The arguments are those of `mirrors`.
    """
    mirrored = mirrors(prepared, soft, "yx")[:2]  # the third is turn-180
    turned = [_view(f"turn-{90 * n}", prepared, soft, partial(_turned, n), partial(_turned, -n)) for n in (1, 2, 3)]
    diagonals = {"transpose": partial(_transposed, 0), "antitranspose": partial(_transposed, 2)}
    return (*mirrored, *turned, *(_view(name, prepared, soft, turn, turn) for name, turn in diagonals.items()))


def quarter_turns(prepared: Axes, soft: Axes) -> tuple[View, ...]:
    """Return those of `mirrors_and_turns` that exchange y and x: turns by 90° and 270°, and both transpositions."""
    exchanging = ("turn-90", "turn-270", "transpose", "antitranspose")
    return tuple(view for view in mirrors_and_turns(prepared, soft) if view.name in exchanging)


_Turn = Callable[[Array, Sequence[int]], Array]


def _view(name: str, prepared: Axes, soft: Axes, turn: _Turn, back: _Turn) -> View:
    return View(name, lambda cropped: _each(turn, cropped.prepared, prepared), lambda found: _each(back, found, soft))


def _each(turn: _Turn, arrays: Arrays, axes: Axes) -> Arrays:
    """Return the arrays, turned where they lie in the grid."""
    return {name: turn(array, axes[name]) if name in axes else array for name, array in arrays.items()}


def _mirrored(places: Sequence[int], array: Array, axes: Sequence[int]) -> Array:
    return np.flip(array, tuple(axes[place] for place in places))


def _turned(quarters: int, array: Array, axes: Sequence[int]) -> Array:
    return np.rot90(array, quarters, (axes[0], axes[1]))


def _transposed(quarters: int, array: Array, axes: Sequence[int]) -> Array:
    """Exchange both axes, after so many quarter turns: 2 reflects about the other diagonal."""
    return np.swapaxes(np.rot90(array, quarters, (axes[0], axes[1])), axes[0], axes[1])
