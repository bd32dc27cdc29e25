"""`check` reports volumes that can be read and still look wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from runner_core import BadInput, Finding, Record
from runner_vesuvius import checks, phantom, statistics, zarrs
from runner_vesuvius.files import find_records

SHAPE = (20, 24, 28)


def scan(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(40, 200, SHAPE).astype(np.uint8)


def annotation(image: np.ndarray) -> np.ndarray:
    """Surface where it is bright, half of it ignored."""
    label = (image > 150).astype(np.uint8)
    label[:10] = 2
    return label


def saved(folder: Path, image: np.ndarray, label: np.ndarray | None, key: str = "A_1") -> Record:
    files = {"image": folder / f"{key}.npy", "label": folder / f"{key}_label.npy"}
    np.save(files["image"], image)
    if label is None:
        del files["label"]
    else:
        np.save(files["label"], label)
    return Record(key, key.partition("_")[0], files)


def told(record: Record) -> list[str]:
    return [f"{f.rule} {f.level}: {f.message}" for f in checks.findings(record)]


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_good_volumes_have_no_findings(tmp_path: Path) -> None:
    image = scan()
    assert told(saved(tmp_path, image, annotation(image))) == []
    assert told(saved(tmp_path, image, None)) == []


def test_the_phantom_has_no_errors_or_warnings(tmp_path: Path) -> None:
    phantom.write_phantom(tmp_path, np.random.default_rng(0), (1, 2, 1, 1), shape=(48, 48, 48))
    records = find_records(tmp_path)
    found: list[Finding] = [f for r in records for f in checks.findings(r)]
    assert [f for f in [*found, *checks.set_findings(records, patch=(48, 48, 48))] if f.level != "note"] == []


def test_a_label_of_another_shape(tmp_path: Path) -> None:
    image = scan()
    record = saved(tmp_path, image, annotation(image)[:, :-1])
    with pytest.raises(BadInput, match=r"A_1_label\.npy: 20 × 23 × 28 voxels, but its image .*20 × 24 × 28"):
        told(record)


def test_a_volume_smaller_than_the_patch(tmp_path: Path) -> None:
    image = scan()
    records = [saved(tmp_path, image, annotation(image), key) for key in ("A_1", "A_2", "B_1")]
    remedy = "Set data.patch to sides that fit, or leave the volume out."
    for some, others in ((records, r" \(3 volumes are: A_1\.npy, A_2\.npy, B_1\.npy\)"), (records[:1], "")):
        found = checks.set_findings(some, patch=(20, 25, 16))
        (text,) = [f.message for f in found if (f.rule, f.level) == ("patch", "error")]
        said = rf"A_1\.npy: 20 × 24 × 28 voxels, smaller than the patch of 20 × 25 × 16{others}\. {remedy}"
        assert re.fullmatch(said, text)
    assert not [f for f in checks.set_findings(records, patch=(20, 24, 16)) if f.rule == "patch"]


def test_a_label_that_ignores_everything(tmp_path: Path) -> None:
    text = only(told(saved(tmp_path, scan(), np.full(SHAPE, 2, np.uint8))))
    assert text.startswith("label error: A_1_label.npy: every voxel is 2 (ignore)")


def test_a_label_without_surface(tmp_path: Path) -> None:
    image = scan()
    label = np.where(annotation(image) == 2, 2, 0).astype(np.uint8)
    text = only(told(saved(tmp_path, image, label)))
    assert text == "label warning: A_1_label.npy: no surface voxel among 6,720 annotated voxels."


def test_labels_that_are_inverted_or_of_another_volume(tmp_path: Path) -> None:
    image = scan()
    label = annotation(image)
    inverted = np.where(label == 2, 2, 1 - np.minimum(label, 1)).astype(np.uint8)
    thick, dark = told(saved(tmp_path, image, inverted))
    assert "69% of the annotated voxels are surface" in thick
    assert "surface is darker than background" in dark
    moved = np.where(annotation(image) == 1, 0, np.where((image < 60) & (label != 2), 1, label)).astype(np.uint8)
    assert "shifted, mirrored or another volume's" in only(told(saved(tmp_path, image, moved)))


def test_a_label_without_ignore_is_noted(tmp_path: Path) -> None:
    image = scan()
    text = only(told(saved(tmp_path, image, (image > 150).astype(np.uint8))))
    assert text.startswith("label note: A_1_label.npy: no voxel is 2 (ignore)")


def test_constant_and_poor_images(tmp_path: Path) -> None:
    image = scan()
    assert only(told(saved(tmp_path, np.full(SHAPE, 7, np.uint8), None))).startswith("intensity error: A_1.npy: every")
    assert "only 3 grey values; is this a label" in only(told(saved(tmp_path, image % 3, None)))


def test_sixteen_bits(tmp_path: Path) -> None:
    """The high byte is read, of which a 12-bit scan leaves sixteen values, and 8 bits in a 16-bit file none."""
    wide = scan().astype(np.uint16) * 256
    assert only(told(saved(tmp_path, wide, None))).startswith("depth note: A_1.npy: 16 bits a voxel")
    poor, note = told(saved(tmp_path, wide // 16, None))
    assert poor.startswith("intensity warning: A_1.npy: the highest value is 3184: the high byte of 16 bits leaves 11")
    assert note.startswith("depth note")
    assert "only 20 grey values; scale the scan" in told(saved(tmp_path, wide // 256 % 20 * 2560, None))[0]
    narrow = told(saved(tmp_path, wide // 256, None))[0]
    assert narrow.startswith("intensity error: A_1.npy: all values are below 256: these are 8 bits in a 16-bit file")
    assert told(saved(tmp_path, wide * 0, None))[0].startswith("intensity error: A_1.npy: every voxel is 0.")


def test_remarks_on_what_is_predicted(tmp_path: Path) -> None:
    """The image is reported in the same way, and never as an error: the prediction is there."""
    image = scan()
    assert list(checks.remarks(saved(tmp_path, image, None))) == []
    for odd, text in (
        (image * 0, "every voxel is 0"),
        (image.astype(np.uint16), "these are 8 bits in a 16-bit file"),
        (image % 3, "only 3 grey values"),
    ):
        (found,) = (f for f in checks.remarks(saved(tmp_path, odd, None)) if f.level != "note")
        assert found.level == "warning"
        assert text in found.message
    (note,) = checks.remarks(saved(tmp_path, image.astype(np.uint16) * 256, None))
    assert (note.rule, note.level) == ("depth", "note")


def test_clipped_images(tmp_path: Path) -> None:
    """Within what is annotated: elsewhere a mask may have blackened it."""
    image = scan()
    label = annotation(image)
    image[:10] = 0
    assert told(saved(tmp_path, image, label)) == []
    image[10:] = np.where(image[10:] > 120, 255, image[10:])
    assert "of the annotated voxels are 255: clipped" in only(told(saved(tmp_path, image, label)))


def test_chunks_that_are_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "A_1.zarr"
    zarr.create_array(path, data=scan(), chunks=(10, 24, 28))
    record = Record("A_1", "A", {"image": path})
    assert told(record) == []
    shutil.rmtree(path / "c" / "1")
    text = only(told(record))
    assert text.startswith("chunks warning: A_1.zarr: 1 of 2 chunks are stored, the others read as 0; was it copied")
    assert [f.level for f in checks.remarks(record)] == ["warning"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("fill", [0, 1, 2])
def test_chunks_of_labels_that_are_not_stored(tmp_path: Path, version: int, fill: int) -> None:
    """They are learned as what they are read as, unless that is: not annotated."""
    image = scan()
    label = annotation(image)
    label[10:] = np.where(label[10:] == 1, 1, 0)
    record = saved(tmp_path, image, None)
    path = record.files["label"] = tmp_path / "A_1_label.zarr"
    zarr.create_array(path, data=label, chunks=(5, 24, 28), fill_value=fill, zarr_format=version)
    if fill < 2:
        assert told(record) == []
        gone = path / "0.0.0" if version == 2 else path / "c" / "0" / "0" / "0"
        gone.unlink()
        text = next(line for line in told(record) if line.startswith("chunks warning"))
        assert f"3 of 4 chunks are stored, the others read as {fill} ({['background', 'surface'][fill]})" in text
    else:
        assert zarrs.chunks(path) == (2, 4)
        assert told(record) == []


# ---------------------------------------------------------------- sets


def several(folder: Path, *keys: str, label: np.ndarray | None = None, shift: int = 0) -> list[Record]:
    images = [scan(i) + np.uint8(i * shift) for i in range(len(keys))]
    return [
        saved(folder, image, annotation(image) if label is None else label, key)
        for key, image in zip(keys, images, strict=True)
    ]


def set_told(records: list[Record]) -> list[str]:
    """All but the note of the labels' shares, which every set has."""
    return [f"{f.rule} {f.level}: {f.message}" for f in checks.set_findings(records) if f.rule != "shares"]


