"""The challenge's CSV format: exact round trips, pandas as a second reader's opinion, and every fault named."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from runner_core import BadInput
from runner_openkbp.csvfiles import (
    VOXELS,
    read_indices,
    read_masks,
    read_values,
    read_voxels,
    write_indices,
    write_values,
    write_voxels,
)
from runner_openkbp.rois import GRID


@pytest.mark.parametrize("read, size", [(read_values, 200_000_000), (read_indices, 50_000_000), (read_voxels, 20_000)])
def test_a_file_larger_than_any_of_the_challenges_is_refused_unread(tmp_path: Path, read, size: int) -> None:
    path = tmp_path / "ct.csv"
    path.touch()
    os.truncate(path, size)
    with pytest.raises(BadInput, match=r"ct\.csv: .*; such a file of the challenge's takes at most"):
        read(path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ct.csv")
    with pytest.raises(BadInput, match=r"ct\.csv: a named pipe"):
        read_values(tmp_path / "ct.csv")


ONE_FOLDER = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
places = st.lists(st.integers(0, VOXELS - 1), min_size=1, max_size=40, unique=True)


def volume(index: list[int], values: np.ndarray, dtype: type) -> np.ndarray:
    dense = np.zeros(VOXELS, dtype)
    dense[index] = values
    return dense.reshape(GRID)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@ONE_FOLDER
@given(data=st.data(), index=places)
def test_values_come_back_exactly(tmp_path: Path, dtype: type, data: st.DataObject, index: list[int]) -> None:
    finite = st.floats(width=np.dtype(dtype).itemsize * 8, allow_nan=False, allow_infinity=False)
    dense = volume(index, data.draw(hnp.arrays(dtype, len(index), elements=finite)), dtype)
    path = tmp_path / "dose.csv"
    write_values(path, dense)
    back, values = read_values(path, dtype)
    assert values.dtype == dtype
    assert np.array_equal(back, np.flatnonzero(dense))
    assert np.array_equal(values, dense.reshape(-1)[back])


@ONE_FOLDER
@given(index=places)
def test_masks_come_back_exactly(tmp_path: Path, index: list[int]) -> None:
    mask = volume(index, np.ones(len(index)), bool)
    write_indices(tmp_path / "PTV70.csv", mask)
    assert np.array_equal(read_indices(tmp_path / "PTV70.csv"), np.sort(index))


@ONE_FOLDER
@given(voxel=hnp.arrays(np.float64, 3, elements=st.floats(1e-3, 1e3)))
def test_voxels_come_back_exactly(tmp_path: Path, voxel: np.ndarray) -> None:
    write_voxels(tmp_path / "voxel_dimensions.csv", voxel)
    assert np.array_equal(read_voxels(tmp_path / "voxel_dimensions.csv"), voxel)


def test_the_bytes_are_the_challenges(tmp_path: Path) -> None:
    """Written as pandas writes the challenge's files (`to_csv` of a frame with one column, data)."""
    dose = volume([5, 7, VOXELS - 1], np.array([7.675, 18, 0.1], np.float32), np.float32)
    write_values(tmp_path / "dose.csv", dose)
    assert (tmp_path / "dose.csv").read_bytes() == b",data\n5,7.675\n7,18.0\n2097151,0.1\n"
    write_values(tmp_path / "ct.csv", (dose > 1).astype(np.int16) * 955)
    assert (tmp_path / "ct.csv").read_bytes() == b",data\n5,955.0\n7,955.0\n"
    write_indices(tmp_path / "mask.csv", dose > 0)
    assert (tmp_path / "mask.csv").read_bytes() == b",data\n5,\n7,\n2097151,\n"
    write_voxels(tmp_path / "voxel.csv", np.array([3.906, 3.906, 2.5]))
    assert (tmp_path / "voxel.csv").read_bytes() == (
        b"3.906000000000000139e+00\n3.906000000000000139e+00\n2.500000000000000000e+00\n"
    )


def test_zeros_are_written_where_asked(tmp_path: Path) -> None:
    dose = volume([3], np.array([2.5]), np.float64)
    write_values(tmp_path / "dose.csv", dose, where=volume([2, 3], np.ones(2), bool))
    assert (tmp_path / "dose.csv").read_bytes() == b",data\n2,0.0\n3,2.5\n"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="NaN and infinite"):
        write_values(tmp_path / "dose.csv", volume([3], np.array([value]), np.float64))


def test_another_grid_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(64, 64, 64\)"):
        write_indices(tmp_path / "mask.csv", np.ones((64, 64, 64), bool))


@pytest.mark.parametrize(
    "content", [b",data\r\n5,1.5\r\n9,2\r\n", b"\xef\xbb\xbf,data\n9,2\n5,1.5\n\n", b"index,dose\n5,1.5\n9,2e0\n"]
)
def test_what_editors_make_of_it_is_read(tmp_path: Path, content: bytes) -> None:
    """Windows line ends, a byte order mark, another order, another name for the column."""
    (tmp_path / "dose.csv").write_bytes(content)
    index, values = read_values(tmp_path / "dose.csv")
    assert dict(zip(index.tolist(), values.tolist(), strict=True)) == {5: 1.5, 9: 2.0}


