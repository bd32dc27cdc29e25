"""Cores cut out of the mosaic of a tissue microarray: the grid, the table, the files, and blocks of large images."""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spectral
from agilent_format import agilentMosaic
from PIL import Image
from runner_core import BadInput, OutOfSpace
from runner_ssmunet import dearray, preprocess, readers, tma, whole
from runner_ssmunet.config import SpectraConfig
from runner_ssmunet.files import find_records, read_core
from runner_ssmunet.readers import blocks

AXIS = np.linspace(900.0, 1800.0, 46)
Truth = dict[tuple[int, int], tuple[float, float] | None]


def microarray(
    seed: int, rows: int, columns: int, across: float = 26, degrees: float | None = None, missing: float = 0.1
) -> tuple[np.ndarray, Truth]:
    """Tissue (H, W) bool of a microarray, with the middle of each core, or None for a missing one.

    The grid is turned by up to 6°, cores stray from it, 15 % are torn, all have holes, and there is debris.
    """
    rng = np.random.default_rng(seed)
    angle = np.radians(rng.uniform(-6, 6) if degrees is None else degrees)
    pitch = across * rng.uniform(1.25, 1.7) * rng.uniform(0.95, 1.1, 2)
    height = int(rows * pitch[0] * 1.25 + columns * pitch[1] * 0.15)
    width = int(columns * pitch[1] * 1.2 + rows * pitch[0] * 0.15)
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width), bool)
    truth: Truth = {}
    for row in range(rows):
        for column in range(columns):
            down, right = (row - (rows - 1) / 2) * pitch[0], (column - (columns - 1) / 2) * pitch[1]
            at = np.array([height / 2 + down * np.cos(angle) + right * np.sin(angle),
                           width / 2 - down * np.sin(angle) + right * np.cos(angle)])  # fmt: skip
            at += rng.normal(0, 0.06 * pitch.min(), 2)
            truth[row, column] = None
            if rng.random() < missing:
                continue
            radius = across / 2 * rng.uniform(0.9, 1.05)
            core = (y - at[0]) ** 2 + (x - at[1]) ** 2 < radius**2
            if rng.random() < 0.15:
                way = rng.uniform(0, 2 * np.pi)
                core &= (y - at[0]) * np.sin(way) + (x - at[1]) * np.cos(way) < rng.uniform(-0.25, 0.4) * radius
            for _ in range(3):
                way, far = rng.uniform(0, 2 * np.pi), rng.uniform(0, radius)
                hole = (y - at[0] - far * np.sin(way)) ** 2 + (x - at[1] - far * np.cos(way)) ** 2
                core &= hole > (radius * 0.2) ** 2
            image |= core
            truth[row, column] = (float(at[0]), float(at[1]))
    for _ in range(6):
        at = rng.uniform(0, [height, width])
        image |= (y - at[0]) ** 2 + (x - at[1]) ** 2 < (across * 0.1) ** 2
    return image & (rng.random(image.shape) < 0.97), truth


def compared(grid: tma.Grid, truth: Truth, across: float) -> tuple[int, int, int]:
    """Number of cores found at their place, of cores missed or misplaced, and of missing ones that were found."""
    there = [key for key, middle in truth.items() if middle]
    first = [min(key[axis] for key in there) for axis in (0, 1)]
    right = wrong = extra = 0
    for key, middle in truth.items():
        spot = grid.spots.get((key[0] - first[0], key[1] - first[1]))
        if middle is None:
            extra += bool(spot and spot.found)
        elif spot and spot.found and np.hypot(spot.y - middle[0], spot.x - middle[1]) < 0.35 * across:
            right += 1
        else:
            wrong += 1
    return right, wrong, extra


