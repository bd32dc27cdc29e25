"""Tables of images: plain and CellProfiler's, CSV and parquet; paths; and the one message of what is wrong."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput, Url
from runner_core.testing import prepared
from runner_dinocell import manifest
from runner_dinocell.config import CellConfig
from runner_dinocell.files import find_records
from runner_dinocell.manifest import Table
from runner_dinocell.project import DinoCell

PLAIN = "plate,well,site,channel,path\n"
LOAD_DATA = "Metadata_Plate,Metadata_Well,Metadata_Site,FileName_OrigDNA,PathName_OrigDNA\n"


def write(folder: Path, text: str, name: str = "images.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def found(config: CellConfig, table: Path, root: Path | Url | None = None) -> Mapping[str, Mapping[str, Any]]:
    if root is not None:
        config.data.manifest = str(table)
    return {r.key: r.files for r in find_records(root or table, config)}


def refused(config: CellConfig, table: Path, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        find_records(table, config)
    assert str(table) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- both kinds


def test_a_plain_table(tmp_path: Path, config: CellConfig) -> None:
    """Paths below the data, absolute, and at URLs; names are made tidy, text stays text."""
    table = write(
        tmp_path,
        "site,channel,path,well,plate,batch,note\n"
        '01,DNA,a/1.tif,a1,0012,b,"x, y"\n1,RNA,/far/2.tif,A01,0012,b,\n1,ER,s3://bucket/3.tif,A01,0012,b,z\n',
    )
    expected = {"DNA": tmp_path / "a/1.tif", "ER": Url("s3://bucket/3.tif"), "RNA": Path("/far/2.tif")}
    assert found(config, table) == {"b/0012/A01/1": expected}
    assert found(config, table, tmp_path) == {"b/0012/A01/1": expected}


def test_paths_are_below_the_data_wherever_the_table_is(tmp_path: Path, config: CellConfig, s3: Any) -> None:
    config.remote.endpoint = s3.endpoint
    (tmp_path / "tables").mkdir()
    table = write(tmp_path / "tables", PLAIN + "P,A01,1,1,x/../a.tif\n")
    assert found(config, table, tmp_path)["P/A01/1"] == {"1": tmp_path / "a.tif"}
    assert found(config, table, Url("s3://b/c"))["P/A01/1"] == {"1": Url("s3://b/c/a.tif")}


def test_cellprofilers_load_data(tmp_path: Path, config: CellConfig) -> None:
    """A column for each channel; illumination functions are no images; URLs go before paths."""
    table = write(
        tmp_path,
        "Metadata_Source,Metadata_Batch,Metadata_Plate,Metadata_Well,Metadata_Site,FileName_OrigDNA,PathName_OrigDNA,"
        "FileName_OrigER,PathName_OrigER,URL_OrigER,FileName_IllumDNA,PathName_IllumDNA\n"
        "source_4,B1,BR1,A01,1,1.tiff,s3://bucket/BR1/Images/,2.tiff,/gone,file:///data/a%20b.tiff,i.npy,s3://b/illum\n",
    )
    expected = {"DNA": Url("s3://bucket/BR1/Images/1.tiff"), "ER": Path("/data/a b.tiff")}
    assert found(config, table) == {"source_4/B1/BR1/A01/1": expected}


def test_parquet_and_gzip_say_the_same(tmp_path: Path, config: CellConfig) -> None:
    text = LOAD_DATA + "P,A01,1,1.tif,i\nP,A02,2,2.tif,i\n"
    plain = found(config, write(tmp_path, text))
    (tmp_path / "images.csv.gz").write_bytes(gzip.compress(text.encode()))
    columns: dict[str, Sequence[Any]] = {
        "Metadata_Plate": ["P", "P"],
        "Metadata_Well": ["A01", "A02"],
        "Metadata_Site": [1.0, 2.0],  # as pandas writes integers of which some were missing
        "FileName_OrigDNA": ["1.tif", "2.tif"],
        "PathName_OrigDNA": ["i", "i"],
        "__nested__": [[1], [2]],
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "images.parquet")
    assert len(plain) == 2
    assert found(config, tmp_path / "images.csv.gz") == found(config, tmp_path / "images.parquet") == plain


@pytest.mark.parametrize("name, mark", [("t.csv", ";"), ("t.tsv", "\t"), ("t.csv", "\t")])
def test_other_marks_between_columns(tmp_path: Path, config: CellConfig, name: str, mark: str) -> None:
    text = PLAIN + 'P,A01,1,DNA,"a.tif"\n'
    expected = {"P/A01/1": {"DNA": tmp_path / "a.tif"}}
    assert found(config, write(tmp_path, text.replace(",", mark), name)) == expected


def test_groups_and_splits_of_the_table(tmp_path: Path, config: CellConfig) -> None:
    text = PLAIN.replace("path", "path,group,split") + "P,A01,1,1,1.tif,donor 1,train\nP,A02,1,1,2.tif,donor 2,val\n"
    records = find_records(write(tmp_path, text), config)
    assert [(r.group, r.split, r.whole_plate) for r in records] == [
        ("donor 1", "train", "P"), ("donor 2", "validation", "P"),
    ]  # fmt: skip


def test_numbers_in_parquet(tmp_path: Path, config: CellConfig) -> None:
    columns: dict[str, Sequence[Any]] = {
        "plate": [41744, 41744], "well": ["A01", "A01"], "site": [1, 1], "channel": [1, 2], "path": ["1.tif", "2.tif"],
    }  # fmt: skip
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert found(config, tmp_path / "t.parquet") == {
        "41744/A01/1": {"1": tmp_path / "1.tif", "2": tmp_path / "2.tif"},
    }


def test_labels_in_the_table(tmp_path: Path, config: CellConfig) -> None:
    table = write(tmp_path, PLAIN.replace("path", "path,compound") + "P,A01,1,1,1.tif,taxol\nP,A02,1,1,2.tif,\n")
    config.data.label = "compound"
    assert [r.label for r in find_records(table, config)] == ["taxol", None]
    config.data.label = "compund"
    with pytest.raises(BadInput, match=r"data\.label is 'compund'"):
        find_records(table, config)


def test_labels_csv_beside_a_table(tmp_path: Path, config: CellConfig) -> None:
    table = write(tmp_path, PLAIN + "P,A01,1,1,1.tif\n")
    write(tmp_path, "well,kind\nA01,x\n", "labels.csv")
    assert [r.label for r in find_records(table, config)] == ["x"]


def test_a_table_in_a_bucket(config: CellConfig, s3: Any) -> None:
    s3.put("tables", "cpg/images.csv", (PLAIN + "P,A01,1,1,i/1.tif\n").encode())
    config.remote.endpoint = s3.endpoint
    (record,) = find_records(Url("s3://tables/cpg/images.csv"), config)
    assert record.files == {"1": Url("s3://tables/cpg/i/1.tif")}
    config.data.manifest = "s3://tables/cpg/images.csv"
    (record,) = find_records(Url("s3://elsewhere/x"), config)
    assert record.files == {"1": Url("s3://elsewhere/x/i/1.tif")}
    config.data.manifest = None
    with pytest.raises(BadInput, match=r"s3://tables/cpg/none\.csv: there is no such file"):
        find_records(Url("s3://tables/cpg/none.csv"), config)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    "text, message",
    [
        (PLAIN.replace("well", "wel") + "P,A01,1,1,1.tif\n", r"no column 'well'; did you mean 'wel'\? It has the "
         r"columns plate, wel, site, channel, path\. A manifest has plate, well"),
        ("a;b\n1;2\n", r"no column 'plate'\. It has the columns a, b"),
        ("a\tb\n1\t2\n", r"no column 'plate'\. It has the columns a, b"),
        (PLAIN.replace("path", "path,group") + "P,A01,1,1,1.tif,x\nP,A01,1,2,2.tif,y\n",
         "P/A01/1 has two values of group, x and y"),
        (PLAIN.replace("path", "path,split") + "P,A01,1,1,1.tif,tran\n", "unknown split 'tran'"),
        (PLAIN.replace("plate", "Plate_ID") + "P,A01,1,1,1.tif\n", r"no column 'plate'; did you mean 'Plate_ID'\?"),
        (PLAIN + "P,A01,1,1,1.tif\nP,A02,1,1,2.tif\nP,a1,01,1,1.tif\n", r"line 4 repeats line 2\. Delete one"),
        (LOAD_DATA + "P,A01,1,1.tif,i\n" * 2, r"line 3 repeats line 2\."),
        (LOAD_DATA.replace("Metadata_Well", "Metadata_well") + "P,A01,1,1.tif,i\n",
         r"no column 'Metadata_Well'; did you mean 'Metadata_well'\?"),
        (LOAD_DATA.replace("PathName_", "Path_") + "P,A01,1,1.tif,i\n", "no column 'PathName_OrigDNA'; did you mean"),
        ("Metadata_Plate,Metadata_Well,Metadata_Site,OrigDNA\nP,A01,1,1.tif\n", "no column FileName_NAME with"),
        (PLAIN + "P,,1,1,1.tif\n", "line 2 has no well"),
        (PLAIN + "P,A01,1,1,1.tif\nP,A02,1,1,\n", "line 3 has no path"),
        (PLAIN, "no row below its names of columns"),
        (PLAIN + "P,A01,1,1\n", "not a readable table"),
        ((PLAIN + "P,A01,1,1,a.tif\n").replace("\n", "\r"), "not a readable table"),
        ("", "not a readable table|no row"),
        (PLAIN.replace("site", "well") + "P,A01,1,1,1.tif\n", "no column 'site'|two columns are named 'well'"),
        (PLAIN + "P,A01,1,1,../1.tif\n", r"line 2: the path \.\./1\.tif has `\.\.` in it\. Write it in full"),
        (PLAIN + "P,A01,1,1,a/../../1.tif\n", r"the path a/\.\./\.\./1\.tif has `\.\.` in it"),
        (PLAIN + "P,A01,1,1,1.tif\nP,a1,01,1,2.tif\n", "two images of channel 1 of P/A01/1"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tmp_path: Path, config: CellConfig, text: str, message: str) -> None:
    refused(config, write(tmp_path, text), message)


@pytest.mark.parametrize("name", ["images.csv", "images.csv.gz", "images.parquet"])
def test_other_files_with_a_tables_name(tmp_path: Path, config: CellConfig, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\0\0\xff\xfe")
    refused(config, tmp_path / name, "not a readable table")


def test_a_table_that_is_not_there(tmp_path: Path, config: CellConfig) -> None:
    refused(config, tmp_path / "none.csv", r"none\.csv: no such file\.")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", PLAIN, "none.csv")
    config.data.manifest = str(tmp_path / "none.csv")
    with pytest.raises(BadInput, match=r"no such file; there is one at .*data/none\.csv: write --data\.manifest"):
        find_records(tmp_path / "data", config)


@given(st.lists(st.sampled_from(["..", ".", "a", "b c", "", "...", "a.tif"]), min_size=1, max_size=6))
def test_relative_paths_never_leave_their_folder(parts: list[str]) -> None:
    path = "/".join(parts).lstrip("/") or "x"
    table = Table("t.csv", (PLAIN + f"P,A01,1,1,{path}\n").encode())
    root = Path("/data/plates")
    try:
        ((_, place, _),) = manifest.images(table, root, None)
    except BadInput:
        return
    assert isinstance(place, Path)
    assert ".." not in place.parts
    assert place.is_relative_to(root)


def test_a_field_with_two_labels(tmp_path: Path, config: CellConfig) -> None:
    config.data.label = "compound"
    rows = "P,A01,1,1,1.tif,taxol\nP,A01,1,2,2.tif,\nP,A01,1,3,3.tif,dmso\n"
    table = write(tmp_path, PLAIN.replace("path", "path,compound") + rows)
    refused(config, table, r"images\.csv: P/A01/1 has two labels, taxol and dmso\.")


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_a_small_file_that_unpacks_to_a_huge_table_is_refused(
    tmp_path: Path, config: CellConfig, monkeypatch: Any, suffix: str
) -> None:
    path = tmp_path / f"images{suffix}"
    if suffix == ".parquet":
        pa.parquet.write_table(pa.table({name: ["x" * 1000] * 100_000 for name in ("plate", "well")}), path)
    else:
        path.write_bytes(gzip.compress(PLAIN.encode() + b"x" * 50_000_000))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(manifest, "MOST_BYTES", 20_000_000)
    tracemalloc.start()
    with pytest.raises(BadInput, match=r"images\..*; a table, unpacked, takes at most 20\.0 MB"):
        find_records(path, config)
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_a_table_too_large_to_read_is_refused(tmp_path: Path, config: CellConfig, monkeypatch: Any) -> None:
    monkeypatch.setattr(manifest, "MOST_BYTES", 10)
    (tmp_path / "images.csv").write_text(PLAIN)
    with pytest.raises(BadInput, match=r"images\.csv: \d+ B; a table takes at most 10 B"):
        find_records(tmp_path / "images.csv", config)


@pytest.mark.parametrize("path, message", [("file://[x/a.tif", "line 2: the .* is no URL"), ("a" * 5000, "too long")])
def test_paths_that_no_system_takes_are_refused(tmp_path: Path, config: CellConfig, path: str, message: str) -> None:
    table = write(tmp_path, PLAIN + f"P,A01,1,1,{path}\n")
    project = DinoCell(config)
    with pytest.raises(BadInput, match=message):
        [prepared(project, record) for record in project.records(table)]


def test_two_columns_of_one_name() -> None:
    with pytest.raises(BadInput, match="two columns are named 'path'"):
        list(manifest.images(Table("t.csv", b"plate,well,site,channel,path,path\nP,A01,1,1,a,b\n"), Path("/d"), None))
