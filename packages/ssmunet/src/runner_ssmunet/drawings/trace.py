"""Regions of a map of labels as GeoJSON that QuPath imports: the borders of pixels, exactly."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from runner_core import Label
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]
Point = tuple[int, int]


def to_geojson(labels: Array, named: Sequence[Label], key: str) -> str:
    """Return an annotation for each label that occurs in `labels` (H, W), with its class's name and colour.

    Coordinates are pixels of the map, x to the right and y down from the outer corner of the first pixel, as in QuPath.
    """
    features = []
    for label in named:
        polygons = [[[*map(list, ring)] for ring in rings] for rings in regions(labels == label.value)]
        if not polygons:
            continue
        features.append(
            {
                "type": "Feature",
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"runner-ssmunet {key} {label.name}")),
                "geometry": {"type": "MultiPolygon", "coordinates": polygons},
                "properties": {
                    "objectType": "annotation",
                    "name": label.name,
                    "classification": {"name": label.name, "color": list(label.colour)},
                },
            }
        )
    return json.dumps({"type": "FeatureCollection", "features": features})


def regions(mask: Array) -> Iterator[list[list[Point]]]:
    """Yield the regions of a mask (H, W): each a list of closed rings of (x, y), its border and then its holes.

    Pixels that touch by a corner alone are two regions. Rings do not cross or touch themselves: the polygons are valid.
    """
    pieces, _ = ndimage.label(mask)
    for number, place in enumerate(ndimage.find_objects(pieces), 1):
        top, left = place[0].start, place[1].start
        rings = [[(x + left, y + top) for x, y in ring] for ring in _rings(pieces[place] == number)]
        yield sorted(rings, key=lambda ring: -_area(ring))  # the border alone runs the positive way around


def _rings(mask: Array) -> Iterator[list[Point]]:
    """Yield closed rings along the borders of a mask, its pixels at their right hand (y points down).

    A ring that comes back to a point is cut off there, so that no ring meets itself.
    """
    after = _edges(mask)
    while after:
        path = [next(iter(after))]
        place = {path[0]: 0}
        while after.get(path[-1]):
            point = after[path[-1]].pop()
            if not after[path[-1]]:
                del after[path[-1]]
            if point not in place:
                place[point] = len(path)
                path.append(point)
                continue
            yield _without_straight(path[place[point] :])
            for passed in path[place[point] + 1 :]:
                del place[passed]
            del path[place[point] + 1 :]


def _edges(mask: Array) -> dict[Point, list[Point]]:
    """Return the borders of pixels, from corner to corners, as (x, y)."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    after: dict[Point, list[Point]] = {}
    for shift, (start, end) in {
        (0, 1): ((0, 0), (1, 0)),  # above: to the right
        (1, 2): ((1, 0), (1, 1)),  # at the right: down
        (2, 1): ((1, 1), (0, 1)),  # below: to the left
        (1, 0): ((0, 1), (0, 0)),  # at the left: up
    }.items():
        beside = padded[shift[0] : shift[0] + mask.shape[0], shift[1] : shift[1] + mask.shape[1]]
        for y, x in np.argwhere(inside & ~beside).tolist():
            after.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    return after


def _without_straight(ring: list[Point]) -> list[Point]:
    """Return a ring closed, without the points at which it does not turn."""
    points = np.array(ring)
    before, behind = points - np.roll(points, 1, 0), np.roll(points, -1, 0) - points
    kept = [ring[n] for n in np.flatnonzero((before != behind).any(1))]
    return [*kept, kept[0]]


def _area(ring: list[Point]) -> float:
    """Return twice the signed area of a ring; positive if it runs clockwise on the screen."""
    x, y = np.array(ring).T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())
