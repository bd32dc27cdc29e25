"""Finding fields: folders and URLs by one code, keys, channels, labels, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput, Url, collect_left_out
from runner_core.testing import changed, cropped
from runner_dinocell import phantom, sources
from runner_dinocell.config import CellConfig, CellDataConfig
from runner_dinocell.fields import decode
from runner_dinocell.files import find_inputs, find_records
from runner_dinocell.project import DinoCell

JUMP = "source_4/images/B1/images/BR1__2021/Images/r01c{column:02d}f01p01-ch{channel}sk1fk1fl1.tiff"


def make(root: Path, *paths: str) -> Path:
    """Empty files: finding reads names only."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def refused(root: Path, config: CellConfig, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        find_records(root, config)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- fields


def test_a_gallery_like_jumps(tmp_path: Path, config: CellConfig) -> None:
    """Key source/batch/plate/well/site, group source/batch/plate, channels in order."""
    make(tmp_path, *(JUMP.format(column=column, channel=c) for column in (1, 2) for c in (2, 1, 10)))
    make(tmp_path, "source_4/workspace/load_data_csv/x.txt", ".hidden/P_A01_s1_w1.tif")
    first, second = find_records(tmp_path, config)
    assert (first.key, second.key) == ("source_4/B1/BR1/A01/1", "source_4/B1/BR1/A02/1")
    assert first.group == second.group == "source_4/B1/BR1"
    assert first.channels == tuple(first.files) == ("1", "2", "10")
    assert first.files["2"] == tmp_path / JUMP.format(column=1, channel=2)
    assert (first.source, first.batch, first.plate, first.well, first.site) == ("source_4", "B1", "BR1", "A01", "1")
    assert first.label is None


def test_one_plates_name_in_two_batches_is_two_plates(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(JUMP.replace("B1", b).format(column=1, channel=1) for b in ("B1", "B2")))
    assert [r.group for r in find_records(tmp_path, config)] == ["source_4/B1/BR1", "source_4/B2/BR1"]


def test_a_table_and_a_pattern_are_one_too_many(tmp_path: Path, config: CellConfig) -> None:
    table = make(tmp_path, "1.tif") / "t.csv"
    table.write_text("plate,well,site,channel,path\nP,A01,1,1,1.tif\n")
    config.data.pattern = "{plate}_{well}_{site}_{channel}.tif"
    refused(table, config, r"data.pattern and the table .*t.csv both say .*: leave one out")
    assert len(find_inputs(table, config, ("1",))) == 1  # the pattern is that of the data which were trained on


def test_real_images(real_plate: Path, config: CellConfig) -> None:
    records = find_records(real_plate, config)
    assert [r.key for r in records] == [f"plate1/{well}/{site}" for well in ("A14", "B13", "C12") for site in (1, 2)]
    assert all(r.channels == ("1", "2", "3", "4", "5") and len(r.files) == 5 for r in records)


def test_sites_are_sorted_as_numbers(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(f"P_A01_s{site}_w1.tif" for site in (10, 9, 1)))
    assert [r.site for r in find_records(tmp_path, config)] == ["1", "9", "10"]


def test_own_pattern(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "p1/w1/A1-1.tif", "p1/w2/A1-1.tif", "p1/readme.txt")
    refused(tmp_path, config, r"known schemes .* fit 0 of 2 TIFF files, not p1/w1/A1-1\.tif for one\. .*data\.pattern")
    config.data.pattern = r"(?P<plate>[^/]+)/w(?P<channel>\d)/(?P<well>\w+)-(?P<site>\d)\.tif"
    (record,) = find_records(tmp_path, config)
    assert (record.key, record.channels) == ("p1/A01/1", ("1", "2"))


def test_the_root_may_be_a_link_or_relative(
    tmp_path: Path, config: CellConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "BR1__x/Images", "r01c01f01p01-ch1sk1fk1fl1.tiff")
    (tmp_path / "link").symlink_to(tmp_path / "BR1__x" / "Images")
    monkeypatch.chdir(tmp_path / "BR1__x" / "Images")
    assert [find_records(root, config)[0].key for root in (Path("."), tmp_path / "link")] == ["BR1/A01/1"] * 2


def test_few_unknown_names_are_passed_over(tmp_path: Path, config: CellConfig) -> None:
    """Overviews and thumbnails lie about everywhere."""
    make(tmp_path, "P_A01_s1_w1.tif", "P_A02_s1_w1.tif", "overview.tif")
    assert len(find_records(tmp_path, config)) == 2
    make(tmp_path, "a.tif", "b.tif")
    refused(tmp_path, config, "fit 2 of 5 TIFF files")


