"""Checks of `runner ssmunet check` for cores that can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from runner_core import BadInput, Finding, Record, counted

from runner_ssmunet.axis import plan
from runner_ssmunet.classes import FILE, Classes
from runner_ssmunet.config import SpectraConfig
from runner_ssmunet.files import Core, read_core, read_outline, stored_labels
from runner_ssmunet.labels import MANY_OFF
from runner_ssmunet.readers.blocks import release, row_blocks
from runner_ssmunet.statistics import axes_differ, spacing

Array = np.ndarray[Any, np.dtype[Any]]

ABSORBANCE = (-0.5, 5.0)
"""Values that a spectrometer can measure. Beyond them the detector is saturated, or the value is no absorbance."""
FLAT = 1e-4
"""A spectrum is flat if all its values lie within this range."""
CLIPPED = 5
"""A spectrum is cut off at its highest value if this many wavenumbers share it."""
STRAY = 0.01
"""Share of the tissue up to which odd pixels get a note, not a warning."""
SCARCE = 0.01
"""Annotated share of a core below which it teaches little."""
SAME_SIZE = 0.05
"""Share by which the pixel sizes of the cores may differ."""
EVERYWHERE = 0.5
"""Share of the pixels off the tissue above which a label cannot be a tissue's."""
TISSUE = (0.02, 0.95)
"""Share of its image that a core fills."""


def findings(core: Core, tissue: Array, path: Path, data: SpectraConfig, classes: Classes) -> Iterator[Finding]:
    """Yield what looks wrong in one core. `tissue` (H, W) bool is the result of `preprocess.tissue_mask`."""
    name = path.name
    yield from (Finding("axis", "note", f"{name}: {remark}.") for remark in core.remarks)
    yield from _spacing(name, core)
    share = float(tissue.mean())
    if not TISSUE[0] <= share <= TISSUE[1]:
        yield _warning("tissue", f"{name}: {share:.1%} of the pixels are tissue; is the mask right?")
    yield from _spectra(name, core, tissue)
    yield from (Finding("annotation", level, f"{name}: {remark}.") for level, remark in core.label_remarks)
    if core.labels is not None:
        labels = stored_labels(core, path, classes, data.ignore, needed=False)
        yield from _labels(name, labels, tissue, classes.names, data.ignore)


def set_findings(records: Sequence[Record], data: SpectraConfig, classes: Classes) -> Iterator[Finding]:
    """Yield what no core shows alone: the class table, axes that differ, classes that few patients have.

    Reads labels and axes, no spectra. Cores that cannot be read are left out (`findings` names them).
    """
    labelled: list[tuple[Record, Array]] = []
    axes: list[tuple[Path, Array]] = []
    sizes: list[tuple[str, float]] = []
    for record in records:
        path = record.files["core"]
        try:
            outline = read_outline(path, record.files.get("labels"))
            if isinstance(size := outline.meta.get("pixel_um"), int | float) and size > 0:
                sizes.append((path.name, float(size)))
            axes.append((path, plan(outline.wavenumbers, data, path.name).wavenumbers))
            labelled.append((record, stored_labels(outline, path, classes, data.ignore, needed=False)))
        except BadInput:
            continue
    yield from _axes(axes)
    yield from _pixel_sizes(sizes)
    yield _names(classes)
    yield from _classes(labelled, classes.names)
    yield from _shares(labelled, classes.names)
    yield from _single(labelled, data, classes.names)


def left_out(records: Sequence[Record], data: SpectraConfig) -> Iterator[Finding]:
    """Yield warnings about `records`: cores without labels, while others have some.

    They are read too, since `predict` will need them.
    """
    for record in records:
        path = record.files["core"]
        try:
            core = read_core(path, record.files.get("labels"), data.units)
            plan(core.wavenumbers, data, str(path))
        except BadInput as error:
            yield _warning("decode", f"a core without labels cannot be read: {error}")
    if records:
        shown = ", ".join(record.files["core"].name for record in records[:5]) + (", …" if len(records) > 5 else "")
        text = f"{counted(len(records), 'core')} without labels, left out of training and scores: {shown}."
        yield _warning("labels", text)


