"""The facts that the audit collects about records, and the findings of its rules about all of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import Annotation, BadInput, Checks, Decoded, Finding, Original, Project, Record
from runner_core.cli import main
from runner_core.contract import CachePlan
from runner_core.tools.check.facts import (
    ArrayFacts,
    Checked,
    Examine,
    Examined,
    Levels,
    RecordFacts,
    digest,
    levels,
    record_facts,
)
from runner_core.tools.check.pictures import _drawn, _most_common
from runner_core.tools.check.rules import outliers, set_rules
from runner_core.tools.check.tables import other_files, prepared_already, tables

# ---------------------------------------------------------------- grey values


def test_levels_of_a_small_array_are_exact() -> None:
    found = levels(np.array([[0, 3], [3, 7]], np.int16))
    assert found == Levels(0, 7, 3, 4, 0.25)
    assert not found.constant
    assert found.spread == 7
    assert levels(np.array([False, True, True])) == Levels(0, 1, 2, 3, pytest.approx(2 / 3))
    assert levels(np.array(["a"])) is None


def test_ends_are_exact_where_the_rest_is_of_a_sample() -> None:
    image = np.random.default_rng(0).integers(100, 4000, (300, 40, 100), np.uint16)
    image[7, 7, 7], image[9, 9, 9] = 0, 65535
    found = levels(image)
    assert found is not None
    assert (found.low, found.high) == (0, 65535)
    assert found.seen < image.size
    assert found.distinct > 3500
    assert found.highest < 0.001


def test_no_channel_escapes_the_sample() -> None:
    """Every fourth channel alone has values: whatever the step, they are among the sample."""
    spectra = np.zeros((600, 600, 4), np.float32)
    spectra[..., 3] = np.arange(600)
    for array in (spectra, np.asfortranarray(spectra), spectra[::2]):
        found = levels(array)
        assert found is not None
        assert found.distinct > 100


def test_values_that_are_none_are_left_out() -> None:
    some = levels(np.array([1.0, np.nan, 2.0, -np.inf], np.float32))
    assert some == Levels(1, 2, 2, 2, 0.5, bad=0.5)
    for nothing in (np.full(3, np.nan), np.zeros((0, 4))):
        found = levels(nothing)
        assert found is not None
        assert math.isnan(found.low)
        assert found.constant


def test_digests_are_of_values() -> None:
    image = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert digest(image) == digest(image.copy()) != digest(image + 1)
    assert digest(image) != digest(image.reshape(4, 3))
    assert digest(image) != digest(image.astype(np.int32))


# ---------------------------------------------------------------- a record


def test_facts_are_of_the_file_where_it_was_resampled(tmp_path: Path) -> None:
    (tmp_path / "scan").write_bytes(b"12345")
    record = Record("a", "g", {"image": tmp_path / "scan", "mask": tmp_path / "scan"})
    scan = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {"image": np.ones((4, 3, 2), np.float32), "head": scan[..., 0] > 2, "mask": scan > 3}
    whole = record_facts(record, Decoded(arrays, (1.0, 1.0, 1.0), "image"), None)
    assert (whole.files, whole.file_bytes) == (1, 5)  # one file in two roles
    assert whole.shape == (4, 3, 2)
    assert whole.image is not None
    assert whole.image.digest is None  # constant: alike, and no copy
    assert whole.arrays["mask"].digest is not None

    original = Original(scan, (0.5, 0.5, 3.0), "int16")
    own = record_facts(record, Decoded(arrays, (1.0, 1.0, 1.0), "head", {}, original), Annotation({"brain": 3}))
    assert (own.shape, own.spacing) == ((2, 3, 4), (0.5, 0.5, 3.0))
    assert own.image is not None
    assert (own.image.dtype, own.image.shape) == ("int16", (2, 3, 4))
    assert own.image.levels == Levels(0, 23, 24, 24, pytest.approx(1 / 24))
    assert own.arrays["head"].digest is None  # made for the cropper
    assert own.annotation == Annotation({"brain": 3})


def test_annotated_voxels_are_those_of_the_classes_unless_said() -> None:
    assert Annotation({"a": 3, "b": 2}, ignored=4).annotated == 5
    assert Annotation({"a": 3, "b": 2}, ignored=4, voxels=7).annotated == 7


@pytest.mark.usefixtures("here")
def test_a_record_is_decoded_once_and_told_of_even_where_it_is_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner_core.data.crop import NoCrop
    from runner_core.data.pipeline import RecordPipeline
    from toy_project import Toy, declare

    Path("data").mkdir()
    Toy(Toy.presets["demo"]()).phantom(Path("data"), np.random.default_rng(0))
    project = Toy(Toy.presets["demo"]())
    decoded: list[str] = []
    real = Toy.decode

    def decode(self: Any, record: Record) -> Decoded:
        decoded.append(record.key)
        return real(self, record)

    monkeypatch.setattr(Toy, "decode", decode)
    declared = declare(
        *(Toy, "checks"),
        annotation=lambda self, decoded: Annotation({"disc": int(decoded.arrays["mask"].sum())}),
    )
    monkeypatch.setattr(Toy, "checks", declared)
    work = Examine(RecordPipeline(project, NoCrop()))
    record = project.records(Path("data"))[0]
    _, found = work((0, record))
    assert decoded == [record.key]
    assert found.usable
    assert found.facts is not None
    assert found.facts.shape == (4, 24, 24)
    assert found.prepared_bytes == 2 * 4 * 24 * 24
    assert found.facts.annotation is not None
    assert found.facts.annotation.counts["disc"] > 0

    def prepare(self: Any, decoded: Decoded) -> dict[str, Any]:
        raise BadInput("not this one")

    monkeypatch.setattr(Toy, "prepare", prepare)
    _, found = work((0, record))
    assert not found.usable
    assert found.unreadable
    assert found.facts is not None


# ---------------------------------------------------------------- the set


def plain(*checks: str) -> Any:
    """A project that has no checks of its own but these."""
    own = Checks(**dict.fromkeys(checks, lambda what: ()))  # type: ignore[arg-type]
    kind = type("Plain", (Project,), {"checks": lambda self: own})
    return kind.__new__(kind)


def facts(
    image: Levels | None = None,
    labels: Annotation | None = None,
    spacing: Sequence[float] = (1.0, 1.0),
    dtype: str = "uint16",
    image_digest: str | None = None,
    mask_digest: str | None = None,
) -> RecordFacts:
    image = image or Levels(0, 4000, 2000, 1 << 17, 0.0)
    arrays = {
        "image": ArrayFacts(dtype, (64, 64), image, image_digest),
        "mask": ArrayFacts("uint8", (64, 64), Levels(0, 1, 2, 4096, 0.3), mask_digest),
    }
    return RecordFacts(1, 100, (64, 64), tuple(spacing), arrays, labels)


def checked(known: Sequence[RecordFacts], validation: Sequence[int] = ()) -> Checked:
    records = [Record(f"r{n}", f"g{n}", {}) for n in range(len(known))]
    train = [n for n in range(len(known)) if n not in validation]
    return Checked(records, [Examined([], own, 50) for own in known], {"train": train, "validation": list(validation)})


def said(found: Sequence[Finding]) -> str:
    assert all(finding.level == "warning" for finding in found)
    return "\n".join(finding.message for finding in found)


def labelled(ignored: int | None = None, **counts: int) -> RecordFacts:
    return facts(labels=Annotation(counts, ignored))


def test_nothing_is_said_of_sound_records() -> None:
    rng = np.random.default_rng(0)
    known = [
        facts(
            Levels(0, float(rng.integers(2000, 9000)), int(rng.integers(900, 3000)), 1 << 17, 0.001),
            Annotation({"a": 400, "b": 30}, 500),
            (0.9, float(rng.uniform(0.9, 3))),
            image_digest=f"{n}",
            mask_digest=f"m{n}",
        )
        for n in range(12)
    ]
    assert not set_rules(plain(), checked(known, [1, 2]))


def test_one_patient_written_in_two_ways() -> None:
    known = [facts()] * 5
    shown = checked(known, [3, 4])
    names = ("P01", "P02", "P1-2", "p-1", "P12")
    records = [replace(record, group=name) for record, name in zip(shown.records, names, strict=True)]
    text = said(set_rules(plain(), replace(shown, records=records)))
    assert text.startswith("'P01' (train) and 'p-1' (validation) look like one group, in different splits.")
    assert len(text.splitlines()) == 1
    assert not set_rules(plain(), replace(shown, records=records, splits={"train": range(5)}))


def test_a_class_that_one_side_lacks() -> None:
    known = [labelled(a=5, b=0, c=1, d=0), labelled(a=4, b=2, c=0, d=0)]
    text = said(set_rules(plain(), checked(known, [1])))
    assert "b: no training record has it (1 of the validation's do): it cannot be learned." in text
    assert "c: 1 training record has it, none of the validation's: no score covers it." in text
    assert "d: no training record has it (and no other): it cannot be learned." in text
    assert len(text.splitlines()) == 3
    assert "c: " not in said(set_rules(plain(), checked(known[:1])))  # nothing validates: that is said elsewhere


def test_what_a_faulty_record_could_refute_is_not_claimed() -> None:
    known = [labelled(a=5, b=0, c=1), labelled(a=4, b=2, c=0)]
    text = said(set_rules(plain(), replace(checked(known, [1]), faulty=1)))
    assert "b: no training record that can be used has it (1 of the validation's do): it cannot be learned, " in text
    assert "c: 1 training record has it, none of the validation's that can be used: no score covers it" in text
    assert text.count(", unless one that cannot has it.") == 2


def test_a_project_says_itself_which_classes_there_are_nowhere() -> None:
    assert not set_rules(plain("records"), checked([labelled(a=5, b=0)] * 2, [1]))


def test_voxels_that_nobody_looked_at_learned_as_a_class() -> None:
    text = said(set_rules(plain(), checked([labelled(0, background=90, surface=10)] * 2, [1])))
    assert "no voxel is ignored, and background holds 90% of them" in text
    assert not set_rules(plain(), checked([labelled(None, background=90, surface=10)] * 2, [1]))  # none ever is
    assert not set_rules(plain(), checked([labelled(9, background=90, surface=10)] * 2, [1]))
    assert not set_rules(plain(), checked([labelled(0, background=50, surface=50)] * 2, [1]))


def test_splits_that_were_not_labelled_alike() -> None:
    known = [labelled(60, a=20, b=20), labelled(0, a=50, b=50)]
    text = said(set_rules(plain(), checked(known, [1])))
    assert text.startswith("train ignores 60% of its voxels, validation none")


def test_labels_of_another_record() -> None:
    known = [facts(image_digest=f"i{n}", mask_digest=f"m{min(n, 7)}") for n in range(9)]
    text = said(set_rules(plain(), checked(known)))
    assert text.startswith("2 records have the same mask, voxel for voxel, and different images: r7, r8.")
    copies = [facts(image_digest=f"i{min(n, 7)}", mask_digest=f"m{min(n, 7)}") for n in range(9)]
    assert not set_rules(plain(), checked(copies))  # that is said of copies
    field_of_view = [facts(image_digest=f"i{n}", mask_digest="m") for n in range(9)]
    assert not set_rules(plain(), checked(field_of_view))


def test_8_bits_among_12() -> None:
    deep, poor = facts(), facts(Levels(0, 255, 256, 1 << 17, 0.0))
    text = said(list(outliers(checked([*[deep] * 7, poor]))))
    assert text.startswith("1 record has no more than 256 grey values, the others about 2,000: r7.")
    scaled = facts(Levels(0, 65280, 200, 1 << 17, 0.0))
    assert "no more than 256" in said(list(outliers(checked([*[deep] * 7, scaled]))))
    assert not list(outliers(checked([poor] * 8)))
    assert not list(outliers(checked([*[deep] * 3, poor])))  # too few to know what is usual


def test_values_of_another_unit() -> None:
    usual = [facts(Levels(0, high, 2000, 1 << 17, 0.0)) for high in (3800, 3900, 4000, 4100, 4200)]
    small, large = (facts(Levels(0, high, 2000, 1 << 17, 0.0)) for high in (1.0, 4e6))
    text = said(list(outliers(checked([*usual, small, large]))))
    assert "1 record has values of a range that is up to 4,000 times smaller than most others': r5." in text
    assert "1 record has values of a range that is up to 1,000 times larger than most others': r6." in text
    wide = [facts(Levels(0, 10.0**n, 2000, 1 << 17, 0.0)) for n in range(8)]
    assert not list(outliers(checked(wide)))  # they all are of their own


def test_voxels_of_another_size() -> None:
    known = [facts(spacing=(0.9, 0.9, 3.0)), *[facts(spacing=(3.1, 0.9, 0.9))] * 6, facts(spacing=(0.0009,) * 3)]
    text = said(list(outliers(checked(known))))
    assert text.startswith(
        "1 record has voxels of another size (0.0009 × 0.0009 × 0.0009 mm, most others 0.9 × 0.9 × 3"
    )
    flat = [*[facts(spacing=(1.0, 1.0))] * 6, facts(spacing=(1.0,) * 3)]
    assert not list(outliers(checked(flat)))


def test_faults_of_values_are_told_where_a_project_does_not_look() -> None:
    faults = [
        facts(Levels(3, 3, 1, 4096, 1.0)),
        facts(Levels(0, 255, 256, 1 << 17, 0.1)),
        facts(Levels(0, 255, 256, 1 << 17, 0.0, bad=0.01)),
        facts(dtype="uint8"),
    ]
    text = said(set_rules(plain(), checked(faults)))
    assert "image of 1 record has one value everywhere: r0." in text
    assert "image of 1 record has more than 2% of its values at the highest (saturated, or clipped): r1." in text
    assert "image of 1 record has NaN or infinite values: r2." in text
    assert "1 record of 8 bits a value among those of 16: r3." in text
    assert not set_rules(plain("record", "records"), checked(faults))


# ---------------------------------------------------------------- tables


def cells(name: str, shown: Checked, others: Mapping[str, int] | None = None) -> dict[str, list[str]]:
    (table,) = (found for found in tables(shown, others or {}) if found.name == name)
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in [table.columns, *table.rows]}


def test_the_tables_say_what_there_is_on_each_side() -> None:
    known = [
        facts(labels=Annotation({"a": 30, "b": 10}, 60), spacing=(0.5, 3.0)),
        facts(labels=Annotation({"a": 20, "b": 0}, 80), spacing=(0.75, 3.0)),
        facts(Levels(-5, 1000.5, 2100, 1 << 17, 0.004), Annotation({"a": 5, "b": 45}, 50), (0.5, 3.0)),
    ]
    shown = checked(known, [2])
    assert cells("set", shown, {".txt": 2}) == {
        "": ["all", "train", "validation"],
        "records": ["3", "2", "1"],
        "groups": ["3", "2", "1"],
        "files": ["3 (300 B)", "2 (200 B)", "1 (100 B)"],
        "shape": ["64 × 64"] * 3,
        "spacing (mm)": ["0.5…0.75 × 3", "0.5…0.75 × 3", "0.5 × 3"],
        "labelled records": ["3", "2", "1"],
        "voxels not ignored": ["36.7%", "30.0%", "50.0%"],
        "prepared": ["150 B", "100 B", "50 B"],
        "other files": ["2 (2 .txt)", "", ""],
    }
    arrays = cells("arrays", shown)
    assert arrays["image"] == ["uint16", "-5 to 0", "1000 to 4,000", "2,000 to 2,100", "0.0%, at most 0.4%"]
    assert arrays["mask"][-1] == ""
    classes = cells("classes", shown)
    assert classes["class"] == ["train", "validation"]
    assert classes["a"] == ["83.3%, 2 records", "10.0%, 1 record"]
    assert classes["b"] == ["16.7%, 1 record", "90.0%, 1 record"]


def test_tables_of_what_has_no_labels_and_no_split() -> None:
    known = [RecordFacts(1, 10, (4, 6, 6), (1.0, 1.0, 1.0), {}, None)] * 2
    shown = Checked([Record(f"r{n}", "g", {}) for n in range(2)], [Examined([], own) for own in known], {})
    assert [table.name for table in tables(shown, {})] == ["set"]
    assert cells("set", shown)[""] == ["all"]
    assert not tables(Checked([], [], {}), {})


def test_files_that_belong_to_no_record(tmp_path: Path) -> None:
    for name in ("a.tif", "b.tif", "left_out.tif", "notes", "deep/table.csv", "c.zarr/0.0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    records = [Record(name, name, {"image": tmp_path / name}) for name in ("a.tif", "b.tif", "c.zarr")]
    assert other_files(tmp_path, records) == {".tif": 1, "": 1, ".csv": 1}
    assert other_files(tmp_path / "a.tif", records) == {}


# ---------------------------------------------------------------- the command


def audit(here: Path) -> dict[str, Any]:
    return json.loads((here / "audit" / "check.json").read_text(encoding="utf-8"))


def test_the_report_says_what_the_screen_does(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    def annotation(self: Any, decoded: Decoded) -> Annotation:
        mask = decoded.arrays["mask"]
        return Annotation({"disc": int((mask > 0).sum())}, 0, mask.size)

    monkeypatch.setattr(Toy, "checks", declare(Toy, "checks", annotation=annotation, record=None))
    assert main(["toy", "phantom", "data"]) == 0
    np.save(here / "data" / "p0_b.npy", np.full((4, 24, 24), 0.5, np.float32))
    (here / "data" / "<notes>.txt").touch()
    words = ["toy", "check", "--data", "data", "--cache.workers", "1"]
    assert main([*words, "--out", "audit"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  files +20 \(", said, re.MULTILINE)
    assert re.search(r"^  other files +1 \(1 \.txt\)$", said, re.MULTILINE)
    assert "warning  image of 1 record has one value everywhere: p0_b." in said
    assert "report: audit/report.html" in said
    page = (here / "audit" / "report.html").read_text(encoding="utf-8")
    assert "ready to train" in page
    assert "image of 1 record has one value everywhere" in page
    assert "disc" in page
    told = audit(here)
    assert told["status"] == "ready"
    assert told["levels"] == {"error": 0, "warning": 1, "note": 0}
    assert told["split"]["validation"]["records"] == told["classes"]["validation"]["labelled_records"] == 2
    assert told["classes"]["all"]["voxels"]["disc"] > 0
    assert len(told["each"]) == 10
    assert told["prepared_bytes"] == 10 * 2 * 4 * 24 * 24
    assert not (here / "runs").exists()

    assert main([*words, "--out", "audit"]) == 2
    assert "the folder is not empty" in capsys.readouterr().err


def test_a_refusal_is_in_the_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    (here / "data" / "p2_a.npy").write_bytes(b"not numpy")
    assert main(["toy", "check", "--data", "data", "--out", "audit"]) == 2
    told = audit(here)
    assert told["status"] == "refused"
    assert told["faulty"] == 1
    assert [finding["record"] for finding in told["findings"] if finding["level"] == "error"] == ["p2_a"]
    assert [own["record"] for own in told["each"] if not own["usable"]] == ["p2_a"]
    page = (here / "audit" / "report.html").read_text(encoding="utf-8")
    assert "training refuses it" in page
    assert "cannot be used" in page


def test_the_last_lines_say_that_training_refuses_and_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refusals of records and of the set count alike; a statement about all records says that it leaves some out."""
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "check", "--data", "data", "--cache.workers", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "0 faulty records, 0 errors, 0 warnings, 0 notes"
    (here / "data" / "p2_a.npy").write_bytes(b"not numpy")
    assert main([*words, "--data.split", "group:p77", "--out", "audit"]) == 2
    *_, counts, first, second, report = capsys.readouterr().out.splitlines()
    assert counts == "1 faulty record, 2 errors, 0 warnings, 0 notes"
    assert first == "training refuses: 1 faulty record (p2_a): repair it, or move it out of the folder"
    assert second.startswith("training refuses: data.split: unknown group 'p77'")
    assert report.startswith("report: ")
    told = audit(here)
    assert (told["status"], told["levels"]["error"]) == ("refused", 2)
    for path in (here / "data").glob("p[!1]_*"):  # one group is left
        path.unlink()
    assert main(words) == 2
    *_, first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("training refuses: all 2 records belong to one group (p1)")
    assert second == (
        "the records have no error: `predict` takes them, and --data.split none checks them without a split"
    )
    assert main([*words, "--data.split", "none"]) == 0


