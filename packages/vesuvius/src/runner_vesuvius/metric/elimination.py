"""Gaussian elimination modulo 2 of sparse rows, in the order of their arrival."""

from __future__ import annotations

import numpy as np

from runner_vesuvius._compiled import compiled


@compiled
def independent(linked, starts, begin, end):  # type: ignore[no-untyped-def]
    """Return whether each row is independent of those before it, as bool.

    Row k has ones at linked[starts[k] : starts[k + 1]], in order; only those from `begin` to before `end` count.
    """
    found = np.zeros(starts.size - 1, np.bool_)
    first, last = (
        np.full(end - begin, -1, np.int64),
        np.zeros(end - begin, np.int64),
    )  # of the kept row with each lowest one
    kept = np.empty(1024, np.int32)
    row, other = np.empty(end - begin, np.int32), np.empty(end - begin, np.int32)
    count = size = 0
    for k in range(starts.size - 1):
        if count == end - begin:
            break
        length = 0
        for t in range(starts[k], starts[k + 1]):
            if begin <= linked[t] < end:
                row[length] = linked[t]
                length += 1
        while length and first[row[0] - begin] >= 0:
            low = row[0] - begin
            a, b, filled = 0, first[low], 0
            while a < length or b < last[low]:
                if b == last[low] or (a < length and row[a] < kept[b]):
                    other[filled] = row[a]
                    a += 1
                elif a == length or kept[b] < row[a]:
                    other[filled] = kept[b]
                    b += 1
                else:
                    a += 1
                    b += 1
                    continue
                filled += 1
            row, other, length = other, row, filled
        if length:
            while size + length > kept.size:
                kept = np.concatenate((kept, np.empty(kept.size, np.int32)))
            kept[size : size + length] = row[:length]
            first[row[0] - begin], last[row[0] - begin] = size, size + length
            size += length
            count += 1
            found[k] = True
    return found
