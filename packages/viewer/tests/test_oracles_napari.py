"""napari itself: its layers, and a screenshot on a screen made by Xvfb. `bash .ci/run oracles` runs these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runner_core import Label, Layer
from runner_viewer.cases import Case
from runner_viewer.window import fill

pytest.importorskip("napari", reason="napari is not installed (the extra `napari`)")

NAMED = (Label(1, "brain", (255, 0, 0)), Label(7, "other", (0, 0, 255)))
SPACING = (3.0, 1.0, 0.5)


def case(key: str) -> Case:
    labels = np.zeros((4, 6, 8), np.uint8)
    labels[2, :3], labels[2, 3:] = 1, 7
    scan = np.arange(labels.size, dtype=np.int16).reshape(labels.shape)
    layers = [
        Layer("scan", scan, SPACING),
        Layer("dose", scan * 0.5, SPACING, colours="inferno", limits=(0, 9), visible=False),
        Layer("annotated", labels > 0, SPACING, labels=NAMED[:1]), Layer("prediction", labels, SPACING, labels=NAMED),
    ]  # fmt: skip
    return Case(key, "dice 0.5", layers)


def test_layers_have_names_sizes_units_and_colours() -> None:
    from napari.components import ViewerModel

    viewer = ViewerModel()
    fill(viewer, [case("a"), case("b")])
    assert [layer.name for layer in viewer.layers] == [
        f"{key}: {what}" for key in "ab" for what in ("scan", "dose", "annotated", "prediction")
    ]
    scan, dose, annotated, prediction = list(viewer.layers)[:4]
    for layer in viewer.layers:
        assert tuple(layer.scale) == SPACING
        assert {str(unit) for unit in layer.units} == {"millimeter"}
    assert (dose.blending, dose.contrast_limits) == ("additive", [0, 9])
    assert scan.colormap.name == "gray"
    assert (annotated.contour, prediction.contour) == (1, 0)
    assert np.array_equal(prediction.data, case("a").layers[3].values)
    assert prediction.get_color(7)[:3] == pytest.approx([0, 0, 1])
    assert prediction.get_color(0) is None  # the background
    assert prediction.get_color(5)[3] == 0  # no label has this value
    assert [layer.visible for layer in viewer.layers] == [True, False, True, True, False, False, False, False]
    assert viewer.dims.current_step[0] == 2
    assert viewer.text_overlay.text.splitlines() == [
        "a (1 of 2; Page Down, Page Up)", "dice 0.5", "annotated: brain", "prediction: brain, other"
    ]  # fmt: skip
    assert viewer.scale_bar.visible
    keys = {str(key): action for key, action in viewer.keymap.items()}
    for key, first in (("PageDown", False), ("PageUp", True), ("PageUp", False)):
        keys[key](viewer)
        assert scan.visible is first
        assert viewer.layers["b: scan"].visible is not first


@pytest.fixture
def screen() -> Iterator[str]:
    """A screen of Xvfb."""
    if (program := shutil.which("Xvfb")) is None:
        pytest.skip("Xvfb is not installed")
    read, write = os.pipe()
    words = [program, "-displayfd", str(write), "-screen", "0", "1400x1000x24", "-nolisten", "tcp"]
    process = subprocess.Popen(words, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as file:
            yield f":{file.readline().strip()}"
    finally:
        process.terminate()
        process.wait(30)


def test_a_screenshot_shows_the_worst_case(run: Path, toy: dict[str, str], screen: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; from runner_core import main; sys.exit(main(sys.argv[1:]))"]
    words += ["toy", "view", str(run), "--screenshot", str(tmp_path / "a.png")]
    env = {**toy, "DISPLAY": screen, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    env.pop("QT_QPA_PLATFORM", None)
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    if "no Qt platform plugin could be initialized" in done.stderr:
        pytest.skip("libraries that Qt needs for X11 are missing (libxcb-cursor0 and others)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 layers" in done.stdout
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (1200, 900)
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    red = pixels[:, 0] - pixels[:, 1:].max(1)
    assert (red > 60).sum() > 2000  # the square, in the label's colour over the scan
    assert len(np.unique(pixels, axis=0)) > 50
