"""GeoJSON as QuPath exports it: annotations with the names and colours of their classes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner_core import BadInput, refuse_long_file

from runner_ssmunet.drawings.colours import Colour
from runner_ssmunet.drawings.shapes import Array, Drawn, Shape, left_out, ring

_LONGEST = 200_000_000
_NO_ANNOTATIONS = {
    "detection": "detections", "cell": "detections", "tile": "detections", "tma_core": "outlines of cores",
    "root": "outlines of images", "PathDetectionObject": "detections", "PathCellObject": "detections",
    "PathTileObject": "detections", "TMACoreObject": "outlines of cores", "PathRootObject": "outlines of images",
}  # fmt: skip
"""Objects of QuPath that nobody drew as an annotation: by objectType, in older versions by id."""


def read(path: Path) -> Drawn:
    """Return the annotations of a file. Raises BadInput naming it, and the object that is wrong."""
    try:
        content = json.loads(refuse_long_file(path, _LONGEST, "a GeoJSON file").read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not a readable GeoJSON file ({error}). Export it again from QuPath.") from error
    shapes: list[Shape] = []
    others: Counter[str] = Counter()
    for number, feature in enumerate(_features(content, path), 1):
        if not isinstance(feature, Mapping):
            raise BadInput(f"{path}: object {number} is no GeoJSON feature. Export it again from QuPath.")
        about = feature.get("properties")
        about = about if isinstance(about, Mapping) else {}
        kind = _NO_ANNOTATIONS.get(str(about.get("objectType", feature.get("id"))))
        name = _class_name(about.get("classification"))
        polygons = None if kind else list(_polygons(feature.get("geometry"), path, number))
        if kind or not name or name.endswith("*") or not polygons:
            others[kind or ("without a class" if not name else f"of {name}" if polygons else "without an area")] += 1
            continue
        shapes.append(Shape(name, polygons, _colour(about["classification"])))
    if not shapes:
        why = f" ({', '.join(f'{count} {reason}' for reason, count in others.items())})" if others else ""
        raise BadInput(f"{path}: it has no annotation with a class and an area{why}. Give its annotations classes.")
    return Drawn(shapes, left_out(others, path))


def _features(content: Any, path: Path) -> list[Any]:
    """Return the features of a collection, of a list (as older QuPath wrote them), or of one object."""
    if isinstance(content, Mapping):
        content = content.get("features", [content])
    if not isinstance(content, list):
        raise BadInput(f"{path}: it holds no list of features. Export it again from QuPath, as GeoJSON.")
    return content


def _class_name(found: Any) -> str:
    """Return the name of a class, of QuPath's derived classes as it shows them; "" for an object without a class."""
    if isinstance(found, Mapping):
        names = found.get("names")
        found = ": ".join(map(str, names)) if isinstance(names, list) else found.get("name")
    return found.strip() if isinstance(found, str) else ""


def _colour(found: Any) -> Colour | None:
    """Return a class's colour: a list of three, or QuPath's signed number of alpha, red, green and blue."""
    if not isinstance(found, Mapping):
        return None
    value = found.get("color", found.get("colorRGB"))
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value >> shift & 255 for shift in (16, 8, 0)]
    if not (isinstance(value, list) and len(value) >= 3 and all(type(v) is int and 0 <= v < 256 for v in value)):
        return None
    return value[0], value[1], value[2]


def _polygons(geometry: Any, path: Path, number: int) -> Iterator[list[Array]]:
    """Yield the polygons of a geometry. Lines and points have none."""
    if not isinstance(geometry, Mapping):
        return
    kind, found = geometry.get("type"), geometry.get("coordinates")
    if kind == "GeometryCollection":
        parts = geometry.get("geometries")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and part.get("type") != kind:
                yield from _polygons(part, path, number)
    elif kind in ("Polygon", "MultiPolygon"):
        polygons = [found] if kind == "Polygon" else found
        for polygon in polygons if isinstance(polygons, list) else [None]:
            rings = [ring(points) for points in polygon] if isinstance(polygon, list) else [None]
            kept = [points for points in rings if points is not None]
            if len(kept) < len(rings):
                raise BadInput(f"{path}: object {number}: its {kind} has what is no list of x and y. Export it again.")
            if kept:
                yield kept
