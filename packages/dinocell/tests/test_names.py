"""The parts of file names: the microscopes' schemes, one's own pattern, wells and channels."""

from __future__ import annotations

import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput
from runner_dinocell import names
from runner_dinocell.names import Name

GUID = "051DAA7C-7042-435F-99F0-1E847D9B42CB"


@pytest.mark.parametrize(
    "path, expected",
    [
        ("plate1_A14_site1_Ch1.tif", Name("", "", "plate1", "A14", "1", "1")),
        ("deep/er/my_plate_b3_site02_ch10.TIFF", Name("", "", "my_plate", "B03", "2", "10")),
        ("P1_A01_site1_ChDNA.tif", Name("", "", "P1", "A01", "1", "DNA")),
        (f"Week1_150607_B02_s1_w1{GUID}.tif", Name("", "", "Week1_150607", "B02", "1", "1")),
        ("Week1_B02_s10_w2.tif", Name("", "", "Week1", "B02", "10", "2")),
        (
            "source_4/images/2021_04_26_Batch1/images/BR00117035__2021-05-02T16_02_51-Measurement1/Images/"
            "r01c13f02p01-ch1sk1fk1fl1.tiff",
            Name("source_4", "2021_04_26_Batch1", "BR00117035", "A13", "2", "1"),
        ),
        ("BR1/Images/r16c24f09p01-ch5sk1fk1fl1.tiff", Name("", "", "BR1", "P24", "9", "5")),
        ("BR1/r32c48f09p01-ch5sk1fk1fl1.tiff", Name("", "", "BR1", "AF48", "9", "5")),
        ("Dest210531-152149_B02_T0001F003L01A01Z01C05.tif", Name("", "", "Dest210531-152149", "B02", "3", "5")),
        ("P7/AssayPlate_Greiner_#655090_W01_B02_T0001F001L01A01Z01C01.tif", Name("", "", "P7", "B02", "1", "1")),
        (
            "source_5/images/B1/images/P8/AssayPlate_PE_6057302/AssayPlate_PE_6057302_P24_T0001F009L01A02Z01C02.tif",
            Name("source_5", "B1", "P8", "P24", "9", "2"),
        ),
        (
            "source_2/images/B7/images/P9/P9_C04_s3_w4.tif",
            Name("source_2", "B7", "P9", "C04", "3", "4"),
        ),
    ],
)
def test_known_schemes(path: str, expected: Name) -> None:
    assert names.known("/data", path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "overview.tif",
        f"Week1_B02_s1_w1_thumb{GUID}.tif",
        "BR1/Images/Index.idx.xml",
        "plate1_A14_site1_Ch1.png",
        "A14_site1_Ch1.tif",
        "labels.csv",
    ],
)
def test_what_is_no_image(path: str) -> None:
    assert names.known("/data", path) is None


@pytest.mark.parametrize("depth", range(7))
def test_the_folders_above_the_data_count(depth: int) -> None:
    """Whatever part of a gallery was copied or is named, its fields have the same names."""
    parts = "source_4/images/B1/images/BR1__2021/Images/r01c01f01p01-ch1sk1fk1fl1.tiff".split("/")
    root, path = "/".join(["/gallery", *parts[:depth]]), "/".join(parts[depth:])
    assert names.known(root, path) == Name("source_4", "B1", "BR1", "A01", "1", "1")


def test_a_pattern_as_other_projects_have_it() -> None:
    read = names.own("{batch}/{plate}/w{channel}/{well}-{site}_*.tif")
    assert read("/data", "x/B1/P7/w3/a2-07_z1.tif") == Name("", "B1", "P7", "A02", "7", "3")
    assert read("/data", "P7/w3/a2-07.tif") is None
    with pytest.raises(BadInput, match=r"data\.pattern .* it lacks \{channel\}"):
        names.own("{plate}_{well}_{site}.tif")


def test_own_pattern() -> None:
    read = names.own(r"(?P<batch>[^/]+)/(?P<plate>[^/]+)/w(?P<channel>\d)/(?P<well>[A-Z]\d+)-(?P<site>\d+)\.tif$")
    assert read("/x", "b2/p3/w2/C7-004.tif") == Name("", "b2", "p3", "C07", "4", "2")
    assert read("/x", "b2/p3/w2/C7.tif") is None


