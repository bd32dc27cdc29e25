"""What names that follow no known scheme are guessed to mean (`init-data`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_dinocell.guess import guess, read


@pytest.mark.parametrize(
    "path, expected",
    [
        ("BR7/B03/field_2_DAPI.tif", "BR7 B03 2 DAPI"),
        ("BR7/Images/b3-s02-ch1.tiff", "BR7 B03 2 1"),
        ("exp4_P24_f01_c2.tif", "exp4 P24 1 2"),
        ("exp4_c1_A03_f7.tif", "exp4 A03 7 1"),
        ("plate_2/C05/C05_w1_s3.tif", "plate2 C05 3 1"),
        ("DAPI/plate9 well H12 site 4.tif", "plate9 H12 4 DAPI"),
        ("P1_B3_f01_w1.tif", "P1 B03 1 1"),
        ("AF48.tif", "screen AF48 1 1"),
        ("r02c11 hoechst33342 pos9.tif", "screen B11 9 hoechst33342"),
        ("X_A01_s1_lysosome.tif", "X A01 1 lysosome"),
        ("image1.tif", None),
    ],
)
def test_names_of_many_kinds(path: str, expected: str | None) -> None:
    name = read(Path(path), "screen")
    assert (name and " ".join((name.plate, name.well, name.site, name.channel))) == expected


def test_each_file_is_listed_or_left_out_with_a_reason(tmp_path: Path) -> None:
    for name in (
        "train/P1_A01_s1_DNA.tif", "train/P1_A01_s1_RNA.tif", "val/P2_A10_s1_DNA.tif", "val/P2_A9_s1_DNA.tif",
        "val/raw/P2_A09_s1_DNA.tif", "overview.tif", "notes.txt", "val/plate1_A14_site1_Ch1.tif",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    guessed = guess(tmp_path)
    rows = [" ".join(str(row[part]) for part in ("plate", "well", "site", "channel", "split")) for row in guessed.rows]
    assert rows == [
        "P1 A01 1 DNA train", "P1 A01 1 RNA train", "P2 A09 1 DNA validation", "P2 A10 1 DNA validation",
        "plate1 A14 1 1 validation",
    ]  # fmt: skip
    assert {why: [path.name for path in paths] for why, paths in guessed.left_out.items()} == {
        "no part of the name is a well, such as B03": ["overview.tif"],
        "not of a format that this project reads": ["notes.txt"],
        "another image of one channel of a field (a plane, or a time?)": ["P2_A09_s1_DNA.tif"],
    }
    assert (guessed.more, guessed.notes[1]) == (" of 4 fields", "channels: 1, DNA, RNA")
