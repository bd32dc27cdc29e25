"""Annotations from QuPath, ImageJ and colour pictures: which pixels they cover, on which grid, and what is refused."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roifile
import shapely
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from runner_core import BadInput
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.drawings import landmarks, shapes
from runner_ssmunet.drawings.shapes import Shape, covered
from runner_ssmunet.files import read_outline
from runner_ssmunet.project import SSMUNet

WriteCore = Callable[..., Path]
GRID = (12, 14)


@pytest.fixture
def core(write_core: WriteCore) -> Path:
    """A core of 12 × 14 pixels (rows × columns) without labels."""
    return write_core("core_1", y=None)


def feature(name: str | None, coordinates: Any, kind: str = "Polygon", **about: Any) -> dict[str, Any]:
    properties = about if name is None else {"objectType": "annotation", "classification": {"name": name}} | about
    return {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": properties}


def box(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]


def geojson(core: Path, *features: Any) -> Path:
    path = core.with_name("core_1.geojson")
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def named(core: Path) -> np.ndarray:
    """The class of each pixel as text, "" for none."""
    found = read_outline(core)
    assert found.labels is not None
    return np.array(["", *found.label_names])[found.labels]


def pixels(shape: Shape, grid: tuple[int, int] = GRID) -> np.ndarray:
    rows, columns, mask = covered(shape, grid)
    whole = np.zeros(grid, bool)
    whole[rows, columns] = mask
    return whole


def star(radii: list[float], x: float, y: float) -> list[tuple[float, float]]:
    """Corners around a middle point: an outline that does not cross itself."""
    angles = 2 * np.pi * np.arange(len(radii)) / len(radii)
    return [(x + r * float(np.cos(a)), y + r * float(np.sin(a))) for r, a in zip(radii, angles, strict=True)]


@given(st.lists(st.floats(2, 14), min_size=3, max_size=12), st.floats(-2, 16), st.floats(-2, 14), st.booleans())
def test_a_pixel_belongs_to_a_region_if_its_centre_does(radii: list[float], x: float, y: float, hole: bool) -> None:
    """As shapely says, with a hole or without; a centre within rounding of an edge may be either."""
    border, inner = star(radii, x, y), star([0.9] * 5, x, y)
    wanted = shapely.Polygon(border, [inner] if hole else [])
    found = pixels(Shape("a", [[np.array(border), np.array(inner)] if hole else [np.array(border)]]))
    rows, columns = np.mgrid[: GRID[0], : GRID[1]] + 0.5
    clear = shapely.distance(wanted.boundary, shapely.points(columns, rows)) > 1e-6
    np.testing.assert_array_equal(found[clear], shapely.contains_xy(wanted, columns, rows)[clear])


def test_adjacent_regions_share_no_pixel_and_leave_none_out() -> None:
    """Even where their common edges run through centres of pixels."""
    grid = np.zeros(GRID, int)
    for left, right in ((0, 3.5), (3.5, 9.5), (9.5, 14)):
        for top, bottom in ((0, 2.5), (2.5, 12)):
            grid += pixels(Shape("a", [[np.array(box(left, top, right, bottom)[:4])]]))
    assert (grid == 1).all()
    one, two = [(0, 0), (14, 0), (0, 14)], [(14, 0), (14, 14), (0, 14)]
    both = [pixels(Shape("a", [[np.array(t, float)]]), (14, 14)).astype(int) for t in (one, two)]
    assert (sum(both) == 1).all()


def test_qupath_regions_with_holes_classes_and_colours(core: Path) -> None:
    stroma = [[box(0, 0, 6, 6), box(2, 2, 4, 4)], [box(8, 8, 10, 10)]]
    path = geojson(
        core,
        feature("Stroma", stroma, "MultiPolygon", classification={"name": "Stroma", "colorRGB": -3670016}),
        feature("Tumor", [box(1, 1, 3, 5)], classification={"names": ["Tumor", "CD3"], "color": [0, 128, 0]}),
        feature("Region*", [box(0, 0, 14, 12)]),
        feature(None, [box(0, 0, 14, 12)], objectType="annotation"),
        feature("Tumor", [box(11, 0, 12, 1)], objectType="detection"),
        feature("Tumor", [[11, 0], [12, 1]], "LineString"),
        feature("Stroma", [box(12.6, 2, 13.4, 2.4)]),
        feature("Stroma", [box(30, 2, 33, 4)]),
    )
    wanted = np.full(GRID, "", dtype="U11")
    wanted[:6, :6] = "Stroma"
    wanted[2:4, 2:4] = ""
    wanted[8:10, 8:10] = "Stroma"
    wanted[1:5, 1:3] = "Tumor: CD3"  # the smaller region
    np.testing.assert_array_equal(named(core), wanted)
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    assert record.files["labels"] == path
    assert (project.outputs, project.classes.colours) == (("Stroma", "Tumor: CD3"), {1: (200, 0, 0), 2: (0, 128, 0)})
    label = project.decode(record).arrays["label"]
    np.testing.assert_array_equal(label, np.searchsorted(["", "Stroma", "Tumor: CD3"], wanted))
    said = " ".join(f.message for f in project.checks().record(record) if f.rule == "annotation")  # type: ignore[misc]
    assert "objects left out: 1 of Region*, 1 without a class, 1 detections, 1 without an area" in said
    assert "overlap in 6 pixels (15.8% of the annotated): the smaller region counts there" in said
    assert "core_1.geojson: 1 region beside the core" in said
    assert "core_1.geojson: 1 region without any pixel's centre" in said
    (shares,) = [f.message for f in project.checks().records([record]) if f.rule == "shares"]  # type: ignore[misc]
    assert shares == "P1: 22.6% of 1 core annotated: Stroma 78.9%, Tumor: CD3 21.1%."


def test_the_table_of_classes_decides_their_numbers_and_others_are_refused(core: Path) -> None:
    geojson(core, feature("b", [box(0, 0, 2, 2)]), feature("a", [box(4, 0, 6, 2)]))
    (core.parent / "classes.csv").write_text("label,name\n1,b\n2,a\n")
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    assert project.decode(record).arrays["label"][0, :6].tolist() == [1, 1, 0, 0, 2, 2]
    (core.parent / "classes.csv").write_text("label,name\n1,b\n2,an\n")
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    with pytest.raises(
        BadInput, match=r"its annotation names a, which is no class; did you mean 'an'\?; the classes are"
    ):
        project.decode(record)


def test_classes_that_are_numbered_in_one_core_and_named_in_another_need_a_table(
    core: Path, write_core: WriteCore
) -> None:
    geojson(core, feature("a", [box(0, 0, 2, 2)]))
    write_core("core_2")
    with pytest.raises(BadInput, match=r"some annotations name their classes \(a\), and core_2.npz numbers them"):
        SSMUNet(SSMConfig()).records(core.parent)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable GeoJSON file"),
        ("[[1]]", "object 1 is no GeoJSON feature"),
        ('{"features": 3}', "it holds no list of features"),
        ([feature(None, [box(0, 0, 1, 1)])], r"no annotation with a class and an area \(1 without a class\)"),
        ([feature("a", [["x"]])], "object 1: its Polygon has what is no list of x and y"),
        ([feature("a", [box(0, 0, 1e9, 1)])], "object 1: its Polygon has what is no list"),
        ([feature("a", [box(0, 0, 10**400, 1)])], "object 1: its Polygon has what is no list"),
        ([feature("a", [box(100, 0, 120, 30)])], "reach from x 100 to 120 and y 0 to 30 in the core's pixels, and"),
    ],
)
def test_geojson_that_is_wrong(core: Path, content: Any, message: str) -> None:
    path = core.with_name("core_1.geojson")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BadInput, match=f"core_1.geojson: .*{message}"):
        read_outline(core)


def test_two_annotations_of_one_core_are_refused_by_name(core: Path) -> None:
    geojson(core, feature("a", [box(0, 0, 2, 2)]))
    Image.fromarray(np.ones(GRID, np.uint8)).save(core.with_name("core_1.labels.png"))
    with pytest.raises(BadInput, match=r"two files with its labels: core_1.labels.png and core_1.geojson. Remove one"):
        read_outline(core)


# ---------------------------------------------------------------- ImageJ


def save_rois(core: Path, *rois: roifile.ImagejRoi) -> Path:
    path = core.with_name("core_1.roi.zip")
    roifile.roiwrite(path, rois, mode="w")
    return path


def test_imagej_polygons_rectangles_ovals_and_composites(core: Path) -> None:
    polygon = roifile.ImagejRoi.frompoints(np.array([[1, 1], [5, 1], [5, 4], [1, 4]], np.float32), name="tumour-1")
    again = roifile.ImagejRoi.frompoints(np.array([[0, 9], [3, 9], [3, 12], [0, 12]], np.int32), name="tumour-2")
    rectangle = roifile.ImagejRoi(
        roitype=roifile.ROI_TYPE.RECT, left=10, top=0, right=13, bottom=2, name="blood", fill_color=b"\xff\x10\x20\x30"
    )
    oval = roifile.ImagejRoi(roitype=roifile.ROI_TYPE.OVAL, left=6, top=4, right=14, bottom=10, name="stroma")
    line = roifile.ImagejRoi(roitype=roifile.ROI_TYPE.LINE, x1=0, y1=0, x2=5, y2=5, name="scale")
    path = [0, 4, 8, 1, 8, 8, 1, 8, 12, 1, 4, 12, 4, 0, 5, 9, 1, 7, 9, 1, 7, 11, 1, 5, 11, 4]
    ring = roifile.ImagejRoi(
        roitype=roifile.ROI_TYPE.RECT,
        shape_roi_size=len(path),
        multi_coordinates=np.array(path, np.float32),
        name="ring",
    )
    ring.left, ring.top, ring.right, ring.bottom = 4, 8, 8, 12
    save_rois(core, polygon, again, rectangle, oval, line, ring)
    wanted = np.full(GRID, "", dtype="U6")
    rows, columns = np.mgrid[: GRID[0], : GRID[1]] + 0.5
    wanted[((columns - 10) / 4) ** 2 + ((rows - 7) / 3) ** 2 < 1] = "stroma"
    wanted[8:12, 4:8] = "ring"
    hole = (columns > 5) & (columns < 7) & (rows > 9) & (rows < 11)
    wanted[hole] = np.where(((columns - 10) / 4) ** 2 + ((rows - 7) / 3) ** 2 < 1, "stroma", "")[hole]
    wanted[1:4, 1:5] = wanted[9:12, 0:3] = "tumour"
    wanted[0:2, 10:13] = "blood"
    np.testing.assert_array_equal(named(core), wanted)
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    assert project.outputs == ("blood", "ring", "stroma", "tumour")
    assert project.classes.colours == {1: (16, 32, 48)}
    said = " ".join(f.message for f in project.checks().record(record) if f.rule == "annotation")  # type: ignore[misc]
    assert "1 without an area" in said


def test_the_smaller_region_counts_over_one_of_two_pieces() -> None:
    """A composite region of ImageJ is one polygon of two rings, of which the second need not be a hole."""
    pieces = Shape("a", [[np.array(box(0, 0, 4, 4)), np.array(box(6, 0, 14, 8))]])
    small = Shape("b", [[np.array(box(1, 1, 3, 3))]])
    labels, _ = shapes.painted([small, pieces], ("a", "b"), GRID, None, Path("core_1.roi.zip"))
    assert (labels == 2).sum() == 4


def test_rois_that_are_wrong(core: Path) -> None:
    square = np.array([[1, 1], [5, 1], [5, 4]], np.float32)
    path = save_rois(core, roifile.ImagejRoi.frompoints(square, name="0012-0345"))
    with pytest.raises(BadInput, match=r"core_1.roi.zip: 0012-0345: ImageJ's own names, which say no class. Rename"):
        read_outline(core)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tumour.roi", b"Iout")
    with pytest.raises(BadInput, match=r"region tumour.roi is damaged"):
        read_outline(core)
    path.write_bytes(b"PK nothing")
    with pytest.raises(BadInput, match=r"core_1.roi.zip: not a readable file of regions"):
        read_outline(core)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no regions")
    with pytest.raises(BadInput, match="it has no region with an area"):
        read_outline(core)
    path.unlink()
    roifile.ImagejRoi.frompoints(square, name="tumour").tofile(core.with_name("core_1.roi"))
    assert set(named(core).ravel()) == {"", "tumour"}


# ---------------------------------------------------------------- landmarks


def marks(core: Path, rows: list[tuple[float, ...]], columns: str = "x_image,y_image,x_ir,y_ir") -> Path:
    path = core.with_name("core_1.landmarks.csv")
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def through(matrix: np.ndarray, corners: list[tuple[float, float]]) -> list[tuple[float, ...]]:
    """Landmarks of the core at `corners`; `matrix` leads from the core to the picture."""
    return [(*(matrix[:, :2] @ corner + matrix[:, 2]).tolist(), *corner) for corner in map(np.array, corners)]


CORNERS = [(1.0, 1.0), (13.0, 2.0), (12.0, 11.0), (2.0, 10.0)]


@given(st.floats(0, 360), st.floats(2, 50), st.booleans(), st.floats(-500, 500), st.randoms(use_true_random=False))
def test_landmarks_give_back_the_affine_map(
    tmp_path_factory: pytest.TempPathFactory, angle: float, scale: float, flipped: bool, away: float, random: Any
) -> None:
    a = np.radians(angle)
    turn = scale * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) @ np.diag([-1 if flipped else 1, 1])
    path = marks(tmp_path_factory.mktemp("marks") / "core_1.npz", through(np.c_[turn, [away, 3]], CORNERS))
    found = landmarks.read(path, GRID)
    np.testing.assert_allclose(found.matrix[:, :2] @ turn, np.eye(2), atol=1e-6)
    assert ("mirrored" in found.remarks[0][1]) == flipped
    assert f"one pixel of the core is {scale:.3g} of the picture" in found.remarks[0][1]
    assert found.remarks[0][0] == "note"


def test_regions_of_a_turned_and_mirrored_picture_lie_where_they_were_drawn(core: Path) -> None:
    """A region is drawn in the picture's coordinates, and a number or colour picture is sampled at centres."""
    matrix = np.array([[0.0, -10.0, 300.0], [-10.0, 0.0, 200.0]])
    marks(core, through(matrix, CORNERS))
    corners = [(matrix[:, :2] @ np.array(c) + matrix[:, 2]).tolist() for c in box(3, 2, 9, 6)]
    path = geojson(core, feature("a", [corners]))
    wanted = np.zeros(GRID, bool)
    wanted[2:6, 3:9] = True
    np.testing.assert_array_equal(named(core) == "a", wanted)
    path.unlink()
    picture = np.zeros((320, 320), np.uint8)
    (left, top), (right, bottom) = np.min(corners, 0).astype(int), np.max(corners, 0).astype(int)
    picture[top:bottom, left:right] = 1
    Image.fromarray(picture).save(core.with_name("core_1.labels.tif"))
    np.testing.assert_array_equal(read_outline(core).labels == 1, wanted)
    project = SSMUNet(SSMConfig(data=SSMConfig().data))
    project.config.data.classes = ("a", "b")
    (record,) = project.records(core.parent)
    assert record.files["landmarks"].name == "core_1.landmarks.csv"
    said = [f.message for f in project.checks().record(record) if f.rule == "annotation"]  # type: ignore[misc]
    assert any("one pixel of the core is 10 of the picture, mirrored left to right (right if" in text for text in said)
    assert any("residuals of 4 landmarks" in text for text in said)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, 1, 1), (10, 0, 2, 1)], "2 landmarks; an affine map needs three or more"),
        ([(0, 0, 1, 1), (10, 10, 2, 2), (20, 20, 3, 3.0001)], "the landmarks lie on one line in the picture"),
        ([(0, 0, 1, 1), (100, 0, 11, "x"), (0, 100, 1, 11)], "line 3: y_ir is 'x'; a number of pixels is needed"),
        ([(0, 0, 1, 1), (100, 0, 110, 1), (0, 100, 1, 11)], "line 3: x_ir 110, y_ir 1 lies beside the core"),
        ([(0, 0, 1, 1), (100, 0, 11, 1), (0, 100, 11, 11), (100, 100, 1, 11)], "no affine map fits these landmarks"),
        ([(0, 0, 1, 1), (100, 0, 11, 1), (0, 1000, 1, 11)], "10.0 times as much along one axis"),
    ],
)
def test_landmarks_that_cannot_be_right(core: Path, rows: list[tuple[Any, ...]], message: str) -> None:
    path = marks(core, rows)
    with pytest.raises(BadInput, match=f"{path.name}: .*{re.escape(message)}"):
        landmarks.read(path, GRID)