def test_the_cores_of_turned_and_torn_microarrays_are_found() -> None:
    """60 random ones of 3,773 cores: 3,768 found, none at a wrong place, none that is not there (docs, README)."""
    right = wrong = extra = 0
    for seed in range(3):
        image, truth = microarray(seed, 4 + 2 * seed, 9 - 2 * seed)
        part = compared(tma.find(image), truth, 26)
        right, wrong, extra = (a + b for a, b in zip((right, wrong, extra), part, strict=True))
    assert right > 90
    assert wrong == 0
    assert extra == 0


@pytest.mark.parametrize("degrees", [-8.0, 0.0, 8.0])
def test_the_rotation_and_the_pitch_are_told(degrees: float) -> None:
    image, _ = microarray(3, 6, 8, degrees=degrees, missing=0.0)
    grid = tma.find(image)
    assert grid.angle == pytest.approx(degrees, abs=0.7)
    assert grid.diameter == pytest.approx(26, abs=2)
    assert {spot.name for spot in grid.spots.values()} == {f"{row}{n}" for row in "ABCDEF" for n in range(1, 9)}


def test_one_row_of_cores_and_none() -> None:
    image, truth = microarray(5, 1, 7, missing=0.0)
    assert compared(tma.find(image), truth, 26)[0] == 7
    with pytest.raises(BadInput, match="no tissue stands out"):
        tma.find(np.zeros((50, 50), bool))
    lone = np.zeros((60, 60), bool)
    lone[20:45, 20:45] = True
    with pytest.raises(BadInput, match=r"one core of about .* pixels found: two or more make a grid"):
        tma.find(lone)


# ---------------------------------------------------------------- the command


