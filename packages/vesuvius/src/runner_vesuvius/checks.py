"""Checks of `runner vesuvius check`, for volumes that can be read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from runner_core import LEFT_OUT, Array, BadInput, Finding, Location, Record, counted, first_few, shape_text

from runner_vesuvius import files, shift, volumes, zarrs
from runner_vesuvius.labels import BACKGROUND, IGNORE, SURFACE
from runner_vesuvius.statistics import histogram

if TYPE_CHECKING:
    from runner_vesuvius.census import Census

THIN = 0.5
"""Largest share of the annotated voxels that a surface can plausibly have."""
CLIPPED = 0.1
"""Largest share of the annotated voxels at the darkest or the brightest value before detail is lost."""
FEW = 32
"""A scan with fewer grey values has too little detail to find surfaces in it."""
SHARES_OF = 16
"""Most labels that are read to report shares; reading all of a large set would take minutes."""
PATCH_REMEDY = "Set data.patch to sides that fit, or leave the volume out."
APART = 1.5
"""Standard deviations by which scrolls must differ in brightness to be noted."""


def findings(record: Record) -> Iterator[Finding]:
    """Yield what looks wrong in one volume and its label.

    Raises BadInput as reading does, and if image and label have different shapes.
    """
    path = record.files["image"]
    image = volumes.read_image(path)
    label = volumes.read_truth(record.files, image.shape) if "label" in record.files else None
    counts = histogram(image, label)
    yield from _image(path, counts.sum(0))
    if label is not None:
        yield from _label(record.files["label"].name, counts)
        yield from _missing(record.files["label"], labels=True)
        yield from _shifted(record.files["label"].name, image, label)
        yield from _clipped(path.name, counts[:2].sum(0))


def piece_findings(
    where: Mapping[str, Location],
    arrays: Mapping[str, Array],
    shape: Sequence[int],
    patch: Sequence[int],
    census: Census,
    region: Sequence[slice],
) -> Iterator[Finding]:
    """Yield what looks wrong in a volume that memory cannot hold, and say what was read of it.

    `arrays` are image and label of the piece at `region`; `where` says where the volumes lie, by role.
    """
    name = where["image"].name
    yield from _smaller({name: shape}, patch)
    there = " × ".join(f"{part.start}…{part.stop - 1}" for part in region)
    read = (
        f"{name}: {shape_text(shape)} voxels are read chunk by chunk. Looked at: the whole label, {census.sampled} of "
        f"{counted(len(census.blocks), 'block')} of the image (intensities), and the piece {there} (z, y, x; all else "
        "that is said of this volume). The rest of the image was not read: damage there is found by training alone"
    )
    yield Finding("read", "note", f"{read}.")
    for role, labels in (("image", False), ("label", True)):
        if isinstance(place := where[role], Path):
            yield from _missing(place, labels)
    yield from _label(where["label"].name, census.histogram)
    yield from _shifted(where["label"].name, arrays["image"], arrays["label"])
    yield from _clipped(name, census.histogram[:2].sum(0))


def _smaller(shapes: Mapping[str, Sequence[int]], patch: Sequence[int]) -> Iterator[Finding]:
    """Yield one error that names the volumes of which no patch can be cut."""
    small = {
        name: shape for name, shape in shapes.items() if any(n < side for n, side in zip(shape, patch, strict=False))
    }
    if small:
        name, shape = next(iter(small.items()))
        others = f" ({len(small)} volumes are: {first_few(list(small))})" if len(small) > 1 else ""
        text = f"{shape_text(shape)} voxels, smaller than the patch of {shape_text(patch)}{others}"
        yield Finding("patch", "error", f"{name}: {text}. {PATCH_REMEDY}")


def _shapes(records: Sequence[Record]) -> dict[str, Sequence[int]]:
    """Return the shapes of the volumes whose headers can be read, by file name."""
    found: dict[str, Sequence[int]] = {}
    for record in records:
        with suppress(BadInput):
            found[record.files["image"].name] = volumes.outline(record.files["image"])[0]
    return found


def refuse_constant(path: Path, image: Array) -> None:
    """Raise BadInput for a scan that has the same value everywhere: it can be neither learned from nor scored."""
    if image.min() == image.max():
        fault = next(_image(path, histogram(image, None).sum(0)))
        raise BadInput(str(path.with_name(fault.message)))


def remarks(record: Record) -> Iterator[Finding]:
    """Yield the warnings that `findings` has for the image of a volume to predict."""
    path = record.files["image"]
    for finding in _image(path, histogram(volumes.read_image(path), None).sum(0)):
        yield replace(finding, level="warning") if finding.level == "error" else finding


def set_findings(
    records: Sequence[Record], large: Callable[[Record], bool] = lambda record: False, patch: Sequence[int] = ()
) -> Iterator[Finding]:
    """Yield what no single volume shows: scrolls, shares of the labels, and whether there is any surface.

    One error names the volumes that are smaller than the `patch` that training cuts out of them. Volumes that are
    `large` are left out of all but the scrolls' names, and a note says so.

    It reads one image of each scroll, some labels, and other labels until one has a surface. Volumes that cannot be
    read are left out (`findings` names them).
    """
    scrolls: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        scrolls[record.group].append(record)
    yield from _deprecated(records)
    yield from _names(scrolls)
    if left := [record.key for record in records if large(record)]:
        text = f"{counted(len(left), 'volume')} that memory cannot hold ({first_few(left)})"
        yield Finding("together", "note", f"brightness of scrolls and shares of labels leave out {text}.")
    fitting = [record for record in records if record.key not in set(left)]
    yield from _smaller(_shapes(fitting), patch)
    yield from _brightness({name: own for name in scrolls if (own := [r for r in fitting if r.group == name])})
    labelled = [record.files["label"] for record in fitting if "label" in record.files]
    some = np.unique(np.linspace(0, len(labelled) - 1, SHARES_OF).round().astype(int)).tolist() if labelled else []
    counts = {place: found for place in some if (found := _counts(labelled[place])) is not None}
    others = (_counts(label) for place, label in enumerate(labelled) if place not in some)
    if (
        labelled
        and not left
        and not any(found is not None and found[SURFACE] for found in chain(counts.values(), others))
    ):
        text = "no volume that can be read has a surface voxel (label 1): there is nothing to learn."
        yield Finding("surface", "error", text)
    if counts:
        yield _shares(np.array(list(counts.values())), len(labelled))


def _image(path: Path, counts: Array) -> Iterator[Finding]:
    wide = volumes.outline(path)[1].itemsize == 2
    used = int(np.count_nonzero(counts))
    if wide and (used == 1 or not counts[FEW:].any()):
        yield _little_of_16_bits(path, used)
    elif used == 1:
        yield Finding("intensity", "error", f"{path.name}: every voxel is {int(counts.argmax())}. Export it again.")
    elif used < FEW:
        why = "scale the scan to the whole range first" if wide else "is this a label or a mask?"
        yield _warning("intensity", f"{path.name}: only {used} grey values; {why}")
    if wide:
        yield Finding("depth", "note", f"{path.name}: 16 bits a voxel, of which the high byte is read (value >> 8).")
    yield from _missing(path, labels=False)


def _little_of_16_bits(path: Path, used: int) -> Finding:
    """Return the finding for a 16-bit scan whose high bytes are all equal or all low."""
    highest = volumes.highest(path)
    if not highest:
        return Finding("intensity", "error", f"{path.name}: every voxel is 0. Export it again.")
    if highest < 256:
        text = f"{path.name}: all values are below 256: these are 8 bits in a 16-bit file, of which the high byte"
        return Finding("intensity", "error", f"{text} is read. Save it as uint8.")
    text = f"{path.name}: the highest value is {highest}: the high byte of 16 bits leaves {counted(used, 'grey value')}"
    level: Literal["warning", "error"] = "error" if used == 1 else "warning"
    return Finding("intensity", level, f"{text} of 256. Scale the scan to 16 or to 8 bits first.")


def _missing(path: Path, labels: bool) -> Iterator[Finding]:
    """Yield findings about chunks of a zarr array that are not stored.

    Writers leave out chunks that hold the fill value alone, so that this may be correct. Labels with fill value 2 are
    not annotated there, and nothing is learned from them.
    """
    if path.suffix.lower() != ".zarr":
        return
    (stored, chunks), value = zarrs.chunks(path), zarrs.fill(path)
    if stored == chunks or (labels and value == IGNORE):
        return
    text = f"{path.name}: {stored} of {counted(chunks, 'chunk')} are stored, the others read as {value}"
    if labels:
        learned = "background" if value == 0 else "surface"
        text += f" ({learned}), which is learned. Copy it whole; or, if it is, write it with write_empty_chunks=True."
    else:
        text += "; was it copied whole?"
    yield _warning("chunks", text)


def _label(name: str, counts: Array) -> Iterator[Finding]:
    background, surface, ignored = counts.sum(1).tolist()
    known = background + surface
    if not known:
        text = f"{name}: every voxel is 2 (ignore): nothing can be learned from it, nor scored. Leave it out."
        yield Finding("label", "error", text)
        return
    share = surface / known
    if not surface:
        yield _warning("label", f"{name}: no surface voxel among {counted(known, 'annotated voxel')}.")
    elif share > THIN:
        text = f"{name}: {share:.0%} of the annotated voxels are surface, which is thin; are 0 and 1 exchanged?"
        yield _warning("label", text)
    if not ignored:
        text = (
            f"{name}: no voxel is 2 (ignore): where nobody looked, background is learned. Is it annotated throughout?"
        )
        yield Finding("label", "note", text)
    if surface and background:
        outside, inside = (counts[:2] * np.arange(256)).sum(1) / (background, surface)
        if inside < outside:
            text = f"{name}: surface is darker than background (on average {inside:.0f} and {outside:.0f})"
            yield _warning("label", f"{text}; are the labels shifted, mirrored or another volume's?")


def _shifted(name: str, image: Array, label: Array) -> Iterator[Finding]:
    if found := shift.find(image, label):
        z, y, x = found.by
        text = f"{name}: the label fits the image better when it is moved by about {z}, {y}, {x} voxels (z, y, x)"
        contrast = (
            f"surface is {found.there:.1f} standard deviations brighter than background there, {found.here:.1f} here"
        )
        yield _warning("shift", f"{text}: {contrast}; is it shifted, or another volume's?")


def _clipped(name: str, known: Array) -> Iterator[Finding]:
    for value in (0, 255):
        share = known[value] / max(1, known.sum())
        if share > CLIPPED:
            text = (
                f"{name}: {share:.0%} of the annotated voxels are {value}: clipped; export the scan with another range"
            )
            yield _warning("clipped", text)


def _deprecated(records: Sequence[Record]) -> Iterator[Finding]:
    if left := files.deprecated(records):
        text = f"{counted(len(left), 'deprecated volume')} left out ({', '.join(left)}): the challenge's hosts took "
        text += "them back. To train on them too, move their files into the folders without 'deprecated_'."
        yield Finding(LEFT_OUT, "note", text)


def _names(scrolls: dict[str, list[Record]]) -> Iterator[Finding]:
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in scrolls:
        alike[re.sub(r"[\W_]+", "", name.casefold())].append(name)
    for names in alike.values():
        if len(names) > 1:
            text = f"{' and '.join(map(repr, names))} look like one scroll"
            yield _warning("scrolls", f"{text}: a split could put it on both sides. Write it in one way.")
    single = [name for name, own in scrolls.items() if len(own) == 1]
    if len(scrolls) == 1:
        yield _warning("scrolls", f"all volumes are of scroll {single or next(iter(scrolls))!r}: none can validate.")
    elif single:
        shown = ", ".join(single[:5]) + (", …" if single[5:] else "")
        yield Finding("scrolls", "note", f"{counted(len(single), 'scroll')} with one volume only: {shown}.")


def _brightness(scrolls: dict[str, list[Record]]) -> Iterator[Finding]:
    """Yield mean and standard deviation of a volume of each scroll if they are far apart."""
    found: dict[str, tuple[float, float]] = {}
    for name, records in scrolls.items():
        for record in records:
            try:
                counts = histogram(volumes.read_image(record.files["image"]), None)[2]
            except BadInput:
                continue
            mean = float(np.average(np.arange(256), weights=counts))
            found[name] = mean, float(np.average((np.arange(256) - mean) ** 2, weights=counts)) ** 0.5
            break
    means = [mean for mean, _ in found.values()]
    if found and max(means) - min(means) > APART * float(np.mean([std for _, std in found.values()])):
        shown = ", ".join(f"{name} {mean:.0f} ± {std:.0f}" for name, (mean, std) in list(found.items())[:8])
        yield Finding("brightness", "note", f"scrolls differ in brightness (a volume of each: {shown}).")


def _shares(counts: Array, labels: int) -> Finding:
    """Return how much is surface and how much is not annotated.

    `counts` are the voxels by label (volumes, 3) of some of the `labels`.
    """
    shares, overall = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    texts = [
        f"{overall[value]:.1%} of the voxels are {name} ({shares[:, value].min():.1%} to {shares[:, value].max():.1%})"
        for value, name in ((SURFACE, "surface"), (IGNORE, "not annotated"))
    ]
    return Finding("shares", "note", f"{len(counts)} of {counted(labels, 'label')}: {', '.join(texts)}.")


def _counts(path: Path) -> list[int] | None:
    """Return the voxels of each label; None if it cannot be read (`findings` names it)."""
    try:
        label = volumes.read_label(path)
    except BadInput:
        return None
    return [int(np.count_nonzero(label == value)) for value in (BACKGROUND, SURFACE, IGNORE)]


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
