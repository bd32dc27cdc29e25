"""The page and the pictures of `interpret`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core import Bar, Markup, Note, Page, Table, html, interval_chart, picture, replace_text, write_png

from runner_ssmunet.figures import class_chart
from runner_ssmunet.filters import NAMED_BANDS

Array = np.ndarray[Any, np.dtype[Any]]

_WORST = 3
HOW = {
    "occlusion": "A window of every spectrum is replaced by the mean of all training tissue, whatever its class.",
    "permutation": "Each pixel gets the window of another tissue pixel of its core.",
}


def text(result: Mapping[str, Any]) -> str:
    """Return the windows without which the network loses most, as one line for each audit."""
    lines = [f"mIoU {result['miou']:.3f} on annotated pixels of tissue"]
    for audit in HOW:
        worst = sorted(result["windows"], key=lambda window: -window[audit]["miou"]["drop"])[:_WORST]
        named = ", ".join(f"{_label(window)} {window[audit]['miou']['drop']:+.3f}" for window in worst)
        lines.append(f"largest drop of the mIoU by {audit}: {named}")
    return "\n".join(lines)


def write(out: Path, result: Mapping[str, Any], spectra: Mapping[str, Array], axis: Array, project: Any) -> None:
    """Write report.html and the pictures in it."""
    colours = project.classes.colours
    pictures = {
        "class-means": class_chart({n: s[0] for n, s in spectra.items()}, axis, NAMED_BANDS, colours, "class means"),
        "class-differences": class_chart(
            {n: s[1] for n, s in spectra.items()}, axis, NAMED_BANDS, colours, "class mean less the mean of all classes"
        ),
    }
    for name, drawn in pictures.items():
        write_png(out / f"{name}.png", drawn)
    sections = [(audit, [*_audit(result, audit)]) for audit in HOW]
    sections.append(("spectra of the classes", [picture(_png(drawn), name) for name, drawn in pictures.items()]))
    about = [Note(line) for line in text(result).splitlines()]
    about += [Note(f"{result['run']}, {result['checkpoint']}; {result['cores']} cores of {result['groups']} groups")]
    about += [Note(note, "note", "note") for note in result["notes"]]
    replace_text(
        out / "report.html", html(Page("Interpretation", "Which wavenumbers the network uses", about, sections))
    )


def _audit(result: Mapping[str, Any], audit: str) -> Iterator[Note | Markup | Table]:
    yield Note(
        f"{HOW[audit]} The drop of the mIoU (↑ worse without it), with 95 % intervals over groups of cores. A window "
        "without a drop may say what another one says too."
    )
    bars = []
    for window in result["windows"]:
        value = window[audit]["miou"]
        low, high = (value[end] if np.isfinite(value[end]) else value["drop"] for end in ("low", "high"))
        bars.append(Bar(_label(window), value["drop"], low, high, "a", f"{value['drop']:+.3f}", _label(window)))
    yield Markup(interval_chart(f"drop of the mIoU by {audit}, by window (cm⁻¹)", bars))
    names = list(result["iou"])
    rows: list[list[str | float]] = [
        [_label(window), *(window[audit][name]["drop"] for name in names)] for window in result["windows"]
    ]
    yield Table(audit, "Drop of each class's IoU", ("window, cm⁻¹", *names), rows)


def _label(window: Mapping[str, Any]) -> str:
    return " ".join([f"{window['low']:.0f}–{window['high']:.0f}", *window["bands"]])


def _png(drawn: Array) -> bytes:
    data = BytesIO()
    Image.fromarray(drawn).save(data, "PNG")
    return data.getvalue()