def test_nothing_there(tmp_path: Path, config: CellConfig) -> None:
    refused(tmp_path, config, r"no image below it\. Looked for .*PLATE_A01_site1_Ch1\.tif.*data\.manifest")
    refused(tmp_path / "none", config, "no such folder")
    refused(make(tmp_path, "x") / "x", config, "not a folder")


def test_pictures_are_no_images(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "P_A01_s1_w1.png", "P_A02_s1_w1.JPG")
    refused(tmp_path, config, "no TIFF file below it, but 2 PNG or JPEG files")


def test_a_channel_by_another_name(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "P_A01_site1_Ch5.tif")
    for said in ("Ch5", "w05"):
        config.data.channels = (said,)
        refused(tmp_path, config, f"no image of channel '{said}'; did you mean '5'")


def test_two_images_of_one_channel(tmp_path: Path, config: CellConfig) -> None:
    """Plates merged by a wrong key: several say the same of themselves."""
    make(tmp_path, "week1/IXMtest_A01_s1_w1.tif", "week2/IXMtest_A01_s1_w1.tif")
    refused(tmp_path, config, r"two images of channel 1 of IXMtest/A01/1: .*week1.* and .*week2.*data\.pattern")
    config.data.pattern = r"(?P<plate>[^/]+)/IXMtest_(?P<well>\w+)_s(?P<site>\d)_w(?P<channel>\d)"
    assert [r.group for r in find_records(tmp_path, config)] == ["week1", "week2"]


# ---------------------------------------------------------------- channels


def test_a_missing_file_takes_no_channel_from_the_others(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(f"P_A0{w}_s1_w{c}.tif" for w in (1, 2, 3) for c in (1, 2) if (w, c) != (2, 2)))
    assert [list(r.files) for r in find_records(tmp_path, config)] == [["1", "2"], ["1"], ["1", "2"]]
    assert {r.channels for r in find_records(tmp_path, config)} == {("1", "2")}


def test_only_channels_of_every_plate_are_taken(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(f"P_A01_s1_w{c}.tif" for c in (1, 2)), *(f"Q_A01_s1_w{c}.tif" for c in (1, 2, 6)))
    one, other = find_records(tmp_path, config)
    assert one.channels == other.channels == ("1", "2")
    assert (one.unused, other.unused) == ((), ("6",))


def test_chosen_channels(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(f"P_A01_s1_w{c}.tif" for c in (1, 2, 3)))
    config.data.channels = ("3", "1")
    (record,) = find_records(tmp_path, config)
    assert (record.channels, tuple(record.files), record.unused) == (("3", "1"), ("3", "1"), ("2",))
    assert find_records(tmp_path, config, ["2"])[0].channels == ("2",)
    config.data.channels = ("33",)
    refused(tmp_path, config, r"no image of channel '33'; did you mean '3'\? \(there are 1, 2, 3\)")


def test_plates_without_a_common_channel(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "P_A01_s1_w1.tif", "Q_A01_s1_w2.tif")
    refused(tmp_path, config, r"no channel that every plate has: P has 1; Q has 2.*data\.channels")


# ---------------------------------------------------------------- labels


def test_brightfield_is_taken_where_it_is_asked_for(tmp_path: Path, config: CellConfig) -> None:
    root = make(tmp_path / "P1" / "Images", *(f"r01c01f01p01-ch{n}sk1fk1fl1.tiff" for n in range(1, 9)))
    with collect_left_out() as said:
        (field,) = find_records(root, config)
        assert field.channels == ("1", "2", "3", "4", "5")
        assert "6, 7, 8" in said[0].message
        assert "--data.channels 1 2 3 4 5 6 7 8" in said[0].message
        config.data.channels = ("1", "7")
        (field,) = find_records(root, config)
    assert (field.channels, len(said)) == (("1", "7"), 1)


@pytest.mark.parametrize("kind", ["subset", "bag"])
def test_networks_for_mixed_stains_take_plates_with_others_and_without(
    tmp_path: Path, config: CellConfig, kind: Any
) -> None:
    config.model.channels = kind
    root = make(tmp_path, "P1/P1_A01_site1_ChDNA.tif", "P1/P1_A01_site1_ChER.tif",
                "P2/P2_A01_site1_ChDNA.tif", "P2/P2_A01_site1_ChRNA.tif")  # fmt: skip
    fields = find_records(root, config)
    assert [field.channels for field in fields] == [("DNA", "ER", "RNA")] * 2
    assert [list(field.files) for field in fields] == [["DNA", "ER"], ["DNA", "RNA"]]
    assert all(field.partial for field in fields)
    trained = ("AGP", "DNA", "ER")
    used = {field.channels for field in find_records(root / "P2", config, trained)}
    assert used == {("RNA", "DNA", "ER") if kind == "subset" else ("DNA", "RNA")}
    assert find_records(root / "P1", config, ("DNA",))[0].channels == ("DNA",)