def test_streamed_records_of_which_none_can_be_read_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer than three are no reason to stop, but where nothing is left."""
    assert main(["toy", "phantom", "data"]) == 0
    for file in (here / "data").glob("*.npy"):
        if not file.name.startswith("p0_a"):
            file.unlink()
    (here / "data" / "p0_a.npy").write_bytes(b"not numpy")
    assert main(["toy", "check", "--data", "data", "--cache.mode", "stream", "--out", "audit"]) == 2
    said = capsys.readouterr().out
    assert "1 faulty record, 1 error, 1 warning, 0 notes" in said
    assert "training reads other records" not in said
    assert "training refuses: not one record can be read: there is nothing to train on" in said
    assert audit(here)["status"] == "refused"


def test_what_is_said_of_all_leaves_out_the_faulty_and_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    def check_set(self: Any, records: Sequence[Record]) -> Sequence[Finding]:
        return [Finding("surface", "warning", "none has a surface")]

    monkeypatch.setattr(Toy, "checks", declare(Toy, "checks", records=check_set))
    assert main(["toy", "phantom", "data"]) == 0
    (here / "data" / "p2_a.npy").write_bytes(b"not numpy")
    assert main(["toy", "check", "--data", "data", "--cache.workers", "1"]) == 2
    note = "note     checks of the whole set leave out 1 faulty record: it may contain what the others lack\n"
    assert f"{note}warning  none has a surface" in capsys.readouterr().out


def test_the_cache_takes_what_was_prepared_and_a_streamed_one_no_more() -> None:
    def corrected(mode: str, disk: int, ram: int = 0, device: int = 0) -> tuple[int, int, int]:
        found = prepared_already(CachePlan(mode, 10, 0, disk, ram, device, None), 50_000)
        return found.disk_bytes, found.ram_bytes, found.device_bytes

    assert corrected("memmap", 60_889) == (50_000, 0, 0)
    assert corrected("device", 60_889, device=60_889) == (50_000, 0, 50_000)
    assert corrected("memory", 7_000, ram=60_889) == (7_000, 50_000, 0)
    assert corrected("blosc2", 7_000) == (7_000, 0, 0)  # nobody knows how it is compressed
    assert 50_000 < corrected("stream", 10**9)[0] < 150_000
    assert corrected("stream", 40_000) == (40_000, 0, 0)


def test_without_out_the_report_lies_among_the_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "check"]) == 0
    (folder,) = (here / "runs" / "toy").iterdir()
    assert folder.name.startswith("check-")
    assert f"report: runs/toy/{folder.name}/report.html" in capsys.readouterr().out
    assert main(["toy", "train", "--resume"]) == 2  # it is no run
    assert "there is no run of toy to resume" in capsys.readouterr().err


def test_where_nothing_can_be_written_the_audit_is_on_the_screen(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs").touch()
    assert main(["toy", "check"]) == 0
    said = capsys.readouterr().out
    assert "NOTE: there is no report: runs: nothing can be written here" in said
    assert "What there is:" in said


def test_a_scan_that_was_compressed_anew_is_a_copy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other bytes in the file, the same values: the copies that no digest of files finds."""
    assert main(["toy", "phantom", "data"]) == 0
    for end in ("", "_mask"):
        array = np.load(here / "data" / f"p0_a{end}.npy")
        np.save(here / "data" / f"q0_a{end}.npy", np.asfortranarray(array) if end else array)
    with (here / "data" / "q0_a.npy").open("ab") as file:
        file.write(b"\0")  # NumPy reads no further than the array
    assert main(["toy", "check", "--data", "data", "--data.split", "group:q0", "--out", "audit"]) == 2
    assert "error    2 records hold the same scan: p0_a (" in capsys.readouterr().out
    assert audit(here)["findings"][0]["rule"] == "copies"


