"""Choose whole groups whose number of records is as close as possible to a wanted number."""

from __future__ import annotations

from collections.abc import Sequence

_EXACT_BITS = 1 << 28
"""Largest number of bits (32 MB) of the exact search: groups times records.

16,000 patients with one scan each are below it.
"""


def nearest_share(sizes: Sequence[int], wanted: float, *, round_up: bool = False) -> list[int]:
    """Return places of some of `sizes`, but not of all, whose sum is as near to `wanted` as possible.

    Sizes that come first are taken first, so a shuffled order gives a random one of several such choices. If one sum
    lies as far below as another above, `round_up` decides. Beyond `_EXACT_BITS` only the last sizes are chosen exactly;
    the others are taken in order while they fit, so the sum is off by less than the largest size.

    >>> nearest_share([376, 130, 120, 80, 50, 30], 157.2)
    [1, 5]
    """
    total = sum(sizes)
    first = max(0, len(sizes) - max(2, _EXACT_BITS // total))
    taken, held = _while_they_fit(sizes[:first], wanted)
    reach = [1]  # for the sizes from each place on: bit s is set if some of them add up to s
    for size in reversed(sizes[first:]):
        reach.append(reach[-1] | reach[-1] << size)
    reach.reverse()
    missing = _nearest(_without_all_or_none(reach[0], held, total), wanted - held, round_up)
    for place, size in enumerate(sizes[first:]):
        if missing >= size and reach[place + 1] >> (missing - size) & 1:
            taken.append(first + place)
            missing -= size
    return taken


def _while_they_fit(sizes: Sequence[int], wanted: float) -> tuple[list[int], int]:
    taken, held = [], 0
    for place, size in enumerate(sizes):
        if held + size <= wanted:
            taken.append(place)
            held += size
    return taken, held


def _without_all_or_none(sums: int, held: int, total: int) -> int:
    """Return the sums without those that would leave one of the two splits empty."""
    return sums & ~(1 << (total - held)) & ~(0 if held else 1)


def _nearest(sums: int, wanted: float, round_up: bool) -> int:
    """Return the set bit nearest to `wanted`."""
    middle = max(0, int(wanted))
    below = sums & ((2 << middle) - 1)
    above = sums >> (middle + 1)
    found = [below.bit_length() - 1] if below else []
    if above:
        found.append(middle + (above & -above).bit_length())
    return min(found, key=lambda s: (abs(s - wanted), -s if round_up else s))
