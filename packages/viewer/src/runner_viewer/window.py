"""Records as layers of napari: names, sizes of voxels, colours of labels; the worst slice in front."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Label, Layer, write_png

from runner_viewer.cases import Case

_FILLED, _OVER = 0.45, 0.6
"""Opacity of labels, and of an image over another one."""
_SHADES = (0.5, 99.5)
"""Percentiles of an image at the ends of its colours."""
_MOST = 100_000
"""Voxels that percentiles are taken from."""
_SIZE = (900, 1200)
"""Height and width of a screenshot."""
_TURNS = 20
"""Turns of Qt's loop before a screenshot, so that everything is drawn."""


def refuse_no_viewer(screenshot: Path | None) -> None:
    """Raise BadInput if there is no napari, no screen, or no place for the screenshot."""
    if find_spec("napari") is None:
        raise BadInput("view needs napari, which is not installed: uv pip install napari pyqt6 (0.7 GB)")
    if screenshot is not None and (screenshot.suffix.lower() != ".png" or not screenshot.absolute().parent.is_dir()):
        raise BadInput(f"--screenshot {screenshot}: name a file .png in a folder that exists")
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    blind = os.environ.get("QT_QPA_PLATFORM", "") in ("offscreen", "minimal")  # Qt has no OpenGL there
    if sys.platform == "linux" and (blind or not screen):
        raise BadInput(
            "napari draws by OpenGL and needs a screen; where there is none, put `xvfb-run -a` (package xvfb) before "
            "the line, and --screenshot FILE.png behind it" + ("; unset QT_QPA_PLATFORM" if blind else "")
        )


def show(cases: Sequence[Case], title: str, screenshot: Path | None) -> None:
    """Open a window with all cases until it is closed; or draw the first one as PNG."""
    import napari

    viewer = napari.Viewer(title=title)
    fill(viewer, cases)
    if screenshot is None:
        napari.run()
        return
    from qtpy.QtWidgets import QApplication

    for _ in range(_TURNS):
        QApplication.processEvents()
    picture = viewer.screenshot(size=_SIZE, canvas_only=True, flash=False)[..., :3]
    viewer.close()
    write_png(screenshot, np.ascontiguousarray(picture))


def fill(viewer: Any, cases: Sequence[Case]) -> None:
    """Add the layers of all cases to a viewer; it shows the first, Page Down and Page Up lead to the others."""
    groups = [_add(viewer, case) for case in cases]
    viewer.scale_bar.visible = True
    viewer.text_overlay.visible, viewer.text_overlay.position = True, "top_left"
    at = 0

    def go(to: int) -> None:
        nonlocal at
        for group in groups:
            for layer in group:
                layer.visible = False
        at = to % len(cases)
        for layer, declared in zip(groups[at], cases[at].layers, strict=True):
            layer.visible = declared.visible
        viewer.text_overlay.text = _caption(cases[at], at, len(cases))
        viewer.reset_view()
        _to_slice(viewer, cases[at].layers)

    viewer.bind_key("PageDown", lambda _: go(at + 1), overwrite=True)
    viewer.bind_key("PageUp", lambda _: go(at - 1), overwrite=True)
    go(0)


def _caption(case: Case, place: int, count: int) -> str:
    where = f" ({place + 1} of {count}; Page Down, Page Up)" if count > 1 else ""
    named = [layer for layer in case.layers if layer.labels and layer.visible]
    legend = [f"{layer.name}: {', '.join(label.name for label in layer.labels)}" for layer in named]
    return "\n".join([case.key + where, *filter(None, [case.text]), *legend])


def _add(viewer: Any, case: Case) -> list[Any]:
    """Add the layers of a case, hidden. Labels below others are outlines, so that both are seen."""
    added = []
    labelled = [layer for layer in case.layers if layer.labels]
    images = [layer for layer in case.layers if not layer.labels]
    for layer in case.layers:
        place = {
            "name": f"{case.key}: {layer.name}", "scale": layer.spacing, "units": (layer.unit,) * layer.values.ndim,
            "visible": False,
        }  # fmt: skip
        if layer.labels:
            made = viewer.add_labels(_whole(layer.values), colormap=_colours(layer.labels), opacity=_FILLED, **place)
            if layer is not labelled[-1]:
                made.contour, made.opacity = 1, 1.0
        else:
            over = {} if layer is images[0] else {"blending": "additive", "opacity": _OVER}
            limits = layer.limits or _limits(layer.values)
            made = viewer.add_image(layer.values, colormap=layer.colours, contrast_limits=limits, **over, **place)
        added.append(made)
    return added


def _whole(values: Array) -> Array:
    """Return labels as integers that napari takes."""
    return values.astype(np.uint8) if values.dtype == bool else values


def _colours(labels: Sequence[Label]) -> Any:
    from napari.utils.colormaps import DirectLabelColormap

    found: dict[int | None, Array] = dict.fromkeys((None, 0), np.zeros(4, np.float32))
    for label in labels:
        found[label.value] = np.array([*label.colour, 255], np.float32) / 255
    return DirectLabelColormap(color_dict=found)


def _limits(values: Array) -> tuple[float, float]:
    flat = values.reshape(-1)[:: max(1, values.size // _MOST)].astype(np.float64)
    finite = flat[np.isfinite(flat)]
    low, high = np.percentile(finite, _SHADES) if finite.size else (0.0, 1.0)
    return (float(low), float(high)) if low < high else (float(low), float(low) + 1)


def _to_slice(viewer: Any, layers: Sequence[Layer]) -> None:
    if layers[0].values.ndim == 3:
        viewer.dims.set_point(0, best_slice(layers) * layers[0].spacing[0])


def best_slice(layers: Sequence[Layer]) -> int:
    """Return the slice to look at first.

    It is where annotation and prediction differ most in their first label; with one layer of labels, where it has most;
    without, where the last image is brightest.
    """
    labels = [layer.values == layer.labels[0].value for layer in layers if layer.labels and layer.visible]
    if len(labels) > 1:
        shown: Array = labels[-1] != labels[-2]
        shown = shown if shown.any() else labels[-1]
    elif labels:
        shown = labels[0]
    else:
        shown = np.nan_to_num([layer.values for layer in layers if not layer.labels][-1].astype(np.float32))
    found = shown.sum(axis=(1, 2), dtype=np.float64)
    return int(found.argmax()) if found.max() > found.min() else len(found) // 2
