"""submission.zip: what `predict --zip` writes is what the challenge takes, and every fault in it is named."""

from __future__ import annotations

import argparse
import io
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_core import BadInput
from runner_vesuvius import submission
from runner_vesuvius.outputs import Detected
from runner_vesuvius.project import ScrollPredictOptions

SHAPE = (24, 28, 32)
MASK = (np.indices(SHAPE).sum(0) % 5 == 0).astype(np.uint8)


@pytest.fixture
def data(write_volumes: Callable[..., Path]) -> Path:
    root = write_volumes({"301": "A", "302": "A"}, labelled=False)
    (root / "train_images").rename(root / "test_images")
    (root / "test.csv").write_text("id,scroll_id\n301,A\n302,A\n", encoding="utf-8")
    return root


def tif(volume: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, volume, photometric="minisblack", metadata=None)
    return buffer.getvalue()


def zipped(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def validate(*words: object) -> int:
    return submission.validate_submission(argparse.ArgumentParser(), [str(word) for word in words])


def test_what_predict_writes_is_valid(project, data, tmp_path, capsys) -> None:
    project.predict_options = ScrollPredictOptions(probability=True, zip=True)
    records = project.inputs(data / "test_images")
    out = tmp_path / "out"
    written = [path for record in records for path in project.write(record, Detected(MASK, MASK * np.uint8(255)), out)]
    collected = project.judging().collect(written, out)
    assert set(collected) == {*written, out / "submission.zip"}
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert archive.namelist() == ["301.tif", "302.tif"]
        assert archive.read("302.tif") == (out / "302.tif").read_bytes()
    assert validate(out / "submission.zip", "--data", data) == 0
    shown = capsys.readouterr().out
    assert "302.tif: 24 × 28 × 32, 20.00% surface" in shown
    assert "2 volumes, no fault was found" in shown
    assert validate(out / "submission.zip", "--data", data / "test_images") == 0
    first = (out / "submission.zip").read_bytes()
    project.judging().collect(written, out)
    assert (out / "submission.zip").read_bytes() == first


def test_a_zip_of_what_is_predicted_chunk_by_chunk_is_refused(project, data) -> None:
    project.predict_options = ScrollPredictOptions(chunked=True, zip=True)
    record, _ = project.inputs(data / "test_images")
    wanted = project.combining().in_blocks.wanted
    with pytest.raises(BadInput, match=r"301 is predicted chunk by chunk into 301\.zarr, .* leave out --zip"):
        wanted(record)
    project.predict_options = ScrollPredictOptions(zip=True)
    assert not wanted(record)


def test_a_folder_is_no_submission(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"is a folder: name the submission\.zip in it"):
        validate(tmp_path)


def test_it_says_what_it_could_not_compare(tmp_path, capsys) -> None:
    assert validate(zipped(tmp_path / "a.zip", {"301.tif": tif(MASK)})) == 0
    assert "names and shapes were not compared" in capsys.readouterr().out


GOOD = {"301.tif": tif(MASK), "302.tif": tif(MASK)}


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"301.tif": GOOD["301.tif"]}, r"1 volume missing: 302\.tif"),
        (GOOD | {"303.tif": tif(MASK)}, r"303\.tif: there is no test volume 303; did you mean '30"),
        ({"masks/301.tif": tif(MASK), "302.tif": tif(MASK)}, r"masks/301\.tif: lies in a folder"),
        (GOOD | {"301.tiff": tif(MASK)}, r"301\.tiff: is not named KEY\.tif"),
        (GOOD | {"301.tif": tif(MASK[1:])}, r"301\.tif: has 23 × 28 × 32 voxels, and its volume 24 × 28 × 32"),
        (GOOD | {"301.tif": tif(MASK.astype(np.int16))}, r"301\.tif: is int16, and must be uint8"),
        (GOOD | {"301.tif": tif(MASK * np.uint8(255))}, r"301\.tif: holds values from 0 to 255; 0 is background"),
        (GOOD | {"301.tif": tif(MASK.astype(np.float32) / 2)}, r"is float32.*; holds values from 0 to 0\.5"),
        (GOOD | {"301.tif": GOOD["301.tif"][:-500]}, r"301\.tif: truncated or damaged"),
        (GOOD | {"301.tif": b"no tif"}, r"301\.tif: .*not a tif"),
        ({}, r"2 volumes missing.*\n  it is empty"),
    ],
)
def test_a_fault_is_named(data, tmp_path, members, fault) -> None:
    path = zipped(tmp_path / "submission.zip", members)
    with pytest.raises(BadInput, match=rf"(?s)submission\.zip: \d faults?:\n  .*{fault}"):
        validate(path, "--data", data)


def test_a_name_that_is_there_twice(data, tmp_path) -> None:
    path = zipped(tmp_path / "submission.zip", GOOD)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("301.tif", tif(MASK))
    with pytest.raises(BadInput, match=r"301\.tif: is there twice"):
        validate(path, "--data", data)


def test_a_damaged_zip(data, tmp_path) -> None:
    whole = zipped(tmp_path / "submission.zip", GOOD).read_bytes()
    place = whole.index(b"301.tif") + 60
    (tmp_path / "submission.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    with pytest.raises(BadInput, match=r"301\.tif: cannot be unpacked"):
        validate(tmp_path / "submission.zip", "--data", data)
    (tmp_path / "submission.zip").write_bytes(whole[:-40])
    with pytest.raises(BadInput, match="is not a zip file that can be read"):
        validate(tmp_path / "submission.zip")
    with pytest.raises(BadInput, match="there is no such file"):
        validate(tmp_path / "other.zip")


def test_volumes_of_one_name_are_refused_before_they_are_predicted(project, data) -> None:
    (data / "more").mkdir()
    (data / "test_images").rename(data / "more" / "test_images")
    (data / "test_images").mkdir()
    tifffile.imwrite(data / "test_images" / "301.tif", MASK)
    project.predict_options = ScrollPredictOptions(zip=True)
    with pytest.raises(BadInput, match="several volumes are called 301"):
        project.inputs(data)
