"""Cells of a field: from tables, label images and the finder; windows around them; embeddings per cell, field, well."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tifffile
from PIL import Image
from runner_core import Arrays, BadInput
from runner_core.testing import cropped
from runner_dinocell import fields, files, objects, outputs
from runner_dinocell.config import CellConfig
from runner_dinocell.manifest import Table
from runner_dinocell.project import DinoCell
from runner_dinocell.whole import side

CENTRES = [(20, 30), (40, 12), (5, 55)]


def table(text: str, name: str = "cells.csv") -> Table:
    return Table(name, text.encode())


def rows(found: Any) -> dict[tuple[str, ...], list[list[float]]]:
    return {key: np.asarray(own).tolist() for key, own in found.items()}


@pytest.fixture
def plate(tmp_path: Path) -> Path:
    """Two fields of two channels, 64 × 80."""
    rng = np.random.default_rng(0)
    for site in (1, 2):
        for channel in (1, 2):
            image = rng.integers(100, 4000, (64, 80)).astype(np.uint16)
            tifffile.imwrite(tmp_path / f"p_A01_site{site}_Ch{channel}.tif", image, photometric="minisblack")
    return tmp_path


def labels(shape: tuple[int, int] = (64, 80)) -> np.ndarray:
    image = np.zeros(shape, np.uint16)
    for number, (y, x) in zip((7, 2, 9), CENTRES, strict=True):
        image[y - 2 : y + 3, x - 3 : x + 4] = number
    return image


def config(**data: Any) -> CellConfig:
    made = CellConfig()
    made.data = replace(made.data, window=32, most_cells=8, **data)
    return made


# ---------------------------------------------------------------- tables


def test_a_plain_table() -> None:
    found = objects.of_table(table("plate,well,site,y,x\np,a1,01,5,6.5\np,A01,1,7,8\np,A02,2,1,2\n"))
    assert rows(found) == {
        ("", "", "p", "A01", "1"): [[1, 5, 6.5], [2, 7, 8]],
        ("", "", "p", "A02", "2"): [[1, 1, 2]],
    }


@pytest.mark.parametrize(
    "head", ["Location_Center_X,Location_Center_Y", "Nuclei_AreaShape_Center_X,Nuclei_AreaShape_Center_Y"]
)
@pytest.mark.parametrize("number", ["ObjectNumber", "Nuclei_Number_Object_Number"])
def test_cellprofilers_tables(head: str, number: str) -> None:
    text = f"ImageNumber,{number},Metadata_Plate,Metadata_Well,Metadata_Site,{head}\n1,4,p,B02,1,30.25,20.5\n"
    assert rows(objects.of_table(table(text, "Nuclei.csv"))) == {("", "", "p", "B02", "1"): [[4, 20.5, 30.25]]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plate,well,site,row,x\np,A01,1,5,6\n", "no column 'y'"),
        ("plate,well,site,y,x\np,A01,1,five,6\n", "line 2: y is 'five', no number"),
        ("plate,well,site,y,x\np,A01,1,nan,6\n", "line 2: y is nan. Leave such cells out"),
        ("Metadata_Plate,Metadata_Well,Metadata_Site,Count\np,A01,1,5\n", "no column Location_Center_X"),
        ("plate,well,site,y,x\np,A01,1,,6\n", "line 2 has no y"),
    ],
)
def test_tables_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        objects.of_table(table(text))


def test_a_centre_outside_of_its_field_is_refused() -> None:
    with pytest.raises(BadInput, match="f: a cell at y 70, x 3, outside of its field of 64 × 80 pixels"):
        objects.stored(np.array([[1, 70, 3]], np.float32), (64, 80), 8, "f")


def test_of_too_many_cells_some_are_left_out_evenly() -> None:
    many = np.column_stack([np.arange(100), np.arange(100) * 0.6, np.full(100, 5)]).astype(np.float32)
    kept = objects.known(objects.stored(many, (64, 80), 10, "f"))
    assert len(kept) == 10
    assert np.diff(kept[:, 1]).max() <= 8
    assert len(objects.known(objects.stored(many[:0], (64, 80), 10, "f"))) == 0


# ---------------------------------------------------------------- label images


@pytest.mark.parametrize("end", ["_cp_masks.tif", "_cp_masks.png", "_masks.tif"])
def test_label_images_beside_the_images(plate: Path, end: str) -> None:
    place = plate / f"p_A01_site1_Ch1{end}"
    if end.endswith("png"):
        Image.fromarray(labels()).save(place)
    else:
        tifffile.imwrite(place, labels().astype(np.uint32))
    settings = config(cells="masks")
    found = files.find_records(plate, settings)
    assert [sorted(record.images) for record in found] == [["1", "2"]] * 2  # the label image is no channel
    assert [objects.MASK in record.files for record in found] == [True, False]
    arrays = fields.cells(fields.decode(found[0]), settings.data, "masks")
    assert objects.known(arrays).tolist() == [[9, 5, 55], [7, 20, 30], [2, 40, 12]]
    assert not len(objects.known(fields.cells(fields.decode(found[1]), settings.data, "masks")))


def test_label_images_that_are_refused(plate: Path) -> None:
    with pytest.raises(BadInput, match="no field has a label image beside it"):
        files.find_records(plate, config(cells="masks"))
    tifffile.imwrite(plate / "p_A01_site1_Ch1_cp_masks.tif", labels((32, 40)))
    with pytest.raises(BadInput, match=r"Ch1_cp_masks.tif: labels of 32 × 40 pixels, the field has 64 × 80"):
        fields.decode(files.find_records(plate, config(cells="masks"))[0])
    tifffile.imwrite(plate / "p_A01_site1_Ch2_masks.tif", labels())
    with pytest.raises(BadInput, match="two label images of one field"):
        files.find_records(plate, config(cells="masks"))


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("data", "unit", "said"),
    [
        ({"cells": "fnd"}, "field", "data.cells is fnd; find, masks, or a table"),
        ({}, "cell", "predict.unit cell needs data.cells"),
    ],
)
def test_settings_that_are_refused(data: dict[str, Any], unit: Any, said: str) -> None:
    made = config(**data)
    made.predict.unit = unit
    assert [text for text in made.faults() if said in text]


def test_the_channel_of_nuclei() -> None:
    assert fields.nuclei_channel(["ER", "DNA"], None) == "DNA"
    assert fields.nuclei_channel(["3", "1"], None) == "3"
    with pytest.raises(BadInput, match=r"data.nuclei is dna; did you mean 'DNA'|data.nuclei is dna"):
        fields.nuclei_channel(["ER", "DNA"], "dna")


def test_a_wrong_channel_of_nuclei_is_refused_once(plate: Path) -> None:
    with pytest.raises(BadInput, match=r"data\.nuclei is Ch1; .*there are the channels 1, 2"):
        files.find_records(plate, config(cells="find", nuclei="Ch1"))
    assert len(files.find_records(plate, config(cells="find", nuclei="2"))) == 2


def test_cells_that_could_be_of_two_plates_are_refused(tmp_path: Path) -> None:
    """A table without batches, where two batches have a plate of one name; with that column it is read."""
    lines = ["source,batch,plate,well,site,channel,path"]
    for batch in ("b1", "b2"):
        path = tmp_path / f"{batch}.tif"
        tifffile.imwrite(path, np.arange(4096, dtype=np.uint16).reshape(64, 64), photometric="minisblack")
        lines.append(f"s,{batch},p,A01,1,DNA,{path.name}")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    cells = tmp_path / "cells.csv"
    settings = config(cells=str(cells), manifest=str(tmp_path / "images.csv"))
    cells.write_text("plate,well,site,y,x\np,A01,1,5,6\n")
    with pytest.raises(
        BadInput, match=r"of p/A01/1 could be those of s/b1/p/A01/1 or of s/b2/p/A01/1\. Add the column batch"
    ):
        files.find_records(tmp_path, settings)
    cells.write_text("batch,plate,well,site,y,x\nb1,p,A01,1,5,6\nb2,p,A01,1,7,8\n")
    found = [np.frombuffer(record.centres, np.float32).tolist() for record in files.find_records(tmp_path, settings)]
    assert found == [[1, 5, 6], [1, 7, 8]]


def test_a_table_of_other_fields_is_refused(plate: Path) -> None:
    (plate / "cells.csv").write_text("plate,well,site,y,x\nq,A01,1,5,6\n")
    with pytest.raises(BadInput, match=r"no field is in .*cells.csv"):
        files.find_records(plate, config(cells=str(plate / "cells.csv")))


# ---------------------------------------------------------------- windows and embeddings


@pytest.fixture
def with_table(plate: Path) -> CellConfig:
    with (plate / "cells.csv").open("w", newline="") as file:
        lines = [("p", "A01", 1, y, x) for y, x in CENTRES]
        csv.writer(file).writerows([("plate", "well", "site", "y", "x"), *lines])
    return config(cells=str(plate / "cells.csv"))


def infer(arrays: Arrays) -> Arrays:
    """The grey value in the middle of each channel."""
    middle = arrays["image"].shape[-1] // 2
    return {"embedding": arrays["image"][:, :, middle, middle].astype(np.float32)}


def test_an_embedding_of_each_cell_and_their_mean(plate: Path, with_table: CellConfig) -> None:
    with_table.augment.global_scale = (0.1, 0.1)
    project = DinoCell(with_table)
    first, second = project.records(plate)
    window = side(with_table)
    prediction = project.predict(cropped(project, first), infer)
    image = fields.decode(first).arrays["image"]
    assert prediction.cells is not None
    assert prediction.cells[:, 1:].tolist() == sorted(map(list, CENTRES))
    inside = [n for n, (y, x) in enumerate(sorted(CENTRES)) if min(y, x, 64 - y, 80 - x) > window // 2 + 1]
    assert inside  # a window at the border is moved into the field
    for number in inside:
        y, x = sorted(CENTRES)[number]
        assert prediction.windows[number].tolist() == image[:, y, x].tolist()
    np.testing.assert_allclose(prediction.field, prediction.windows.mean(0), rtol=1e-6)
    empty = project.predict(cropped(project, second), infer)
    assert empty.cells is not None
    assert len(empty.cells) == 0 < len(empty.windows)  # windows that cover it


def test_mirrored_and_turned_views_show_the_same_cells(plate: Path, with_table: CellConfig) -> None:
    with_table.augment.global_scale = (0.03, 0.03)
    project = DinoCell(with_table)
    field = cropped(project, project.records(plate)[0])
    views = project.combining().views
    assert len(views) == 7
    image, own = field.prepared["image"], objects.known(field.prepared["cells"])
    for view in views:
        seen = view.apply(field)
        moved = objects.known(seen["cells"])
        assert moved[:, 0].tolist() == own[:, 0].tolist()
        shown = [seen["image"][:, y, x].tolist() for _, y, x in moved]
        assert shown == [image[:, y, x].tolist() for _, y, x in own]


def test_tables_of_cells_fields_and_wells(plate: Path, with_table: CellConfig, tmp_path: Path) -> None:
    tables = {}
    for unit in ("cell", "field"):
        with_table.predict.unit = unit  # type: ignore[assignment]
        project = DinoCell(with_table)
        out = tmp_path / unit
        out.mkdir()
        written = []
        for record in project.records(plate):
            written += project.write(record, project.predict(cropped(project, record), infer), out)
        embeddings, profiles = outputs.collect(written, out)
        tables[unit] = pq.read_table(embeddings).to_pylist(), pq.read_table(profiles).to_pylist()
    cells, wells = tables["cell"]
    assert [(row["site"], row["cell_y"], row["cell_x"]) for row in cells] == [("1", *at) for at in sorted(CENTRES)]
    by_field, wells_by_field = tables["field"]
    assert [row["cells"] for row in by_field] == [3, 0]
    mean = np.mean([row["embedding"] for row in cells], 0)
    np.testing.assert_allclose(by_field[0]["embedding"], mean, rtol=1e-5)
    for (well,), sites in ((wells, 1), (wells_by_field, 2)):
        assert (well["Metadata_Cell_Count"], well["Metadata_Site_Count"]) == (3, sites)
        found = [well[f"Embedding_{number:04d}"] for number in range(2)]
        np.testing.assert_allclose(found, mean, rtol=1e-4)  # a field without cells does not count beside them