def test_a_subset_network_has_so_many_places(tmp_path: Path, config: CellConfig) -> None:
    config.model.channels = "subset"
    root = make(tmp_path, *(f"P2/P2_A01_site1_Ch{name}.tif" for name in ("DNA", "RNA", "Mito")))
    with pytest.raises(BadInput, match="takes 2 at once"):
        find_records(root, config, ("DNA", "ER"))


def test_labels_beside_the_images(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, *(f"P_A0{w}_s{s}_w1.tif" for w in (1, 2) for s in (1, 2)), "Q_A01_s1_w1.tif")
    (tmp_path / "labels.csv").write_text("plate,well,compound\nP,a1,dmso\nP,A02,\nR,A01,taxol\n")
    assert [r.label for r in find_records(tmp_path, config)] == ["dmso", "dmso", None, None, None]


def test_labels_by_well_alone(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "P_A01_s1_w1.tif", "Q_A01_s1_w1.tif")
    (tmp_path / "labels.csv").write_text("well,compound,dose\nA01,dmso,3\n")
    refused(tmp_path, config, r"labels\.csv: which column has the labels \(compound, dose\)\? .*data\.label")
    config.data.label = "dose"
    assert [r.label for r in find_records(tmp_path, config)] == ["3", "3"]
    config.data.label = "dosis"
    refused(tmp_path, config, r"labels\.csv: no column 'dosis'; did you mean 'dose'\?.*well, compound, dose")


@pytest.mark.parametrize(
    "text, message",
    [
        ("plate,compound\nP,dmso\n", "no column 'well'"),
        ("well,compound\nA01,dmso\na1,taxol\n", "line 3: A01 is taxol here and dmso before"),
        ("well,compound\n,dmso\n", "line 2 has no well"),
        ("well\nA01\n", r"which column has the labels \(none\)"),
    ],
)
def test_labels_that_say_nothing(tmp_path: Path, config: CellConfig, text: str, message: str) -> None:
    make(tmp_path, "P_A01_s1_w1.tif")
    (tmp_path / "labels.csv").write_text(text)
    refused(tmp_path, config, rf"labels\.csv: .*{message}")


def test_labels_that_are_not_there(tmp_path: Path, config: CellConfig) -> None:
    make(tmp_path, "P_A01_s1_w1.tif")
    config.data.label = "compound"
    refused(tmp_path, config, r"data\.label is 'compound', but there is no labels\.csv here")


# ---------------------------------------------------------------- what is predicted


def test_inputs(tmp_path: Path, config: CellConfig) -> None:
    """A folder, or one image of a field: the others are beside it. Channels are the network's."""
    make(tmp_path, *(f"P_A0{w}_s1_w{c}.tif" for w in (1, 2) for c in (1, 2, 3)))
    assert [r.channels for r in find_inputs(tmp_path, config, ("2", "1"))] == [("2", "1")] * 2
    (record,) = find_inputs(tmp_path / "P_A02_s1_w1.tif", config, ("2", "1"))
    assert record.key == "P/A02/1"
    assert len(record.files) == 2
    with pytest.raises(BadInput, match="which field it is of, or it is of another channel"):
        find_inputs(tmp_path / "P_A02_s1_w3.tif", config, ("2", "1"))


# ---------------------------------------------------------------- URLs


def test_a_bucket_is_read_as_a_folder(small_phantom: Path, config: CellConfig, s3: Any) -> None:
    for path in sorted(p for p in small_phantom.rglob("*") if p.is_file()):
        s3.put("gallery", f"cpg/{path.relative_to(small_phantom)}", path.read_bytes())
    s3.put("gallery", "cpg/.thumbs/P_A01_s1_w1.tif", b"")
    config.remote.endpoint = s3.endpoint
    root = Url("s3://gallery/cpg/")
    here, there = find_records(small_phantom, config), find_records(root, config)
    assert [(*r.key, r.label, r.channels) for r in here] == [(*r.key, r.label, r.channels) for r in there]
    assert len({r.label for r in there}) == len(phantom.TREATMENTS)
    for one, other in zip(here, there, strict=True):
        for name, place in other.files.items():
            assert isinstance(place, Url)
            assert place.text.removeprefix("s3://gallery/cpg/") == str(one.files[name].relative_to(small_phantom))
            assert place.size == one.files[name].stat().st_size
            assert place.etag


