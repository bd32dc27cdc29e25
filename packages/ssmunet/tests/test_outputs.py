"""The files that `predict` writes for a core."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from PIL import Image
from runner_core import BadInput
from runner_ssmunet import drawings, outputs
from runner_ssmunet.classes import labels_of, palette
from runner_ssmunet.drawings import trace

NAMES = ("a", "b", "c")
LABELS = np.array([1, 2, 3], np.uint8)


@pytest.fixture
def prediction() -> outputs.Segmented:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3) * 0.2, (6, 9)).transpose(2, 0, 1).astype(np.float32)
    tissue = rng.random((6, 9)) < 0.7
    return outputs.segmented(probabilities, tissue, LABELS, np.ones(5) / 5)


def test_classes_are_the_likeliest_labels_on_tissue(prediction: outputs.Segmented) -> None:
    inside = prediction.tissue
    assert (prediction.classes[~inside] == 0).all()
    assert (prediction.probabilities[:, ~inside] == 0).all()
    assert (prediction.classes[inside] == prediction.probabilities.argmax(0)[inside] + 1).all()


def test_an_output_that_stands_for_label_zero_is_written_as_zero() -> None:
    probabilities = np.zeros((2, 1, 2), np.float32)
    probabilities[0, 0, 0] = probabilities[1, 0, 1] = 1
    found = outputs.segmented(probabilities, np.ones((1, 2), bool), np.array([0, 1], np.uint8), np.empty(0))
    assert found.classes.tolist() == [[0, 1]]


def test_files_hold_labels_probabilities_and_names(prediction: outputs.Segmented, tmp_path: Path) -> None:
    axis = np.linspace(900, 1800, 5)
    picture, arrays = outputs.write(prediction, "core_1", tmp_path / "out", NAMES, axis)
    assert [picture.name, arrays.name] == ["core_1_classes.png", "core_1_classes.npz"]
    with Image.open(picture) as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), prediction.classes)
        shown = np.asarray(image.convert("RGB"))
    assert np.array_equal(shown, palette(3)[prediction.classes])
    with np.load(arrays, allow_pickle=False) as found:
        assert np.array_equal(found["classes"], prediction.classes)
        assert found["probabilities"].dtype == np.float16
        assert found["probabilities"].shape == (3, 6, 9)
        assert found["class_names"].tolist() == list(NAMES)
        assert found["wavenumbers"].tolist() == axis.tolist()
    assert outputs.shape(picture) == outputs.shape(arrays) == [6, 9]
    assert outputs.shape(tmp_path / "core_1.npz") is None


def test_a_folder_that_cannot_be_written_to_is_named(prediction: outputs.Segmented, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file.*cannot be written"):
        outputs.write(prediction, "core_1", tmp_path / "file" / "out", NAMES, np.arange(5.0))


def test_what_is_worth_a_remark() -> None:
    sure = np.zeros((3, 2, 2), np.float32)
    sure[1] = 1
    everywhere, nowhere = np.ones((2, 2), bool), np.zeros((2, 2), bool)
    none = np.empty(0)
    assert not list(outputs.remarks(outputs.segmented(sure, everywhere, LABELS, none), None))
    (empty,) = outputs.remarks(outputs.segmented(sure, nowhere, LABELS, none), None)
    assert "no tissue" in empty.message
    (doubt,) = outputs.remarks(outputs.segmented(np.full_like(sure, 1 / 3), everywhere, LABELS, none), None)
    assert "0.33" in doubt.message
    half = np.array([[True, True], [True, False]])
    (missed,) = outputs.remarks(outputs.segmented(sure, half, LABELS, none), np.eye(2, dtype=bool))
    assert missed.message.startswith("1 annotated pixel")
    assert not list(outputs.remarks(outputs.segmented(sure, half, LABELS, none), half))


def test_ome_tiff_is_what_was_predicted(prediction: outputs.Segmented, tmp_path: Path) -> None:
    """Read by ome-types, which holds the file's description against the schema of OME, and by tifffile."""
    ome_types, tifffile = pytest.importorskip("ome_types"), pytest.importorskip("tifffile")
    labels = labels_of(NAMES, {2: (255, 0, 1)})
    options = outputs.SpectraPredictOptions(ome_tiff=True)
    (path,) = outputs.write_more(prediction, "core_1", tmp_path, NAMES, labels, options)
    assert path.name == "core_1_classes.ome.tif"
    classes, probabilities = ome_types.from_tiff(path).images
    assert (classes.name, probabilities.name) == ("core_1: classes", "core_1: probabilities")
    sizes = [(image.pixels.size_x, image.pixels.size_y, image.pixels.size_c) for image in (classes, probabilities)]
    assert sizes == [(9, 6, 1), (9, 6, 3)]
    assert (classes.pixels.type.value, probabilities.pixels.type.value) == ("uint8", "float")
    assert [channel.name for channel in probabilities.pixels.channels] == list(NAMES)
    assert [channel.color.as_rgb_tuple()[:3] for channel in probabilities.pixels.channels] == [
        label.colour for label in labels
    ]
    assert classes.pixels.physical_size_x is None
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        assert np.array_equal(file.series[0].asarray(), prediction.classes)
        assert np.array_equal(file.series[1].asarray(), prediction.probabilities.astype(np.float32))


def test_geojson_holds_the_regions_of_each_class(prediction: outputs.Segmented, tmp_path: Path) -> None:
    labels, options = labels_of(NAMES), outputs.SpectraPredictOptions(geojson=True)
    (path,) = outputs.write_more(prediction, "core_1", tmp_path, NAMES, labels, options)
    found = drawings.geojson.read(path)
    assert {shape.name: shape.colour for shape in found.shapes} == {label.name: label.colour for label in labels}
    painted, _ = drawings.painted(found.shapes, NAMES, (6, 9), None, path)
    assert np.array_equal(painted, prediction.classes)
    assert path.read_text() == trace.to_geojson(prediction.classes, labels, "core_1")
    assert '"features": []' in trace.to_geojson(np.zeros((4, 4), np.uint8), labels, "empty")


@given(numpy_arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_traced_regions_are_valid_and_cover_their_pixels_exactly(mask: np.ndarray) -> None:
    """By shapely (GEOS), whose rules of validity are those of JTS, with which QuPath reads them."""
    shapely = pytest.importorskip("shapely")
    whole = shapely.MultiPolygon([(rings[0], rings[1:]) for rings in trace.regions(mask)])
    assert shapely.is_valid(whole), shapely.is_valid_reason(whole)
    assert whole.area == mask.sum()
    pixels = shapely.union_all([shapely.box(x, y, x + 1, y + 1) for y, x in np.argwhere(mask)])
    assert whole.symmetric_difference(pixels).area == 0


def test_a_format_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    outputs.refuse(outputs.SpectraPredictOptions(geojson=True))
    with pytest.raises(BadInput, match=r"--ome-tiff .* uv pip install tifffile"):
        outputs.refuse(outputs.SpectraPredictOptions(ome_tiff=True))