# ---------------------------------------------------------------- colours


RED, GREEN, WHITE = (255, 0, 0), (0, 200, 0), (255, 255, 255)


def painted(core: Path, name: str = "core_1.labels.png", smooth: bool = False) -> tuple[Path, np.ndarray]:
    """A picture with a red and a green area on white; smoothed: their borders hold mixed colours."""
    rgb = np.full((*GRID, 3), WHITE, np.uint8)
    rgb[1:6, 1:6], rgb[6:11, 4:13] = RED, GREEN
    sharp = rgb.copy()
    if smooth:
        rgb[5, 1:6], rgb[6, 6:13], rgb[6, 4:6] = (255, 120, 120), (120, 226, 122), (128, 100, 0)
    path = core.with_name(name)
    Image.fromarray(rgb).save(path)
    return path, sharp


@pytest.mark.parametrize("name", ["core_1.labels.png", "core_1.labels.tif"])
@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("colours.csv", "colour,name\n#ff0000,tumour\n#00c800,stroma\n#ffffff,\n"),
        ("colours.json", '{"#ff0000": "tumour", "#00c800": "stroma", "#ffffff": null}'),
        ("classes.csv", "label,name,colour\n0,nothing,#ffffff\n1,stroma,#00c800\n2,tumour,#ff0000\n"),
    ],
)
def test_a_colour_picture_with_a_table(core: Path, table: str, text: str, name: str) -> None:
    _, rgb = painted(core, name)
    (core.parent / table).write_text(text)
    wanted = np.where((rgb == RED).all(-1), "tumour", np.where((rgb == GREEN).all(-1), "stroma", ""))
    np.testing.assert_array_equal(named(core), wanted)
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    assert (project.outputs, record.files["colours"].name) == (("stroma", "tumour"), table)
    np.testing.assert_array_equal(project.decode(record).arrays["label"] == 2, wanted == "tumour")