@pytest.mark.torch
def test_what_fits_is_told_where_the_network_may_be_built(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "check", "--cache.workers", "1", "--out", "cache"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  disk +\d+\.\d kB +\d.* free$", said, re.MULTILINE)
    assert "What a training takes" not in said
    assert json.loads((here / "cache" / "check.json").read_text(encoding="utf-8"))["memory"] is None

    assert main(["toy", "check", "--cache.workers", "1", "--fit", "--out", "audit"]) == 0
    said = capsys.readouterr().out
    assert "What a training takes:" in said
    assert re.search(r"^  RAM +weights +\d", said, re.MULTILINE)
    assert audit(here)["memory"]["needs"]["host"] > 0
    assert "activations of a step" in (here / "audit" / "report.html").read_text(encoding="utf-8")


@pytest.mark.torch
def test_a_training_that_does_not_fit_is_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runner_core.training.memory import MemoryPlan

    full = MemoryPlan((), {"host": 1}, refusal="this takes 2 B, 1 B are free: set train.batch_size to 1")
    monkeypatch.setattr("runner_core.tools.check.audit.memory_plan", lambda *given: full)
    assert main(["toy", "check", "--cache.workers", "1", "--fit", "--out", "audit"]) == 2
    told = audit(here)
    assert told["status"] == "refused"
    assert told["findings"] == [{"record": None, "level": "error", "rule": "memory", "message": full.refusal}]
    assert told["memory"]["refusal"] == full.refusal
    said = capsys.readouterr().out
    assert "0 faulty records, 1 error, 0 warnings, 0 notes\ntraining refuses: this takes 2 B, 1 B are free" in said


# ---------------------------------------------------------------- pictures


def test_the_page_shows_records_with_findings_and_a_typical_one(here: Path) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    for file in sorted(Path("data").glob("*_mask.npy"))[:1]:
        np.save(file, np.zeros_like(np.load(file)))  # a warning of the toy's own check
        marked = file.name.removesuffix("_mask.npy")
    assert main(["toy", "check", "--data", "data", "--out", "audit"]) == 0
    page = Path("audit/report.html").read_text(encoding="utf-8")
    captions = re.findall("<figcaption>([^<]*)", page)
    assert captions[0] == f"{marked}: warning empty mask"
    assert len(captions) == 4
    assert sum(": typical, " in caption for caption in captions) == 1


def test_a_projects_own_pictures_follow_the_records(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toy_project import Toy

    def drawn(decoded: Decoded) -> dict[str, Any]:
        return {f"of {len(decoded.arrays)} arrays": np.zeros((4, 5, 3), np.uint8)}

    monkeypatch.setattr(Toy, "checks", lambda self: Checks(pictures=drawn))
    assert main(["toy", "check", "--preset", "demo", "--out", "audit"]) == 0
    captions = re.findall("<figcaption>([^<]*)", Path("audit/report.html").read_text(encoding="utf-8"))
    records, own = captions[::2], captions[1::2]
    assert len(records) == len(own) > 1
    assert [caption.split(":")[0] for caption in records] == [caption.split(":")[0] for caption in own]
    assert all(caption.endswith(": of 2 arrays") for caption in own)

    def refused(decoded: Decoded) -> dict[str, Any]:
        raise BadInput("too few pixels for a fit")

    monkeypatch.setattr(Toy, "checks", lambda self: Checks(pictures=refused))
    assert main(["toy", "check", "--preset", "demo", "--out", "refused"]) == 0
    page = Path("refused/report.html").read_text(encoding="utf-8")
    assert re.findall("<figcaption>([^<]*)", page) == records, "the others are drawn all the same"
    assert page.count("could be drawn: too few pixels for a fit") == len(records)


def test_a_picture_has_the_image_and_beside_it_the_labels_in_colours() -> None:
    image, label = np.zeros((2, 40, 20), np.float32), np.zeros((2, 40, 20), np.uint8)
    image[:, 10:30], label[0], label[1, 10:30, 5:15] = 1, 2, 1
    drawn = _drawn(Decoded({"image": image, "label": label}, (5.0, 1.0, 2.0), "image"), ("label",), upright=False)
    assert drawn.shape == (320, 2 * 320 + 4, 3), "voxels twice as wide as high"
    plain, coloured = drawn[:, :320].astype(int), drawn[:, 324:].astype(int)
    assert (plain[..., 0] == plain[..., 2]).all()
    assert (plain[160, 160] > 200).all()
    assert coloured[160, 160, 0] > coloured[160, 160, 2] + 50, "the second slice, where labels differ"
    assert (coloured[20, 160] == plain[20, 160]).all()
    assert _drawn(Decoded({"image": image}, (1.0, 1.0, 1.0), "image"), (), upright=True).shape == (160, 320, 3)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int64, np.uint64, np.float32])
def test_the_most_common_label_is_counted(dtype: Any) -> None:
    label = np.random.default_rng(0).integers(-3, 4, (30, 20)).astype(dtype)
    assert _most_common(label) == max(np.unique(label, return_counts=True)[1])


def test_few_labels_are_counted_without_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np, "unique")
    assert _most_common(np.array([[-30_000, 2], [2, 30_000]], np.int16)) == 2
    assert _most_common(np.array([[-128, 127], [127, 127]], np.int8)) == 3


def test_a_picture_that_fails_costs_only_itself(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("a voxel of no size")

    monkeypatch.setattr("runner_core.tools.check.pictures._drawn", fails)
    assert main(["toy", "check", "--preset", "demo", "--out", "out"]) == 0
    assert (
        "no picture could be drawn of it (ZeroDivisionError: a voxel of no size)" in Path("out/report.html").read_text()
    )
    assert (here / "out/check.json").exists()