def test_a_good_set_has_no_findings(tmp_path: Path) -> None:
    assert set_told(several(tmp_path, "A_1", "A_2", "B_1", "B_2")) == []


def test_one_scroll_under_two_names(tmp_path: Path) -> None:
    records = several(tmp_path, "Scroll1_1", "Scroll1_2", "scroll-1_1", "scroll-1_2")
    assert "'Scroll1' and 'scroll-1' look like one scroll" in only(set_told(records))


def test_scrolls_of_one_volume_and_one_scroll(tmp_path: Path) -> None:
    assert only(set_told(several(tmp_path, "A_1", "A_2", "B_1"))) == "scrolls note: 1 scroll with one volume only: B."
    assert "all volumes are of scroll 'A': none can validate" in only(set_told(several(tmp_path, "A_1", "A_2")))


def test_shares_of_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all voxels, and the range over volumes; of a sample where there are many, without what cannot be read."""
    label = np.zeros(SHAPE, np.uint8)
    label[:5] = 2
    label[5:7] = 1
    records = several(tmp_path, "A_1", "A_2", "B_1", "B_2", label=label)
    np.save(records[1].files["label"], label * (label == 1))
    (text,) = (f.message for f in checks.set_findings(records) if f.rule == "shares")
    assert text == (
        "4 of 4 labels: 10.0% of the voxels are surface (10.0% to 10.0%), 18.8% of the voxels are not annotated "
        "(0.0% to 25.0%)."
    )
    monkeypatch.setattr(checks, "SHARES_OF", 2)
    records[3].files["label"].write_bytes(b"")
    (text,) = (f.message for f in checks.set_findings(records) if f.rule == "shares")
    assert text.startswith("1 of 4 labels: 10.0% of the voxels are surface (10.0% to 10.0%), 25.0%")
    unlabelled = [Record(r.key, r.group, {"image": r.files["image"]}) for r in records]
    assert "shares" not in {f.rule for f in checks.set_findings(unlabelled)}


def test_no_surface_in_the_whole_set(tmp_path: Path) -> None:
    label = np.zeros(SHAPE, np.uint8)
    records = several(tmp_path, "A_1", "A_2", "B_1", "B_2", label=label)
    assert only(set_told(records)).startswith("surface error: no volume that can be read has a surface voxel")


def test_scrolls_of_different_brightness(tmp_path: Path) -> None:
    records = several(tmp_path, "A_1", "B_1", "A_2", "B_2")
    dark = saved(tmp_path, scan() // 5, None, "C_1")
    text = next(line for line in set_told([*records, dark]) if line.startswith("brightness note"))
    assert "A 119 ± 46, B 120 ± 46, C 23 ± 9" in text


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    records = several(tmp_path, "A_1", "A_2", "B_1", "B_2")
    for record in records[:3]:
        for path in record.files.values():
            path.write_bytes(b"")
    assert set_told(records) == []


def test_voxels_are_counted_by_label() -> None:
    image = scan()
    label = annotation(image)
    counts = statistics.histogram(image, label)
    for value in range(3):
        assert np.array_equal(counts[value], np.bincount(image[label == value], minlength=256))
    assert np.array_equal(statistics.histogram(image, None)[2], np.bincount(image.ravel(), minlength=256))


def test_voxels_of_each_label(project: Any, tmp_path: Path) -> None:
    image = scan()
    label = annotation(image)
    found = project.checks().annotation(project.decode(saved(tmp_path, image, label)))
    known = label[10:]
    assert found.counts == {"background": int((known == 0).sum()), "surface": int((known == 1).sum())}
    assert found.ignored == 10 * SHAPE[1] * SHAPE[2]
    assert project.checks().annotation(project.decode(saved(tmp_path, image, None))) is None
