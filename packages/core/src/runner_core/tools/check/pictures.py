"""Pictures of a few records with their labels: those with findings, and the least, a typical and the most labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from runner_core.base.errors import BadInput
from runner_core.base.text import first_few
from runner_core.contract import Array
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Decoded, Record
from runner_core.contract.setup import Setup
from runner_core.output.pictures import png_bytes
from runner_core.output.report.page import Block, Note
from runner_core.output.report.sections import picture
from runner_core.tools.check.audit import Audit
from runner_core.tools.check.facts import GREY

_WORST = 4
"""Largest number of records with findings."""
_SIDE = 320
"""Pixels of the longer side of a picture."""
_GAP = 4
_COUNTED = 1 << 16
"""Range of labels below which each value gets a counter."""
_COLOURS = np.array(
    [(230, 85, 13), (49, 130, 189), (49, 163, 84), (197, 27, 138), (255, 200, 0), (0, 190, 190), (150, 110, 60)]
)


def pictures(setup: Setup, audit: Audit) -> Iterator[Block]:
    """Yield pictures of the records worth seeing; data at a URL are not fetched again for them."""
    for record, why in _worth_seeing(audit):
        if isinstance(record, Record):
            try:
                decoded = setup.project.decode(record)
                drawn = image_of(setup.project, decoded)
                if drawn is None and _is_image(decoded):
                    drawn = _drawn(decoded, setup.project.dataset.labels, is_nifti(record))
                if drawn is not None:
                    yield picture(png_bytes(drawn), f"{record.key}: {why}")
                yield from _projects_own(setup.project, record.key, decoded)
            except (BadInput, OSError):  # the findings say what is wrong with it
                pass
            except Exception as error:  # the report of a long check is worth more than a picture
                yield Note(f"{record.key}: no picture could be drawn of it ({type(error).__name__}: {error})")


def _projects_own(project: Project, key: str, decoded: Decoded) -> Iterator[Block]:
    """Yield the project's own pictures of a record, or a note that says why there are none."""
    further = project.checks().pictures
    try:
        found = {} if further is None else further(decoded)
    except BadInput as error:
        yield Note(f"{key}: not all of its pictures could be drawn: {error}")
        return
    for title, array in found.items():
        yield picture(png_bytes(array), f"{key}: {title}")


def image_of(project: Project, decoded: Decoded) -> Array | None:
    """Return the picture that the project draws of a record, in the size of the others; None if it draws none."""
    draw = project.pictures().image
    drawn = None if draw is None else draw(decoded)
    return None if drawn is None else side_by_side([drawn], (1.0, 1.0), upright=False)


def picture_of(project: Project, record: Record) -> Array | None:
    """Return a picture of a record without its label; None if it holds no image."""
    decoded = project.decode(record)
    drawn = image_of(project, decoded)
    return _drawn(decoded, (), is_nifti(record)) if drawn is None and _is_image(decoded) else drawn