def test_borders_of_mixed_colours_are_unannotated_and_near_colours_are_taken(core: Path) -> None:
    path, rgb = painted(core, smooth=True)
    (core.parent / "colours.csv").write_text("colour,name\n#ff0000,tumour\n#00c800,stroma\n#ffffff,\n")
    wanted = np.where((rgb == RED).all(-1), "tumour", np.where((rgb == GREEN).all(-1), "stroma", ""))
    wanted[5, 1:6] = wanted[6, 4:13] = ""
    np.testing.assert_array_equal(named(core), wanted)
    said = [text for _, text in read_outline(core).label_remarks]
    assert f"{path.name}: 14 pixels of mixed colours on the borders of areas: unannotated" in said
    changed = np.asarray(Image.open(path)).copy()
    changed[2, 2] = (250, 6, 3)
    Image.fromarray(changed).save(path)
    np.testing.assert_array_equal(named(core), wanted)
    assert any("1 pixel of a colour that differs by up to 10" in text for _, text in read_outline(core).label_remarks)


def test_colours_that_no_table_names_are_refused_with_their_pixels(core: Path) -> None:
    path, _ = painted(core)
    with pytest.raises(BadInput, match=r"a colour picture \(RGB\); .*a table of its colours .* colours.csv"):
        read_outline(core)
    (core.parent / "colours.csv").write_text("colour,name\n#ff0000,tumour\n#0000ff,blood\n")
    with pytest.raises(
        BadInput, match=r"2 colours that .*colours.csv does not name: #ffffff \(67 pixels\), #00c800 \(45"
    ):
        read_outline(core)
    (core.parent / "colours.json").write_text("{}")
    with pytest.raises(BadInput, match=r"two tables of colours: colours.csv and colours.json"):
        read_outline(core)
    (core.parent / "colours.json").unlink()
    (core.parent / "colours.csv").write_text("colour,name\nred,tumour\n")
    with pytest.raises(BadInput, match=r"colours.csv: line 2: 'red' is no colour; write #rrggbb"):
        read_outline(core)
    flat = np.full((*GRID, 3), (255, 128, 128), np.uint8)  # a mixture of red and white, but no border of anything
    flat[0, 0] = RED
    Image.fromarray(flat).save(path)
    (core.parent / "colours.csv").write_text("colour,name\n#ff0000,tumour\n#ffffff,\n")
    with pytest.raises(BadInput, match=r"does not name: #ff8080 \(159 pixels\)"):
        read_outline(core)
    photograph = np.random.default_rng(0).integers(0, 256, (240, 240, 3), np.uint8)
    Image.fromarray(photograph).save(path)
    with pytest.raises(BadInput, match=r"core_1.labels.png: 57\d\d\d colours: this is a photograph"):
        read_outline(core)


