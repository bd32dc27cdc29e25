"""What `runner ssmunet check` looks for in cores that can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from runner_core import BadInput, Record
from runner_core._text import counted
from runner_core.protocols import Finding

from runner_ssmunet.axis import plan
from runner_ssmunet.config import SpectraConfig
from runner_ssmunet.cores import Core, read_outline, stored_labels
from runner_ssmunet.statistics import axes_differ, spacing

Array = np.ndarray[Any, np.dtype[Any]]

ABSORBANCE = (-0.5, 5.0)
"""Values that a spectrometer can measure: beyond them the detector is saturated, or it is no absorbance."""
FLAT = 1e-4
"""A spectrum whose values all lie within this is nobody's."""
CLIPPED = 5
"""Wavenumbers that share a spectrum's highest value where it was cut off there."""
STRAY = 0.01
"""Share of the tissue up to which odd pixels are noted without a warning."""
SCARCE = 0.01
"""Annotated share of a core below which it teaches little."""
EVERYWHERE = 0.5
"""Share of what is no tissue above which a label cannot be a tissue's."""
TISSUE = (0.02, 0.95)
"""Share of its image that a core fills."""


def findings(core: Core, tissue: Array, path: Path, data: SpectraConfig) -> Iterator[Finding]:
    """What looks wrong in one core; `tissue` (H, W) bool as `preprocess.tissue_mask` gives it."""
    name = path.name
    yield from (Finding("axis", "note", f"{name}: {remark}.") for remark in core.remarks)
    yield from _spacing(name, core)
    share = float(tissue.mean())
    if not TISSUE[0] <= share <= TISSUE[1]:
        yield _warning("tissue", f"{name}: {share:.1%} of the pixels are tissue; is the mask right?")
    yield from _spectra(name, core, tissue)
    if core.labels is not None:
        labels = stored_labels(core, path, data.classes, data.ignore, needed=False)
        yield from _labels(name, labels, tissue, data.classes, data.ignore)


def set_findings(records: Sequence[Record], data: SpectraConfig) -> Iterator[Finding]:
    """What no core shows alone: the class table, axes that differ, classes that few patients have.

    Reads labels and axes, no spectra; cores that cannot be read are left out (`findings` names them).
    """
    labelled: list[tuple[Record, Array]] = []
    axes: list[tuple[Path, Array]] = []
    for record in records:
        path = record.files["core"]
        try:
            outline = read_outline(path)
            axes.append((path, plan(outline.wavenumbers, data, path.name).wavenumbers))
            labelled.append((record, stored_labels(outline, path, data.classes, data.ignore, needed=False)))
        except BadInput:
            continue
    yield from _axes(axes)
    yield from _classes(labelled, data.classes)
    yield from _single(labelled, data)


def left_out(records: Sequence[Record]) -> Iterator[Finding]:
    """Cores `records` without labels, among others that have some."""
    if records:
        shown = ", ".join(record.files["core"].name for record in records[:5]) + (", …" if len(records) > 5 else "")
        text = f"{counted(len(records), 'core')} without labels, left out of training and scores: {shown}."
        yield _warning("labels", text)


def _spacing(name: str, core: Core) -> Iterator[Finding]:
    said = core.meta.get("delta_cm1")
    steps = np.diff(core.wavenumbers)
    if isinstance(said, int | float) and not (np.abs(steps / abs(said or 1) - 1) < 0.02).any():
        text = f"{name}: delta_cm1 is {said:g}, but wn has spacings from {steps.min():.4g} to {steps.max():.4g} cm⁻¹."
        yield _warning("axis", text)


def _spectra(name: str, core: Core, tissue: Array) -> Iterator[Finding]:
    pixels = core.spectra[tissue]
    if not len(pixels):
        return
    low, high = pixels.min(1), pixels.max(1)
    flat = high - low < FLAT
    clipped = ~flat & ((pixels == high[:, None]).sum(1) >= CLIPPED)
    reach = f"outside {ABSORBANCE[0]:g} to {ABSORBANCE[1]:g} (from {low.min():.3g} to {high.max():.3g})"
    faults = {
        "range": ((low < ABSORBANCE[0]) | (high > ABSORBANCE[1]), f"absorbances {reach}; is it transmittance?"),
        "flat": (flat, "a flat spectrum; dead detector pixels?"),
        "saturated": (clipped, f"the same highest value at {CLIPPED} wavenumbers or more; saturated?"),
    }
    for rule, (where, what) in faults.items():
        if count := int(np.count_nonzero(where)):
            level: Literal["note", "warning"] = "warning" if count > STRAY * len(pixels) else "note"
            pixel = f"{counted(count, 'tissue pixel')} ({count / len(pixels):.1%})"
            yield Finding(rule, level, f"{name}: {pixel} with {what}")