def test_a_mask_without_voxels(tmp_path: Path) -> None:
    (tmp_path / "Larynx.csv").write_bytes(b",data\n")
    assert read_indices(tmp_path / "Larynx.csv").size == 0


def test_several_masks_at_once(tmp_path: Path) -> None:
    """Each as if read by itself, whatever its line ends, empty lines, order or length."""
    contents = (b",data\n7,\n9,\n", b",data\n", b",data\r\n4,\r\n\r\n2,\r\n", b",data\n8,\n\n\n1,\n", b",data\n3,\r")
    paths = [tmp_path / f"{number}.csv" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert [part.tolist() for part in read_masks(paths)] == [[7, 9], [], [4, 2], [8, 1], [3]]
    assert [part.tolist() for part in read_masks(paths[1:2])] == [[]]
    for content, message in ((b",data\n5,\n5,\n", "twice"), (b",data\n-1,\n", "outside"), (b",data\n5,1\n", "none")):
        paths[2].write_bytes(content)
        with pytest.raises(BadInput, match=rf"2\.csv: .*{message}"):
            read_masks(paths)


def test_a_byte_order_mark_before_the_voxel_size(tmp_path: Path) -> None:
    (tmp_path / "voxel_dimensions.csv").write_bytes(b"\xef\xbb\xbf3.5\r\n4.0\r\n2.5\r\n")
    assert read_voxels(tmp_path / "voxel_dimensions.csv").tolist() == [3.5, 4.0, 2.5]


FAULTS = [
    (b"", "file is empty"),
    (b"\n \n", "file is empty"),
    (b",data\n5,1.5\n9,2", "the last line, '9,2', does not end with a newline: the file was cut off"),
    (b",data\n5,1.5\n9", "the last line, '9', does not end with a newline: the file was cut off"),
    (b",da", "not the header ',data'"),
    (b"5,1.5\n9,2.5\n", "header line ',data' is missing"),
    (b"<html>\n<body>not found</body>\n", "first line is '<html>', not the header"),
    (b"\x89PNG\r\n\x00\x01\x02", "not a text file"),
    (gzip.compress(b",data\n5,1.5\n", mtime=0), "gzip-compressed; unpack it"),
    (b"PK\x03\x04whatever", "zip archive"),
    (b",data\n5,1.5\n2097152,1\n", r"line 3 has the index 2097152, outside the 128 × 128 × 128 grid \(0 … 2097151\)"),
    (b",data\n-1,1.5\n", "line 2 has the index -1, outside"),
    (b",data\n99999999999999999999,1.5\n", "line 2 has the index 99999999999999999999, outside"),
    (b",data\n5,1.5\n7.5,1\n", "line 3 has the index '7.5', which is not a whole number"),
    (b",data\n5,1.5\n,1\n", "line 3 has the index '', which is not a whole number"),
    (b",data\n5,1.5\n9,two\n", "line 3 has the value 'two', which is not a number"),
    (b",data\n5,1.5\n9,\n", "line 3 has no value"),
    (b",data\n5,1.5\n9,1,3\n", "line 3 is '9,1,3', not an index and a value"),
    (b",data\n5\n9\n", "line 2 is '5', not an index and a value"),
    (b",data\n5,1.5\n9,nan\n", "1 values are NaN or infinite, the first on line 3"),
    (b",data\n5,-inf\n9,inf\n", "2 values are NaN or infinite, the first on line 2"),
    (b",data\n5,1.5\n9,1\n5,1\n", r"index 5 is there twice \(1 repeated lines\)"),
    (b",data\n5,1.5\n\xff\xfe,1\n", "line 3 has the index '.+', which is not a whole number"),
]  # fmt: skip


@pytest.mark.parametrize("content, message", FAULTS)
def test_faults_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "dose.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        read_values(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert "; " in text  # what to do


def test_a_dose_in_place_of_a_mask(tmp_path: Path) -> None:
    (tmp_path / "PTV70.csv").write_bytes(b",data\n5,\n6,1.5\n")
    with pytest.raises(BadInput, match=r"line 3 has the value '1\.5', and a mask has none"):
        read_indices(tmp_path / "PTV70.csv")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ct\.csv: the file is missing"):
        read_values(tmp_path / "ct.csv")
    with pytest.raises(BadInput, match="cannot be read"):
        read_values(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "1 2", "1 2 3 4", "1 2 zero", "1 2 0", "1 2 -3", "nan 1 1", "inf 1 1", "1e-300 1 1", "1 1 1e300"]
)
def test_voxels_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "voxel_dimensions.csv").write_text(content)
    with pytest.raises(BadInput, match=r"voxel_dimensions\.csv: .*(three numbers from 0.001 to 1000|empty)"):
        read_voxels(tmp_path / "voxel_dimensions.csv")


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=200), where=st.integers(0, 40))
def test_no_junk_escapes(tmp_path: Path, junk: bytes, where: int) -> None:
    """Whatever is in the file: its values, or BadInput."""
    whole = b",data\n" + b"".join(b"%d,%d.5\n" % (i, i) for i in range(5, 12))
    (tmp_path / "dose.csv").write_bytes(whole[:where] + junk)
    for read in (read_values, read_indices):
        with suppress(BadInput):
            read(tmp_path / "dose.csv")