def test_a_field_at_urls_is_prepared_as_one_in_a_folder(small_phantom: Path, config: CellConfig, s3: Any) -> None:
    """An error about a file names its URL."""
    here = find_records(small_phantom, config)
    broken = 0
    for record in here:
        for path in record.files.values():
            assert isinstance(path, Path)
            s3.put("fields", str(path.relative_to(small_phantom)), path.read_bytes())
    config.remote.endpoint = s3.endpoint
    project = DinoCell(config)
    for one, other in zip(here, find_records(Url("s3://fields"), config), strict=True):
        try:
            expected = decode(one).arrays["image"]  # type: ignore[arg-type]
        except BadInput as error:
            broken += 1
            said = str(error).replace(str(small_phantom), "s3://fields")
            with pytest.raises(BadInput) as caught:
                cropped(project, other).decoded  # noqa: B018
            assert str(caught.value) == said
            continue
        assert np.array_equal(cropped(project, other).decoded.arrays["image"], expected)
    assert broken == 2


def test_a_bucket_that_is_not_there(config: CellConfig, s3: Any) -> None:
    config.remote.endpoint = s3.endpoint
    with pytest.raises(BadInput, match=r"s3://nobody/cpg.*no such bucket"):
        find_records(Url("s3://nobody/cpg"), config)


def test_labels_are_not_lost_when_the_link_fails(config: CellConfig, s3: Any) -> None:
    s3.put("labelled", "P_A01_s1_w1.tif", b"")
    s3.put("labelled", "labels.csv", b"well,kind\nA01,x\n")
    config.remote.endpoint, config.remote.retries = s3.endpoint, 0
    s3.fail("unavailable", "labels.csv", times=1)
    with pytest.raises(BadInput, match=r"s3://labelled/labels\.csv: it could not be read"):
        find_records(Url("s3://labelled"), config)
    assert [r.label for r in find_records(Url("s3://labelled"), config)] == ["x"]


def test_an_empty_prefix(config: CellConfig, s3: Any) -> None:
    s3.put("gallery", "other/x.tif", b"")
    config.remote.endpoint = s3.endpoint
    with pytest.raises(BadInput, match="s3://gallery/nothing: there is no file at or below"):
        find_records(Url("s3://gallery/nothing"), config)


def test_many_files(
    config: CellConfig, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """200,000 images become fields; the time is noted."""
    paths = [
        JUMP.replace("BR1", f"BR{plate}").format(column=column, channel=channel).replace("r01", f"r{row:02d}")
        for plate in range(105) for row in range(1, 17) for column in range(1, 25) for channel in range(1, 6)
    ][:200_000]  # fmt: skip
    root = Url("s3://gallery/cpg")
    monkeypatch.setattr(sources, "listed", lambda root, remote: ((path, root / path) for path in paths))
    monkeypatch.setattr(sources, "content_if_any", lambda *_: b"well,label\nA01,x\n")
    begun = time.perf_counter()
    records = find_records(root, config)
    record_property("seconds for 200,000 images", time.perf_counter() - begun)
    assert len(records) == 40_000
    assert sum(len(r.files) for r in records) == 200_000


def test_inputs_are_not_those_of_the_runs_manifest(tmp_path: Path, config: CellConfig) -> None:
    """They need no labels; a table may be an input itself."""
    make(tmp_path, *(f"P_A0{w}_s1_w1.tif" for w in (1, 2)))
    (tmp_path / "trained.csv").write_text("plate,well,site,channel,path,kind\nT,A01,1,1,t.tif,x\n")
    (tmp_path / "other.csv").write_text("plate,well,site,channel,path\nQ,A01,1,1,P_A01_s1_w1.tif\n")
    config.data.manifest, config.data.label = str(tmp_path / "trained.csv"), "kind"
    assert [r.key for r in find_records(tmp_path, config)] == ["T/A01/1"]
    assert [r.key for r in find_inputs(tmp_path, config, ("1",))] == ["P/A01/1", "P/A02/1"]
    assert [r.key for r in find_inputs(tmp_path / "P_A02_s1_w1.tif", config, ("1",))] == ["P/A02/1"]
    assert [r.key for r in find_inputs(tmp_path / "other.csv", config, ("1",))] == ["Q/A01/1"]


def test_a_manifest_is_kept_by_its_whole_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for given, kept in (("a.csv", str(tmp_path / "a.csv")), ("s3://b/a.csv", "s3://b/a.csv"), (None, None)):
        assert CellDataConfig(manifest=given).manifest == kept
        config = changed(CellConfig(), {"data.manifest": given})
        assert DinoCell(config).config.data.manifest == kept