def spectra_of(tissue: np.ndarray, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    bands = np.exp(-(((AXIS - 1655) / 22) ** 2)) + 0.6 * np.exp(-(((AXIS - 1545) / 22) ** 2))
    heights = np.where(tissue, rng.uniform(0.4, 1.0, tissue.shape), 0)
    return (heights[..., None] * bands + rng.normal(0, 0.003, (*tissue.shape, len(AXIS)))).astype(np.float32)


def write_envi(path: Path, image: np.ndarray, axis: np.ndarray = AXIS, **metadata: Any) -> Path:
    metadata = {"wavelength": axis.tolist(), "wavelength units": "Wavenumber"} | metadata
    spectral.envi.save_image(str(path), image, interleave="bsq", ext=".dat", metadata=metadata, force=True)
    return path


def run(*words: object) -> int:
    return dearray.dearray(argparse.ArgumentParser(), [str(word) for word in words])


@pytest.fixture
def mosaic(tmp_path: Path) -> tuple[Path, np.ndarray, Truth]:
    tissue, truth = microarray(11, 3, 4, missing=0.15)
    image = spectra_of(tissue)
    path = write_envi(tmp_path / "slide_7.hdr", image[..., ::-1], AXIS[::-1], **{"pixel size": "{5.5, 5.5, units=um}"})
    Image.fromarray((np.arange(tissue.size).reshape(tissue.shape) % 3).astype(np.uint8)).save(
        tmp_path / "slide_7.labels.png"
    )
    return path, image, truth


def test_a_mosaic_becomes_a_data_set(tmp_path: Path, mosaic, capsys) -> None:
    """Preview, the table corrected by hand, cores: those that training reads, by patient."""
    path, image, truth = mosaic
    there = [f"{'ABC'[row]}{column + 1}" for (row, column), middle in truth.items() if middle]
    assert run(path, "--out", tmp_path / "look", "--preview") == 0
    assert sorted(p.name for p in (tmp_path / "look").iterdir()) == ["cores.csv", "cores.png"]
    assert f"{len(there)} cores in 3 rows and 4 columns" in capsys.readouterr().out
    with (tmp_path / "look/cores.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [line["core"] for line in table if line["keep"] == "yes"] == there
    for number, line in enumerate(table):
        line["patient"] = f"P{number % 3}"
    table[0] |= {"core": "control", "keep": "yes", "y": "20", "x": "21"}  # there is none at this place
    table[1]["keep"] = "no"
    with (tmp_path / "look/cores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    assert run(path, "--out", tmp_path / "cores", "--table", tmp_path / "look/cores.csv") == 0
    records = {record.key: record for record in find_records(tmp_path / "cores", "patient")}
    kept = {line["core"]: line for line in table if line["keep"] == "yes"}
    assert set(records) == {f"core_{name}" for name in kept}
    assert {name: records[f"core_{name}"].group for name in kept} == {n: line["patient"] for n, line in kept.items()}
    for name in (list(kept)[1], "control"):
        core = read_core(tmp_path / f"cores/core_{name}.npz")
        top, left = core.meta["top"], core.meta["left"]
        part = (slice(top, top + core.spectra.shape[0]), slice(left, left + core.spectra.shape[1]))
        np.testing.assert_array_equal(core.spectra, image[part])
        np.testing.assert_array_equal(core.labels, (np.arange(image[..., 0].size).reshape(image.shape[:2]) % 3)[part])
        np.testing.assert_allclose(core.wavenumbers, AXIS)
        assert core.meta | {"slide_id": "slide_7", "core_id": name, "pixel_um": 5.5} == core.meta
        middle = [(p.start + p.stop - 1) / 2 for p in part]
        wanted = kept[name]
        assert np.hypot(middle[0] - float(wanted["y"]), middle[1] - float(wanted["x"])) < 4  # cut at the border
    assert Image.open(tmp_path / "cores/cores.png").size == image.shape[1::-1]


def test_regions_of_an_annotated_mosaic_go_with_its_cores_by_name(tmp_path: Path, mosaic) -> None:
    path, image, _ = mosaic
    (tmp_path / "slide_7.labels.png").unlink()
    high, wide = image.shape[:2]
    corners = [[[0, 0], [wide / 2, 0], [wide / 2, high], [0, high], [0, 0]]]
    about = {"objectType": "annotation", "classification": {"name": "tumour"}}
    region = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": corners}, "properties": about}
    (tmp_path / "slide_7.geojson").write_text(json.dumps([region]))
    assert run(path, "--out", tmp_path / "cores") == 0
    for file in (tmp_path / "cores").glob("core_*.npz"):
        core = read_core(file)
        assert core.label_names == ("tumour",)
        columns = core.meta["left"] + np.arange(core.labels.shape[1]) + 0.5
        np.testing.assert_array_equal(core.labels, np.tile(columns < wide / 2, (len(core.labels), 1)))


@pytest.mark.parametrize(
    "table, message",
    [
        ("core,kep\nA1,no\n", "no column is called 'kep'.*keep"),
        ("core,keep\nZ9,no\n", "line 2: no core was found that is called 'Z9'"),
        ("row,column,keep\nD,1,no\n", "there is no D1: rows A to C, columns 1 to 4"),
        ("row,column\nA,one\n", "column is 'one'"),
        ("row,column\nA,²\n", "column is '²'"),
        ("core,keep\nA1,perhaps\n", "keep is 'perhaps'; yes or no"),
        ("core,keep\nA1,no\nA1,yes\n", "line 3: A1 is also in line 2"),
        ("core,y\nA1,far\n", "y is 'far'"),
        ("core,x\nA1,99999\n", "x is 99999, outside of the mosaic's"),
        ("row,column,core\nA,1,x/y\n", "a core cannot be called 'x/y'"),
        ("row,column,core,keep\nA,1,me,yes\nA,2,me,yes\n", "two cores are called me"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, table: str, message: str) -> None:
    places = [
        dearray.Place(f"{row}{column}", row, column, "", True, 10.0, 10.0, 1.0)
        for row in "ABC"
        for column in range(1, 5)
    ]
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(BadInput, match=message):
        dearray.corrected(places, tmp_path / "t.csv", (300, 400))


def test_what_cannot_be_cut(tmp_path: Path, mosaic) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/core_1.npz").touch()
    with pytest.raises(BadInput, match="full exists and is not an empty folder; name another with --out"):
        run(mosaic[0], "--out", tmp_path / "full")
    with pytest.raises(BadInput, match="--diameter is 2"):
        run(mosaic[0], "--out", tmp_path / "new", "--diameter", "2")
    nothing = write_envi(tmp_path / "empty.hdr", np.zeros((40, 40, 46), np.float32))
    with pytest.raises(BadInput, match=r"empty\.hdr: no tissue stands out in it. Is it a tissue microarray"):
        run(nothing, "--out", tmp_path / "new")
    with pytest.raises(BadInput, match=r"--diameter is inf, and the mosaic has \d+ × \d+ pixels"):
        run(mosaic[0], "--out", tmp_path / "new", "--diameter", "inf")
    with pytest.raises(BadInput, match=r"empty\.hdr/new: cannot be written: Not a directory"):
        run(mosaic[0], "--out", nothing / "new")
    Image.new("L", (5, 5)).save(mosaic[0].with_name("slide_7.labels.png"))
    with pytest.raises(BadInput, match="Both must lie on one grid"):
        run(mosaic[0], "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_of_the_annotated_classes_stay_with_the_cores(tmp_path: Path, mosaic) -> None:
    corner = [[[0, 0], [400, 0], [400, 400], [0, 400]]]
    drawn = {"type": "Polygon", "coordinates": corner}
    about = {"objectType": "annotation", "classification": {"name": "stroma"}}
    regions = {"type": "Feature", "geometry": drawn, "properties": about}
    mosaic[0].with_name("slide_7.labels.png").unlink()
    mosaic[0].with_name("slide_7.geojson").write_text(json.dumps(regions))
    run(mosaic[0], "--out", tmp_path / "cores")
    assert (tmp_path / "cores/classes.csv").read_text().split() == ["label,name", "1,stroma"]
    assert np.load(next((tmp_path / "cores").glob("core_*.npz")))["y"].all()


def test_a_mosaic_on_an_axis_without_order_is_refused(tmp_path: Path, mosaic) -> None:
    wrong = np.r_[AXIS[:10], AXIS[10:20][::-1], AXIS[20:]]
    np.savez(tmp_path / "core_m.npz", X=np.ones((40, 40, len(wrong)), np.float32), wn=wrong)
    with pytest.raises(BadInput, match=r"core_m\.npz"):
        run(tmp_path / "core_m.npz", "--out", tmp_path / "new")


# ---------------------------------------------------------------- large images


def write_mosaic(folder: Path, image: np.ndarray, side: int = 16, missing: tuple[int, int] | None = None) -> Path:
    """An Agilent mosaic of `image` (H, W, C): tiles of `side`² pixels, bottom row first, in a header's fields only."""
    header = bytearray(2400)
    step = float(np.diff(AXIS).mean())
    struct.pack_into("<d", header, 2216, step)
    struct.pack_into("<3i", header, 2228, round(AXIS[0] / step), 0, image.shape[2])
    (folder / "slide.dmt").write_bytes(header)
    for row in range(image.shape[0] // side):
        for column in range(image.shape[1] // side):
            if (row, column) != missing:
                tile = image[row * side : (row + 1) * side, column * side : (column + 1) * side][::-1]
                values = tile.transpose(2, 0, 1).astype("<f4").tobytes()
                (folder / f"slide_{column:04d}_{row:04d}.dmd").write_bytes(b"\0" * 1020 + values)
    return folder / "slide.dmt"


def test_parts_of_an_agilent_mosaic_equal_the_whole(tmp_path: Path) -> None:
    image = spectra_of(np.random.default_rng(1).random((48, 80)) < 0.5)
    path = write_mosaic(tmp_path, image, missing=(1, 3))
    found = readers.open_blocks(path)
    assert found.shape == image.shape
    image[16:32, 48:64] = np.nan
    for rows, columns in ((slice(0, 48), slice(0, 80)), (slice(9, 35), slice(14, 66)), (slice(40, 41), slice(3, 4))):
        np.testing.assert_array_equal(found.read(rows, columns), image[rows, columns])


def test_parts_of_real_agilent_images_equal_the_library(tmp_path: Path) -> None:
    folder = Path(inspect.getfile(agilentMosaic)).parent / "datasets"
    for name in ("5_mosaic_agg1024.dmt", "4_noimage_agg256.dat"):
        found, wanted = readers.open_blocks(folder / name), read_core(folder / name)
        np.testing.assert_array_equal(found.read(slice(None), slice(None)), wanted.spectra)
        np.testing.assert_allclose(np.sort(found.raw.wavenumbers), wanted.wavenumbers, rtol=1e-12)
        assert found.raw.meta["pixel_um"] == wanted.meta["pixel_um"]


@pytest.mark.parametrize("kind", ["envi", "agilent"])
def test_a_large_image_is_read_in_blocks_and_prepared_equally(tmp_path: Path, monkeypatch, kind: str) -> None:
    """The same core, mask, prepared spectra and features, whether in memory or in a temporary file."""
    tissue = np.zeros((48, 64), bool)
    tissue[8:40, 10:50] = True
    image = spectra_of(tissue)
    if kind == "envi":
        path = write_envi(tmp_path / "slide.hdr", image[..., ::-1], AXIS[::-1])
    else:
        path = write_mosaic(tmp_path, image)
        monkeypatch.setattr(readers.agilent, "read", lambda *_, **__: pytest.fail("it read the whole mosaic"))
    data = SpectraConfig(gap=None)

    def prepared() -> tuple[np.ndarray, ...]:
        core = read_core(path)
        mask = preprocess.tissue_mask(core, "auto", "slide")
        spectra, _ = preprocess.prepare(core.spectra, core.wavenumbers, mask, data, "slide")
        features, *_ = whole.described(spectra, mask, infer)
        return core.spectra, mask, spectra, features

    def infer(batch: Any) -> Any:
        pixels = batch["spectra"]
        return {"features": pixels[..., :3].astype(np.float32), "attention": np.ones((len(pixels), 46))}

    if kind == "agilent":
        monkeypatch.setattr(blocks, "IN_MEMORY", 1)
        monkeypatch.setattr(blocks, "_BLOCK", 40_000)
        found = prepared()
        np.testing.assert_array_equal(found[0], image)
        return
    wanted = prepared()
    monkeypatch.setattr(blocks, "IN_MEMORY", 1)
    monkeypatch.setattr(blocks, "_BLOCK", 40_000)
    found = prepared()
    assert all(isinstance(array, np.memmap) for array in (found[0], found[2]))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_faults_of_a_large_image_are_named_by_its_own_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "IN_MEMORY", 1)
    monkeypatch.setattr(blocks, "_BLOCK", 40_000)
    image = spectra_of(np.ones((40, 30), bool))
    image[33, 4, 5] = np.nan
    path = write_envi(tmp_path / "slide.hdr", image)
    with pytest.raises(BadInput, match="the first in row 33, column 4"):
        read_core(path)
    write_envi(path, np.full_like(image, np.nan))
    with pytest.raises(BadInput, match="every spectrum is NaN"):
        read_core(path)


def test_no_room_for_the_temporary_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "IN_MEMORY", 1)
    monkeypatch.setattr(blocks.shutil, "disk_usage", lambda _: argparse.Namespace(free=10))
    path = write_envi(tmp_path / "slide.hdr", spectra_of(np.ones((8, 8), bool)))
    with pytest.raises(OutOfSpace, match=r"take 11\.8 kB there for a while, and 10 B are free.*set TMPDIR"):
        read_core(path)


def test_meta_of_a_core_is_json(tmp_path: Path, mosaic) -> None:
    run(mosaic[0], "--out", tmp_path / "cores")
    with np.load(next((tmp_path / "cores").glob("core_*.npz")), allow_pickle=False) as archive:
        assert json.loads(str(archive["meta"]))["slide_id"] == "slide_7"