def _spacing(name: str, core: Core) -> Iterator[Finding]:
    given = core.meta.get("delta_cm1")
    steps = np.diff(core.wavenumbers)
    if isinstance(given, int | float) and not (np.abs(steps / abs(given or 1) - 1) < 0.02).any():
        text = f"{name}: delta_cm1 is {given:g}, but wn has spacings from {steps.min():.4g} to {steps.max():.4g} cm⁻¹."
        yield _warning("axis", text)


def _spectra(name: str, core: Core, tissue: Array) -> Iterator[Finding]:
    if not tissue.any():
        return
    low, high, same = np.concatenate(list(_extremes(core.spectra, tissue)), axis=1)
    flat = high - low < FLAT
    clipped = ~flat & (same >= CLIPPED)
    reach = f"outside {ABSORBANCE[0]:g} to {ABSORBANCE[1]:g} (from {low.min():.3g} to {high.max():.3g})"
    question = "is it transmittance? See data.units"
    faults = {
        "range": ((low < ABSORBANCE[0]) | (high > ABSORBANCE[1]), f"absorbances {reach}; {question}"),
        "flat": (flat, "a flat spectrum; dead detector pixels?"),
        "saturated": (clipped, f"the same highest value at {CLIPPED} wavenumbers or more; saturated?"),
    }
    for rule, (where, what) in faults.items():
        if count := int(np.count_nonzero(where)):
            level: Literal["note", "warning"] = "warning" if count > STRAY * len(low) else "note"
            pixel = f"{counted(count, 'tissue pixel')} ({count / len(low):.1%})"
            yield Finding(rule, level, f"{name}: {pixel} with {what}")


def _extremes(spectra: Array, tissue: Array) -> Iterator[Array]:
    """Yield the lowest and highest value of tissue spectra, and how many points have the highest: (3, P) each."""
    for rows in row_blocks(spectra.shape):
        pixels = spectra[rows][tissue[rows]]
        highest = pixels.max(1, initial=-np.inf)
        yield np.stack([pixels.min(1, initial=np.inf), highest, (pixels == highest[:, None]).sum(1)])
        release(spectra)


def _labels(name: str, labels: Array, tissue: Array, classes: Sequence[str], ignore: int | None) -> Iterator[Finding]:
    annotated = labels > 0
    share = float(annotated.mean())
    if share < SCARCE:
        yield _warning("annotation", f"{name}: {share:.2%} of the pixels are annotated.")
    else:
        yield Finding("annotation", "note", f"{name}: {share:.1%} of the pixels are annotated.")
    if off := int(np.count_nonzero(annotated & ~tissue)):
        part = off / np.count_nonzero(annotated)
        text = f"{name}: {counted(off, 'annotated pixel')} ({part:.1%}) off the tissue mask: not trained on, "
        grid = "; is the labels' grid shifted or mirrored?" if part > MANY_OFF else ""
        yield Finding("annotation", "warning" if part > MANY_OFF else "note", f"{text}and missed in every score{grid}")
    outside = labels[~tissue]
    for label in range(0 if ignore is None else 1, len(classes) + 1):
        held = float((outside == label).mean()) if outside.size else 0.0
        if held > EVERYWHERE and float((labels == label).mean()) > EVERYWHERE:
            what = "unannotated" if label == 0 else classes[label - 1]
            yield _warning(
                "unannotated",
                f"{name}: label {label} ({what}) covers {(labels == label).mean():.0%} of the core, {held:.0%} of what "
                "is no tissue: these look like pixels that nobody annotated, and would be learned as a class. "
                + ("Set data.ignore to 0." if label == 0 else "Give them label 0 in the files."),
            )


def _axes(axes: Sequence[tuple[Path, Array]]) -> Iterator[Finding]:
    """Compare the axes that would be cached. The cropped parts may differ."""
    differing = [(path, how) for path, axis in axes[1:] if (how := axes_differ(axes[0][1], axis))]
    if differing:
        path, how = differing[0]
        more = f" (and {counted(len(differing) - 1, 'other core')})" if len(differing) > 1 else ""
        text = f"{axes[0][0].name} and {path.name}{more} have different wavenumbers: {how}. Training needs one axis: "
        yield Finding("axes", "error", f"{text}set data.step ({spacing(axes[0][1]):.3g} cm⁻¹, say).")