@pytest.mark.parametrize("kind", ["geojson", "roi.zip", "labels.png"])
def test_random_damage_is_refused_or_goes_unnoticed(core: Path, kind: str) -> None:
    if kind == "geojson":
        path = geojson(core, feature("a", [box(0, 0, 6, 6), box(1, 1, 3, 3)]))
    elif kind == "roi.zip":
        corners = np.array([[1, 1], [5, 1], [5, 4]], np.float32)
        path = save_rois(core, roifile.ImagejRoi.frompoints(corners, name="tumour"))
    else:
        path, _ = painted(core)
        (core.parent / "colours.csv").write_text("colour,name\n#ff0000,tumour\n#00c800,stroma\n#ffffff,\n")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(25):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 9)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(1, len(whole))] if rng.random() < 0.3 else damaged)
        with suppress(BadInput):  # every other error fails
            read_outline(core)


def test_a_core_whose_own_labels_name_their_classes(write_core: WriteCore, make_core: Callable[..., Any]) -> None:
    """As `dearray` cuts them from an annotated mosaic: equal numbers of two mosaics may be different classes."""
    labels = np.where(make_core()["y"] > 1, 1, make_core()["y"])
    root = write_core("core_1", y=labels, label_names=np.array(["tumour"])).parent
    write_core("core_2", y=labels, label_names=np.array(["blood"]))
    project = SSMUNet(SSMConfig())
    records = project.records(root)
    assert project.outputs == ("blood", "tumour")
    for record, number in zip(records, (2, 1), strict=True):
        label = project.decode(record).arrays["label"]
        np.testing.assert_array_equal(label > 0, labels > 0)
        assert set(np.unique(label)) == {0, number}
    write_core("core_3", label_names=np.array(["blood"]))
    with pytest.raises(BadInput, match=r"labels from 0 to 3, and 1 name of labels \(label_names\)"):
        project.decode(SSMUNet(SSMConfig()).records(root)[2])