def _labels(name: str, labels: Array, tissue: Array, classes: Sequence[str], ignore: int | None) -> Iterator[Finding]:
    annotated = labels > 0
    share = float(annotated.mean())
    if share < SCARCE:
        yield _warning("annotation", f"{name}: {share:.2%} of the pixels are annotated.")
    else:
        yield Finding("annotation", "note", f"{name}: {share:.1%} of the pixels are annotated.")
    off = int(np.count_nonzero(annotated & ~tissue))
    if off > 0.05 * np.count_nonzero(annotated):
        text = f"{name}: {off / np.count_nonzero(annotated):.0%} of the annotated pixels are no tissue, so that their "
        yield _warning("annotation", f"{text}spectra are not looked at; is the labels' grid shifted or mirrored?")
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
    """Axes as they would be cached: what is cropped away may differ."""
    differing = [(path, how) for path, axis in axes[1:] if (how := axes_differ(axes[0][1], axis))]
    if differing:
        path, how = differing[0]
        more = f" (and {counted(len(differing) - 1, 'other core')})" if len(differing) > 1 else ""
        text = f"{axes[0][0].name} and {path.name}{more} have different wavenumbers: {how}. Training needs one axis: "
        yield Finding("axes", "error", f"{text}set data.step ({spacing(axes[0][1]):.3g} cm⁻¹, say).")


def _classes(labelled: Sequence[tuple[Record, Array]], classes: Sequence[str]) -> Iterator[Finding]:
    """The class table, a line a class, and what is wrong with it."""
    if not labelled:
        return
    size = len(classes) + 1
    counts = np.stack([np.bincount(labels.ravel(), minlength=size)[:size] for _, labels in labelled])
    groups = np.array([record.group for record, _ in labelled])
    annotated = max(int(counts[:, 1:].sum()), 1)
    share = counts[:, 1:].sum() / max(counts.sum(), 1)
    yield Finding("classes", "note", f"{share:.1%} of all pixels are annotated.")
    for label, name in enumerate(classes, start=1):
        own = counts[:, label]
        where = f"in {counted(int((own > 0).sum()), 'core')} of {counted(len(set(groups[own > 0])), 'group')}"
        if not own.any():
            yield _warning("classes", f"class {label} {name}: not one annotated pixel in all cores that can be read.")
        elif len(set(groups[own > 0])) == 1:
            text = f"class {label} {name}: only group {groups[own > 0][0]} has it, so that it cannot be trained and "
            yield _warning("classes", f"{text}validated both.")
        else:
            pixels = f"{counted(int(own.sum()), 'pixel')}, {own.sum() / annotated:.1%} of the annotated"
            yield Finding("classes", "note", f"class {label} {name}: {pixels}, {where}.")
    alone = [group for group in dict.fromkeys(groups) if (counts[groups == group, 1:].sum(0) > 0).sum() == 1]
    if alone and len(classes) > 1:
        shown = ", ".join(alone[:5]) + (", …" if len(alone) > 5 else "")
        yield _warning("groups", f"{counted(len(alone), 'group')} with annotated pixels of one class only: {shown}.")


def _single(labelled: Sequence[tuple[Record, Array]], data: SpectraConfig) -> Iterator[Finding]:
    """Of one class alone nothing can be learned; without `data.ignore` the unannotated are another."""
    there = sorted({int(label) for _, labels in labelled for label in np.unique(labels)} - {0})
    if data.ignore is not None and len(there) == 1:
        text = f"all annotated pixels are of one class, {data.classes[there[0] - 1]}: training needs two or more."
        yield Finding("classes", "error", text)


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