def _pixel_sizes(sizes: Sequence[tuple[str, float]]) -> Iterator[Finding]:
    """Report cores whose pixels are of another size: a network sees pixels, not µm."""
    if not sizes:
        return
    low, high = min(sizes, key=lambda own: own[1]), max(sizes, key=lambda own: own[1])
    if high[1] > (1 + SAME_SIZE) * low[1]:
        text = f"{low[0]} has pixels of {low[1]:g} µm, {high[0]} of {high[1]:g} µm: the network sees tissue at several "
        yield _warning("pixels", f"{text}scales. Bin the finer images, or train on one magnification.")
    else:
        yield Finding("pixels", "note", f"pixels are {low[1]:g} µm wide.")


def _classes(labelled: Sequence[tuple[Record, Array]], classes: Sequence[str]) -> Iterator[Finding]:
    """Yield the class table, one line per class, and what is wrong with it."""
    if not labelled:
        return
    size = len(classes) + 1
    counts = np.stack([np.bincount(labels.ravel(), minlength=size)[:size] for _, labels in labelled])
    groups = np.array([record.group for record, _ in labelled])
    annotated = max(int(counts[:, 1:].sum()), 1)
    share = counts[:, 1:].sum() / max(counts.sum(), 1)
    yield Finding("classes", "note", f"{share:.1%} of all pixels are annotated.")
    for label, name in enumerate(classes, start=1):
        own, called = counts[:, label], name if name == f"class {label}" else f"class {label} {name}"
        where = f"in {counted(int((own > 0).sum()), 'core')} of {counted(len(set(groups[own > 0])), 'group')}"
        if not own.any():
            yield _warning("classes", f"{called}: not one annotated pixel in all cores that can be read.")
        elif len(set(groups[own > 0])) == 1:
            text = f"{called}: only group {groups[own > 0][0]} has it, so that it cannot be trained and "
            yield _warning("classes", f"{text}validated both.")
        else:
            pixels = f"{counted(int(own.sum()), 'pixel')}, {own.sum() / annotated:.1%} of the annotated"
            yield Finding("classes", "note", f"{called}: {pixels}, {where}.")
    alone = [group for group in dict.fromkeys(groups) if (counts[groups == group, 1:].sum(0) > 0).sum() == 1]
    if alone and len(classes) > 1:
        shown = ", ".join(alone[:5]) + (", …" if len(alone) > 5 else "")
        yield _warning("groups", f"{counted(len(alone), 'group')} with annotated pixels of one class only: {shown}.")


def _shares(labelled: Sequence[tuple[Record, Array]], classes: Sequence[str]) -> Iterator[Finding]:
    """Yield for each group how much of it is annotated, and the share of each class in that."""
    groups: dict[str, list[Array]] = {}
    for record, labels in labelled:
        groups.setdefault(record.group, []).append(labels)
    for group, own in sorted(groups.items()):
        counts = np.sum([np.bincount(labels.ravel(), minlength=len(classes) + 1) for labels in own], axis=0)
        annotated = int(counts[1:].sum())
        if annotated:
            order = [label for label in np.argsort(-counts[1:], kind="stable") + 1 if counts[label]]
            parts = ", ".join(f"{classes[label - 1]} {counts[label] / annotated:.1%}" for label in order)
            text = f"{group}: {annotated / counts.sum():.1%} of {counted(len(own), 'core')} annotated: {parts}."
            yield Finding("shares", "note", text)


def _names(classes: Classes) -> Finding:
    if classes.numbered:
        text = f"nothing names the classes: they are called by their labels. {FILE} in the data folder (label,name,"
        return Finding("classes", "note", f"{text}colour) or data.classes names them.")
    return Finding("classes", "note", f"the classes are named by {classes.source}: {', '.join(classes.names)}.")


def _single(labelled: Sequence[tuple[Record, Array]], data: SpectraConfig, names: Sequence[str]) -> Iterator[Finding]:
    """Report labels of one class only: nothing can be learned then, unless `data.ignore` is None."""
    there = sorted({int(label) for _, labels in labelled for label in np.unique(labels)} - {0})
    if data.ignore is not None and len(there) == 1:
        text = f"all annotated pixels are of one class, {names[there[0] - 1]}: training needs two or more."
        yield Finding("classes", "error", text)


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
