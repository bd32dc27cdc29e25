"""core_*.npz: which are found, what is read, and every fault named in one message."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput, DataErrors, PairsConfig, collect_left_out
from runner_ssmunet.classes import Classes
from runner_ssmunet.files import find_inputs, find_records, identity, labelled, read_core, read_outline, stored_labels

CLASSES = ("red", "green", "blue")
WAVENUMBERS = np.linspace(900.0, 1800.0, 101)


def refuse(path: Path, message: str) -> str:
    with pytest.raises(BadInput, match=message) as caught:
        read_core(path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- what is read


def test_a_core_comes_back_as_it_was_written(write_core, make_core) -> None:
    wanted = make_core()
    core = read_core(write_core())
    assert core.spectra.dtype == np.float32
    np.testing.assert_array_equal(core.spectra, wanted["X"])
    np.testing.assert_array_equal(core.wavenumbers, wanted["wn"])
    np.testing.assert_array_equal(core.labels, wanted["y"])
    np.testing.assert_array_equal(core.tissue, wanted["tissue_mask"])
    assert (core.meta["patient_id"], core.remarks) == ("P1", ())
    assert core.meta["delta_cm1"] == pytest.approx(9.0)
    assert core.measured.all()


def test_an_outline_is_the_core_without_its_spectra(write_core) -> None:
    path = write_core()
    outline, core = read_outline(path), read_core(path)
    np.testing.assert_array_equal(outline.wavenumbers, core.wavenumbers)
    np.testing.assert_array_equal(outline.labels, core.labels)
    assert not hasattr(outline, "spectra")


def test_labels_and_mask_may_be_missing(write_core) -> None:
    core = read_core(write_core(y=None, tissue_mask=None, delta_cm1=None, meta=None))
    assert core.labels is None
    assert core.tissue is None
    assert core.meta == {}


@pytest.mark.parametrize(
    "stored",
    [
        '{"patient_id": "P7"}',
        np.array('{"patient_id": "P7"}'),
        np.array(['{"patient_id": "P7"}']),
        np.array(b'{"patient_id": "P7"}'),
        np.frombuffer(b'{"patient_id": "P7"}', np.uint8),
    ],
    ids=["text", "0-d", "1-d", "bytes", "codes"],
)
def test_meta_in_any_plain_form(write_core, stored: Any) -> None:
    assert read_core(write_core(meta=stored)).meta["patient_id"] == "P7"


def test_a_descending_axis_is_turned_round_with_its_spectra(write_core, make_core) -> None:
    wanted = make_core()
    core = read_core(write_core(wn=WAVENUMBERS[::-1], X=wanted["X"][..., ::-1]))
    np.testing.assert_array_equal(core.wavenumbers, WAVENUMBERS)
    np.testing.assert_array_equal(core.spectra, wanted["X"])
    assert "fall from 1800 to 900" in core.remarks[0]


def test_what_is_not_measured_outside_the_tissue_becomes_zero(write_core, make_core) -> None:
    arrays = make_core()
    arrays["X"][0, 0, 5], arrays["X"][0, 1] = np.inf, np.nan
    for mask in (arrays["tissue_mask"], None):
        if mask is None:
            arrays["X"][0, 0] = np.nan
        core = read_core(write_core(X=arrays["X"], tissue_mask=mask))
        assert not core.spectra[0, :2].any()
        assert not core.measured[0, :2].any()
        assert core.measured.sum() == core.measured.size - 2
        np.testing.assert_array_equal(core.spectra[1:], arrays["X"][1:])


def test_huge_values_are_no_infinity(write_core, make_core) -> None:
    arrays = make_core()
    arrays["X"][6, 7, :3] = 3e38
    assert read_core(write_core(X=arrays["X"])).measured.all()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("key", ["X", "wn"])
def test_a_missing_key(write_core, key: str) -> None:
    assert "it holds" in refuse(write_core(**{key: None}), f"no '{key}' in it")


def test_a_key_of_another_name_is_suggested(write_core) -> None:
    refuse(write_core(wn=None, wns=WAVENUMBERS), "did you mean 'wns'")


def test_another_channel_count(write_core) -> None:
    path = write_core(wn=WAVENUMBERS[:-1])
    refuse(path, "101 channels of spectra but 100 wavenumbers")
    with pytest.raises(BadInput, match="101 channels"):
        read_outline(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_in_the_tissue(write_core, make_core, value: float) -> None:
    arrays = make_core()
    arrays["X"][6, 7, 50] = value
    refuse(write_core(X=arrays["X"]), "1 pixel of the tissue with NaN or infinite values, the first in row 6, column 7")
    refuse(write_core(X=arrays["X"], tissue_mask=None), "1 pixel with NaN or infinite values")


def test_nothing_was_measured(write_core) -> None:
    refuse(write_core(X=np.full((12, 14, 101), np.nan, np.float32), tissue_mask=None), "every spectrum is NaN")


@pytest.mark.parametrize("key, what, verb", [("y", "labels", "are"), ("tissue_mask", "tissue mask", "is")])
def test_a_map_of_another_shape(write_core, make_core, key: str, what: str, verb: str) -> None:
    changed = make_core()[key].T
    refuse(write_core(**{key: changed}), f"the {what} {verb} 14 × 12 pixels, the image 12 × 14")


def test_an_empty_tissue_mask(write_core) -> None:
    refuse(write_core(tissue_mask=np.zeros((12, 14), bool)), "its tissue mask is empty")


@pytest.mark.parametrize("value", [1.5, np.nan, np.inf])
def test_labels_that_are_no_whole_numbers(write_core, make_core, value: float) -> None:
    labels = make_core()["y"].astype(np.float64)
    labels[3, 4] = value
    refuse(write_core(y=labels), f"a label is {value:g}")


def test_labels_that_are_words(write_core) -> None:
    refuse(write_core(y=np.full((12, 14), "stroma")), "whole numbers are needed")


def test_whole_labels_stored_as_floats_are_labels(write_core, make_core) -> None:
    labels = make_core()["y"]
    np.testing.assert_array_equal(read_core(write_core(y=labels.astype(np.float32))).labels, labels)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda wn: wn.__setitem__(5, wn[4]), r"number 5, 936 cm⁻¹, comes twice"),
        (lambda wn: wn.__setitem__(slice(None), 1655), r"number 1, 1655 cm⁻¹, comes twice"),
        (lambda wn: wn.__setitem__(slice(5, 7), wn[[6, 5]]), r"number 6, 954 cm⁻¹, is followed by 945"),
        (lambda wn: wn.__setitem__(5, np.nan), "a wavenumber is nan"),
        (lambda wn: wn.__setitem__(0, -1.0), "a wavenumber is -1"),
        (lambda wn: wn.__setitem__(slice(None), 1e4 / wn), "as wavelengths in µm do"),
    ],
    ids=["double", "equal", "unsorted", "nan", "negative", "wavelengths"],
)
def test_an_axis_that_is_none(write_core, change, message: str) -> None:
    axis = WAVENUMBERS.copy()
    change(axis)
    refuse(write_core(wn=axis), message)


@pytest.mark.parametrize("shape", [(1, 101), (101, 1)])
def test_an_axis_as_matlab_writes_it(write_core, make_core, shape: tuple[int, int]) -> None:
    path = write_core(wn=WAVENUMBERS[::-1].reshape(shape), X=make_core()["X"][..., ::-1])
    np.testing.assert_array_equal(read_core(path).wavenumbers, WAVENUMBERS)
    np.testing.assert_array_equal(read_core(path).spectra, make_core()["X"])


def test_an_axis_of_two_dimensions(write_core) -> None:
    refuse(write_core(wn=np.stack([WAVENUMBERS] * 2)), r"its wavenumbers are float64 \(2, 101\)")


def test_spectra_of_two_dimensions(write_core) -> None:
    refuse(write_core(X=np.ones((48, 48))), r"spectra of shape \(48, 48\); three axes .*X.reshape\(rows, columns")


@pytest.mark.parametrize("first", [0, 1], ids=["with the unannotated", "classes alone"])
def test_one_hot_labels_say_how_to_save_them(write_core, make_core, first: int) -> None:
    """The expressions in the message give the labels."""
    labels = make_core()["y"]
    y = np.eye(4, dtype=np.float32)[labels][..., first:]
    message = refuse(write_core(y=y), r"labels of shape \(12, 14, .\) are one-hot.*y.argmax\(-1\) where channel 0")
    advised = message.partition("else ")[2].rstrip(".") if first else "y.argmax(-1)"
    np.testing.assert_array_equal(eval(advised, {"y": y, "np": np}), labels)
    refuse(write_core(y=y * 0.5), r"labels of shape .*one number for each pixel")
    refuse(write_core(tissue_mask=np.full((12, 14, 3), 2)), "a tissue mask of shape")


def test_complex_spectra(write_core, make_core) -> None:
    refuse(write_core(X=make_core()["X"].astype(np.complex64)), "spectra of type complex64")


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_file(write_core, keep: float) -> None:
    path = write_core()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    refuse(path, "not a readable npz file")


def test_a_damaged_file(write_core) -> None:
    path = write_core()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(bytes(content))
    refuse(path, "'X' is truncated or damaged")


@pytest.mark.parametrize("content", [b"not an archive" * 100, b"\x80\x04N."])
def test_not_a_zip(write_core, content: bytes) -> None:
    path = write_core()
    path.write_bytes(content)
    refuse(path, "not a readable npz file")


def test_one_array_instead_of_an_archive(write_core, make_core) -> None:
    path = write_core()
    with path.open("wb") as file:
        np.save(file, make_core()["X"])
    refuse(path, "a single array")


@pytest.mark.parametrize("meta", ["[1, 2]", "{broken", np.array([1.0, 2.0]), np.array(b"\xff\xfe{}")])
def test_meta_that_is_no_object(write_core, meta: Any) -> None:
    refuse(write_core(meta=meta), "meta")


@pytest.mark.parametrize("content", [{"patient_id": "P9"}, '{"patient_id": "P9"}'], ids=["dict", "text"])
def test_meta_as_an_object_array_says_how_to_save_it_again(write_core, make_core, content: Any) -> None:
    """The command in the message is run as it stands, and mends the file."""
    path = write_core(name="a folder/core_1", meta=np.array(content, dtype=object))
    command = shlex.split(refuse(path, "array of Python objects").partition("save it again: ")[2])
    assert command[0] == "python"
    with pytest.raises(BadInput, match="Python objects"):
        find_records(path.parent, "patient")
    subprocess.run([sys.executable, *command[1:]], check=True)
    core = read_core(path)
    assert core.meta["patient_id"] == "P9"
    np.testing.assert_array_equal(core.spectra, make_core()["X"])


def test_labels_as_an_object_array(write_core) -> None:
    refuse(write_core(y=np.full((12, 14), None)), "'y' was saved as an array of Python objects.*save it as numbers")


def test_missing_file(tmp_path: Path) -> None:
    refuse(tmp_path / "core_9.npz", "no such file")
    refuse(tmp_path / "mosaic.tif", "no such file")
    refuse(tmp_path, "a folder. Name the file of one image")


def test_an_unknown_format(tmp_path: Path) -> None:
    (tmp_path / "core.tif").write_bytes(b"")
    refuse(tmp_path / "core.tif", "not a format that is read here")


# ---------------------------------------------------------------- labels


def stored(path: Path, ignore: int | None = 0, needed: bool = True) -> np.ndarray:
    return stored_labels(read_outline(path), path, Classes(CLASSES, source="data.classes"), ignore, needed)


def test_labels_are_stored_as_they_are(write_core, make_core) -> None:
    labels = stored(write_core())
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, make_core()["y"])
    np.testing.assert_array_equal(stored(write_core(), None), labels)


@pytest.mark.parametrize("unannotated", [7, 255])
def test_the_unannotated_are_stored_as_zero(write_core, make_core, unannotated: int) -> None:
    labels = make_core()["y"]
    path = write_core(y=np.where(labels == 0, unannotated, labels))
    np.testing.assert_array_equal(stored(path, unannotated), labels)
    with pytest.raises(BadInput, match=f"label {unannotated} in .* pixels is no class"):
        stored(path)


@pytest.mark.parametrize("label", [4, -1])
def test_labels_out_of_range(write_core, make_core, label: int) -> None:
    labels = make_core()["y"].astype(np.int16)
    labels[:2, 3] = label
    with pytest.raises(BadInput, match=rf"core_1.npz: label {label} in 2 pixels is no class.*1 to 3"):
        stored(write_core(y=labels))


def test_zero_is_out_of_range_where_another_label_is_ignored(write_core) -> None:
    with pytest.raises(BadInput, match="label 0 in"):
        stored(write_core(), 255)


def test_not_one_annotated_pixel(write_core) -> None:
    path = write_core(y=np.zeros((12, 14), np.uint8))
    with pytest.raises(BadInput, match=r"core_1.npz: not one pixel is annotated"):
        stored(path)
    assert not stored(path, needed=False).any()
    assert not stored(path, ignore=None).any()


def test_no_labels_at_all(write_core) -> None:
    with pytest.raises(BadInput, match=r"core_1.npz: it has no labels .neither y in it nor core_1.labels.png"):
        stored(write_core(y=None))


# ---------------------------------------------------------------- what is found


def test_cores_are_grouped_by_patient(write_core) -> None:
    for name, patient in (("b/core_3", "P2"), ("core_1", "P1"), ("core_2", "P1")):
        path = write_core(name, meta={"core_id": name[-1], "patient_id": patient, "slide_id": 5})
    root = path.parent
    np.savez(root / "other.npz", a=np.zeros(3))
    records = find_records(root, "patient")
    assert [(r.key, r.group, r.split) for r in records] == [
        ("core_1", "P1", None), ("core_2", "P1", None), ("core_3", "P2", None),
    ]  # fmt: skip
    assert records[0].files == {"core": root / "core_1.npz", "labels": root / "core_1.npz"}
    assert {r.group for r in find_records(root, "slide")} == {"5"}
    assert [r.group for r in find_records(root, "core")] == ["1", "2", "3"]


def test_cores_that_name_no_patient_are_refused(write_core) -> None:
    write_core("core_1")
    path = write_core("core_2", meta={"core_id": "2", "slide_id": "S1", "patient_id": ""})
    one = r"core_2.npz: its meta does not say which patient .*patient_id.*data.group_by slide or core"
    with pytest.raises(BadInput, match=one):
        find_records(path.parent, "patient")
    write_core("core_3", meta=None)
    with pytest.raises(DataErrors, match=rf"{one}(.|\n)*core_3.npz: its meta does not say which patient"):
        find_records(path.parent, "patient")
    assert [r.group for r in find_records(path.parent, "core")] == ["core_1", "2", "core_3"]


def test_a_json_file_beside_it_says_who_it_is(write_core) -> None:
    path = write_core("core_2", meta=None)
    path.with_suffix(".json").write_text('{"patient": "P4"}')
    (record,) = find_records(path.parent, "patient")
    assert record.group == "P4"
    assert record.files["meta"] == path.with_suffix(".json")


def test_two_names_for_one_patient_are_refused(write_core) -> None:
    path = write_core("core_2")
    path.with_suffix(".json").write_text('{"patient_id": "P4"}')
    with pytest.raises(BadInput, match="its own patient_id is 'P1', the JSON file beside it says 'P4'"):
        find_records(path.parent, "patient")


def test_the_folders_own_split_is_kept(write_core) -> None:
    for part, number in (("train", 1), ("val", 2), ("test", 3)):
        root = write_core(f"{part}/core_{number}").parents[1]
    assert [r.split for r in find_records(root, "patient")] == ["train", "validation", "test"]


def test_equal_names_get_different_keys(write_core) -> None:
    for part in ("a", "b"):
        root = write_core(f"{part}/core_1").parents[1]
    assert len({r.key for r in find_records(root, "patient")}) == 2


def test_every_unreadable_core_is_named(write_core) -> None:
    for number in (1, 2, 3):
        path = write_core(f"core_{number}")
        if number > 1:
            path.write_bytes(b"")
    with pytest.raises(DataErrors, match=r"2 records(.|\n)*core_2(.|\n)*core_3"):
        find_records(path.parent, "patient")


def test_every_fault_seen_without_spectra_is_named_at_once(write_core) -> None:
    write_core("core_0").write_bytes(b"")
    path = write_core("core_1")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    write_core("core_2", meta=None)
    write_core("core_3", meta="{broken")
    write_core("core_4", meta=np.array({"patient_id": "P9"}, dtype=object))
    write_core("core_5", wn=WAVENUMBERS[:-1])
    write_core("core_6")
    with pytest.raises(DataErrors) as caught:
        find_records(path.parent, "patient")
    words = ("not a readable npz", "not a readable npz", "which patient", "not JSON", "Python objects", "100 wavenumb")
    for number, (error, word) in enumerate(zip(caught.value.errors, words, strict=True)):
        assert f"core_{number}.npz" in error
        assert word in error


def test_cores_without_labels_are_set_apart(write_core) -> None:
    """They need not say whose they are, for they are on neither side of a split."""
    write_core("core_1")
    path = write_core("core_2", y=None, meta=None)
    kept, left = labelled(find_records(path.parent, "patient"))
    assert ([r.key for r in kept], [r.key for r in left]) == (["core_1"], ["core_2"])


def test_a_set_without_any_labels_is_refused(write_core) -> None:
    for name in ("core_1", "core_2"):
        root = write_core(name, y=None).parent
    with pytest.raises(DataErrors, match=r"core_1.npz: it has no labels(.|\n)*core_2.npz: it has no labels"):
        labelled(find_records(root, "patient"))


def test_inputs_need_neither_labels_nor_ids(write_core) -> None:
    path = write_core("core_1", meta=None, y=None)
    write_core("core_2")
    records = find_inputs(path.parent)
    assert [(r.key, r.group, dict(r.files)) for r in records] == [
        ("core_1", "core_1", {"core": path}),
        ("core_2", "core_2", {"core": path.with_name("core_2.npz")}),
    ]
    assert find_inputs(path)[0].key == "core_1"


@pytest.mark.parametrize("find", [lambda path: find_records(path, "patient"), find_inputs])
def test_what_is_not_there_is_named(find, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: no such folder"):
        find(tmp_path / "nowhere")
    np.savez(tmp_path / "sample.npz", a=np.zeros(3))
    with pytest.raises(BadInput, match=r"no core below it \(1 other npz file there: name them core_\*.npz\)"):
        find(tmp_path)


def test_a_file_where_a_folder_is_wanted(write_core) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        find_records(write_core(), "patient")


@pytest.mark.parametrize("value, found", [("P1", "P1"), (7, "7"), ("", None), (None, None), (True, None), ([], None)])
def test_identities(value: Any, found: str | None) -> None:
    assert identity(json.loads(json.dumps({"patient_id": value})), "patient") == found


# ---------------------------------------------------------------- the user's own table or patterns


def test_labels_that_lie_elsewhere(write_core, make_core, tmp_path: Path) -> None:
    """A table names them, or a pattern; a core that holds labels of its own, too, has them twice."""
    wanted = make_core()["y"]
    core = write_core("scans/core_1", y=None)
    (tmp_path / "annotated").mkdir()
    np.save(tmp_path / "annotated/a_core_1.npy", wanted)
    table = tmp_path / "t.csv"
    table.write_text(f"id,image,label,patient\none,{core.relative_to(tmp_path)},annotated/a_core_1.npy,P9\n")
    (record,) = find_records(tmp_path, "patient", PairsConfig(manifest=table))
    assert (record.key, record.group) == ("one", "P9")
    np.testing.assert_array_equal(read_core(record.files["core"], record.files["labels"]).labels, wanted)
    np.testing.assert_array_equal(read_outline(record.files["core"], record.files["labels"]).labels, wanted)
    assert [r.key for r in find_inputs(table)] == ["one"]
    pattern = ("{id}.npz", "annotated/*_{id}.npy")
    (record,) = find_records(tmp_path, "patient", PairsConfig(pattern=pattern))
    assert (record.key, record.group, record.files["labels"].name) == ("core_1", "P1", "a_core_1.npy")
    write_core("scans/core_2", y=None)
    kept, without = labelled(find_records(tmp_path, "patient", PairsConfig(pattern=pattern)))
    assert [r.key for r in kept + without] == ["core_1", "core_2"]
    with pytest.raises(BadInput, match=r"it holds labels of its own, and a_core_1\.npy"):
        read_core(write_core("scans/core_3"), tmp_path / "annotated/a_core_1.npy")
    with pytest.raises(BadInput, match=r"labels and masks are read from \.png"):
        read_core(core, tmp_path / "t.csv")


def test_predict_says_which_archives_it_leaves_out(write_core, tmp_path: Path) -> None:
    core = write_core()
    core.with_name("mean.npz").write_bytes(b"")
    with collect_left_out() as said:
        find_inputs(tmp_path)
    assert [finding.message for finding in said] == [f"{tmp_path}: 1 npz file left out, not named core_*.npz: mean.npz"]