def test_a_group_that_took_no_part_is_no_name() -> None:
    read = names.own(r"(?P<plate>p\d)?_(?P<well>\w+)_(?P<site>\d)_(?P<channel>\d)\.tif")
    assert read("", "_A1_1_1.tif") is None
    assert read("", "p1_A1_1_1.tif") == Name("", "", "p1", "A01", "1", "1")


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("(?P<plate>", "no regular expression"),
        ("{plate}/(?P<well>.)(?P<site>.)(?P<channel>.)", r"has both \{plate\} and groups"),
        ("{batch}/(?P<plate>.)(?P<well>.)(?P<site>.)(?P<channel>.)", r"has both \{batch\} and groups"),
        (r"(\w+)/\w{2}_(.*).tif", "braces hold a name"),
        ("*.tif", r"it lacks \{plate\}"),
        ("(?P<plate>.)(?P<well>.)(?P<sit>.)(?P<channel>.)", r"no group \(\?P<site>…\); did you mean 'sit'\?"),
        ("(?P<plate>.)(?P<well>.)(?P<site>.)(?P<channel>.)(?P<bach>.)", "unknown group .*did you mean 'batch'"),
    ],
)
def test_patterns_that_say_too_little(pattern: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"data.pattern .*{message}"):
        names.own(pattern)


@pytest.mark.parametrize("part", ["(a+)+", "(a|aa)+", "(.*a){25}"])
def test_a_pattern_that_takes_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(names, "_SEARCH", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    read = names.own(rf"(?P<plate>{part})!(?P<well>.)(?P<site>.)(?P<channel>.)")
    with pytest.raises(BadInput, match=r"data\.pattern .* takes for ever to search a+"):
        read("", "a" * 60 + "/x.tif")
    assert signal.getsignal(signal.SIGALRM) is before
    assert names.own(r"(?P<plate>a+)!(?P<well>.)(?P<site>.)(?P<channel>.)")("", "a" * 30 + "!bcd") is not None


def test_many_slow_searches_are_one_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_SEARCHES", 0.3)
    read = names.own(r"(?P<plate>(a+)+)!(?P<well>.)(?P<site>.)(?P<channel>.)")
    with pytest.raises(BadInput, match="takes for ever"):
        all(read("", "a" * 18) is None for _ in range(10_000))


def test_a_pattern_too_large_to_compile_is_refused() -> None:
    with pytest.raises(BadInput, match="no regular expression"):
        names.own("(" * 5000 + "(?P<plate>.)" + ")" * 5000)


@given(st.integers(1, 26), st.integers(1, 48))
def test_wells_have_one_name(row: int, column: int) -> None:
    letter = chr(64 + row)
    expected = f"{letter}{column:02d}"
    for text in (f"{letter}{column}", f" {letter.lower()}{column:03d}", expected):
        assert names.well(text) == expected


PHENIX = ["r01c01f01p01-ch1sk1fk1fl1.tiff"]


@pytest.mark.parametrize(
    "channels, files, light",
    [
        ("12345678", PHENIX, "678"),
        ("123456", PHENIX, "6"),
        ("12345678", ["P_A01_s1_w1.tif"], ""),
        ("123456789", PHENIX, ""),
        ("678", PHENIX, ""),
        (["DNA", "Brightfield", "BF_low"], [], ["Brightfield", "BF_low"]),
        (["DNA", "Phase contrast", "DIC"], [], ["Phase contrast", "DIC"]),
        (["DNA", "BFP", "phalloidin", "Mito"], [], []),
        (["Brightfield"], [], []),
    ],
)  # fmt: skip
def test_brightfield_beside_fluorescence(channels: str, files: list[str], light: str) -> None:
    assert names.transmitted(set(channels), files) == set(light)


def test_channels_are_sorted_as_people_do() -> None:
    assert names.in_order({"10", "2", "1"}) == ("1", "2", "10")
    assert names.in_order({"RNA", "dna", "AGP", "ch10", "ch9"}) == ("AGP", "ch9", "ch10", "dna", "RNA")
    assert names.in_order({"1", "DNA"}) == ("1", "DNA")


@given(st.sets(st.text(st.characters(codec="ascii"), min_size=1), max_size=6))
def test_any_channels_can_be_sorted(channels: set[str]) -> None:
    assert set(names.in_order(channels)) == channels


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_name_breaks_it(root: str, path: str) -> None:
    names.known(root, path)


def test_many_names(record_property: pytest.RecordProperty) -> None:
    """200,000 names of a gallery; the time is noted."""
    paths = [
        f"source_4/images/B{p % 5}/images/BR{p:06d}__2021/Images/r{w // 24 + 1:02d}c{w % 24 + 1:02d}f{s:02d}p01-"
        f"ch{c}sk1fk1fl1.tiff"
        for p in range(12) for w in range(384) for s in range(1, 10) for c in range(1, 6)
    ][:200_000]  # fmt: skip
    begun = time.perf_counter()
    found = {names.known("s3://cellpainting-gallery/cpg0016-jump", path) for path in paths}
    record_property("seconds for 200,000 names", time.perf_counter() - begun)
    assert len(found) == 200_000
    assert None not in found