def _worth_seeing(audit: Audit) -> Iterator[tuple[AnyRecord, str]]:
    """Yield records, each once, and why they are worth seeing."""
    seen = set[str]()
    for record in audit.records:
        rules = [f"{f.level} {f.rule}" for key, f in audit.findings if key == record.key and f.level != "note"]
        if rules and len(seen) < _WORST:
            seen.add(record.key)
            yield record, first_few([*dict.fromkeys(rules)])
    others = sorted((value, n, text) for n, value, text in _values(audit) if audit.checked.records[n].key not in seen)
    names = {0: "the least", len(others) - 1: "the most", len(others) // 2: "typical"}
    for place, name in sorted(names.items()):
        if 0 <= place < len(others):
            _, number, text = others[place]
            yield audit.checked.records[number], f"{name}, {text}"


def _values(audit: Audit) -> Iterator[tuple[int, float, str]]:
    """Yield the number of each usable record, by how much it differs from the others, and text for that.

    This is the share of its voxels outside the class that is the largest, or without classes the highest grey value.
    """
    counts = audit.checked.balance().counts
    largest = max(counts, key=lambda name: counts[name], default="")
    for number, found in enumerate(audit.checked.found):
        if found.facts is None or found.facts.image is None:
            continue
        labels, levels = found.facts.annotation, found.facts.image.levels
        if labels is not None:
            share = 1 - labels.counts.get(largest, 0) / max(1, labels.annotated)
            yield number, share, f"{share:.1%} is not {largest}"
        elif not largest and levels is not None and levels.low <= levels.high:
            yield number, levels.high, f"the highest value is {levels.high:.4g}"


def _is_image(decoded: Decoded) -> bool:
    """Return whether the first array is an image or a volume."""
    image, axes = next(iter(decoded.arrays.values())), len(decoded.spacing)
    return axes in (2, 3) and image.ndim >= axes and image.size > 0 and image.dtype.kind in "biuf"


def _drawn(decoded: Decoded, labels: Sequence[str], upright: bool) -> Array:
    """Return a slice of the image as (H, W, 3) uint8, and beside it the same with its labels in colours."""
    axes = len(decoded.spacing)
    image, label = next(iter(decoded.arrays.values())), _label(decoded, labels)
    across = int(np.argmin(image.shape[:axes])) if axes == 3 else None
    if across is not None:
        place = _fullest(label, across) if label is not None else image.shape[across] // 2
        image = np.take(image, place, across)
        label = None if label is None else np.take(label, place, across)
    spacing = [mm for axis, mm in enumerate(decoded.spacing) if axis != across]
    ground = grey(image)
    return side_by_side([ground] if label is None else [ground, coloured(ground, label)], spacing, upright)


def side_by_side(panels: Sequence[Array], spacing: Sequence[float], upright: bool) -> Array:
    """Return pictures (H, W, 3) of one grid side by side, in true proportions; `upright` ones are turned."""
    zoom = _SIDE / max(n * mm for n, mm in zip(panels[0].shape, spacing, strict=False))
    size = [max(1, round(n * mm * zoom)) for n, mm in zip(panels[0].shape, spacing, strict=False)]
    turned = [np.rot90(panel) for panel in panels] if upright else panels
    wanted = (size[0], size[1]) if upright else (size[1], size[0])
    gap = np.full((wanted[1], _GAP, 3), 255, np.uint8)
    drawn = [np.asarray(Image.fromarray(np.ascontiguousarray(panel)).resize(wanted)) for panel in turned]
    return np.concatenate([drawn[0], *(part for panel in drawn[1:] for part in (gap, panel))], axis=1)


def _label(decoded: Decoded, labels: Sequence[str]) -> Array | None:
    """Return the array of labels on the image's grid: one that the project names, else one of few values."""
    first, *others = decoded.arrays.items()
    grid = first[1].shape[: len(decoded.spacing)]
    found = {name: array for name, array in others if array.shape == grid}
    named = [array for name, array in found.items() if name in labels]
    few = [a for name, a in found.items() if name != decoded.guide and a.dtype.kind in "biu" and _distinct(a) <= GREY]
    return next(iter([*named, *few]), None)


def _distinct(array: Array) -> int:
    return len(np.unique(array.ravel()[:: max(1, array.size // 10_000)]))


def _fullest(label: Array, axis: int) -> int:
    """Return the place along the axis where most voxels differ from the most common label there."""
    slices = np.moveaxis(label, axis, 0)
    return int(np.argmax([one.size - _most_common(one) for one in slices]))


def _most_common(label: Array) -> int:
    """Return how often the most common value occurs; few whole numbers are counted without sorting."""
    if label.dtype.kind in "biu":
        values = label.ravel().astype(np.int64)
        if int(values.max()) - int(values.min()) < _COUNTED:
            return int(np.bincount(values - values.min()).max())
    return int(np.unique(label, return_counts=True)[1].max())


def grey(image: Array) -> Array:
    """Return a slice as (H, W, 3) uint8: RGB as it is, else the mean of the channels, 1st to 99th percentile."""
    if image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8:
        return image
    plane = image.reshape(*image.shape[:2], -1).mean(2, dtype=np.float32)
    plane = np.nan_to_num(plane, posinf=0, neginf=0)
    low, high = np.percentile(plane, (1, 99))
    scaled = np.asarray(np.clip((plane - low) / max(float(high - low), 1e-12), 0, 1) * 255, np.uint8)
    return np.repeat(scaled[..., None], 3, 2)


def coloured(ground: Array, label: Array) -> Array:
    """Return the picture with labels over it: a colour for each of few values, else darker to brighter."""
    if label.dtype.kind in "biu" and _distinct(label) <= GREY:
        colours, weight = _COLOURS[(label.astype(np.int64) - 1) % len(_COLOURS)], 0.5 * (label != 0)
    else:
        values = np.nan_to_num(label.astype(np.float32))
        colours, weight = _COLOURS[np.zeros(label.shape, int)], 0.7 * values / max(float(values.max()), 1e-12)
    mixed = ground * (1 - weight[..., None]) + colours * weight[..., None]
    return np.clip(mixed, 0, 255).astype(np.uint8)


def is_nifti(record: Record) -> bool:
    """Return whether rows of its arrays run from left to right, and columns upwards."""
    return any(".nii" in file.name for file in record.files.values())
