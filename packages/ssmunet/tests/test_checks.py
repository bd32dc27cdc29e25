"""`check` reports cores that can be read and still look wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runner_core import Finding, Record
from runner_ssmunet.checks import findings, set_findings
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import SpectraConfig, SSMConfig
from runner_ssmunet.files import find_records, read_core
from runner_ssmunet.preprocess import tissue_mask
from runner_ssmunet.project import SSMUNet

NAMED = Classes(("red", "green", "blue"), source="data.classes")


@pytest.fixture
def rules(data) -> Callable[..., dict[str, str]]:
    """rules(path) → message of each finding that is no note, by its rule."""

    def check(path: Path, settings: SpectraConfig = data, notes: bool = False) -> dict[str, str]:
        core = read_core(path)
        found = findings(core, tissue_mask(core, settings.tissue, path.name), path, settings, NAMED)
        return {f.rule: f.message for f in found if notes or f.level != "note"}

    return check


def test_a_good_core_has_no_faults_and_says_how_much_of_it_is_annotated(rules, write_core, make_core) -> None:
    path = write_core()
    assert rules(path) == {}
    share = (make_core()["y"] > 0).mean()
    assert rules(path, notes=True) == {"annotation": f"core_1.npz: {share:.1%} of the pixels are annotated."}


def test_an_axis_turned_round_is_noted(rules, write_core, make_core) -> None:
    arrays = make_core()
    path = write_core(wn=arrays["wn"][::-1], X=arrays["X"][..., ::-1])
    assert "turned round" in rules(path, notes=True)["axis"]
    assert "axis" not in rules(path)


def test_a_spacing_that_is_not_the_axis(rules, write_core) -> None:
    assert "delta_cm1 is 2, but wn has spacings from 9 to 9" in rules(write_core(delta_cm1=2.0))["axis"]
    assert "axis" not in rules(write_core(delta_cm1=-9.0))


def test_hardly_any_annotation(rules, write_core, make_core) -> None:
    labels = np.zeros((12, 14), np.uint8)
    labels[6, 7] = 1
    assert "0.60% of the pixels" in rules(write_core(y=labels))["annotation"]


def test_annotation_beside_the_tissue(rules, write_core, make_core) -> None:
    shifted = np.roll(make_core()["y"], 6, axis=0)
    tissue = make_core()["tissue_mask"]
    off, known = np.count_nonzero((shifted > 0) & ~tissue), np.count_nonzero(shifted)
    message = rules(write_core(y=shifted))["annotation"]
    assert f"{off} annotated pixels ({off / known:.1%}) off the tissue mask: not trained on" in message
    assert "shifted or mirrored" in message


def test_unannotated_pixels_with_a_number_of_a_class(rules, write_core, make_core, data) -> None:
    labels = make_core()["y"]
    labels = np.where(labels == 0, 3, labels)
    message = rules(write_core(y=labels))["unannotated"]
    assert f"label 3 (blue) covers {(labels == 3).mean():.0%} of the core, 100% of what is no tissue" in message
    assert "Give them label 0 in the files" in message
    message = rules(write_core(), replace(data, ignore=None))["unannotated"]
    assert "label 0 (unannotated)" in message
    assert "Set data.ignore to 0" in message
    assert "unannotated" not in rules(write_core())


@pytest.mark.parametrize("value, shown", [(7.0, "to 7)"), (-3.0, "from -3 to")])
def test_absorbances_out_of_range(rules, write_core, make_core, value: float, shown: str) -> None:
    arrays = make_core()
    arrays["X"][6, 6:9, 3] = value
    message = rules(write_core(X=arrays["X"]))["range"]
    assert f"3 tissue pixels ({3 / arrays['tissue_mask'].sum():.1%}) with absorbances outside -0.5 to 5" in message
    assert shown in message


def test_a_stray_pixel_is_only_noted(rules, write_core, make_core) -> None:
    arrays = make_core(40, 40)
    arrays["X"][20, 20, 3] = 7
    path = write_core(**arrays)
    assert rules(path) == {}
    assert "1 tissue pixel (0.1%) with absorbances" in rules(path, notes=True)["range"]


def test_values_off_the_tissue_do_not_count(rules, write_core, make_core) -> None:
    arrays = make_core()
    arrays["X"][0, 0] = 70
    assert rules(write_core(X=arrays["X"])) == {}


def test_flat_and_saturated_spectra(rules, write_core, make_core) -> None:
    arrays = make_core()
    arrays["X"][6, 7] = 0.3
    arrays["X"][6, 8] = arrays["X"][6, 8].clip(max=0.2)
    found = rules(write_core(X=arrays["X"]))
    assert "with a flat spectrum" in found["flat"]
    assert "with the same highest value at 5 wavenumbers or more" in found["saturated"]
    assert set(found) == {"flat", "saturated"}


@pytest.mark.parametrize("share", [0, 1])
def test_a_mask_of_nearly_nothing_or_everything(rules, write_core, share: int) -> None:
    mask = np.full((12, 14), bool(share))
    mask[6, 7] = True
    assert "of the pixels are tissue; is the mask right?" in rules(write_core(tissue_mask=mask))["tissue"]


# ---------------------------------------------------------------- the set


def together(root: Path, data: SpectraConfig, notes: bool = False) -> list[str]:
    found = set_findings(find_records(root, "patient"), data, NAMED)
    return [f"{f.level} {f.rule}: {f.message}" for f in found if notes or f.level != "note"]


@pytest.fixture
def write_set(write_core) -> Callable[..., Path]:
    """write_set({core: patient}, {core: changed arrays}) → folder."""

    def write(patients: dict[str, str], changed: dict[str, dict[str, np.ndarray]] | None = None) -> Path:
        for i, (name, patient) in enumerate(patients.items()):
            path = write_core(name, meta={"patient_id": patient}, seed=i, **(changed or {}).get(name, {}))
        return path.parent

    return write


def test_a_good_set_has_a_class_table_and_no_faults(write_set, data) -> None:
    root = write_set({"core_1": "P1", "core_2": "P2", "core_3": "P3"})
    assert together(root, data) == []
    labels = np.concatenate([np.load(path)["y"].ravel() for path in root.iterdir()])
    share = (labels == 2).sum() / (labels > 0).sum()
    table = together(root, data, notes=True)
    row = f"class 2 green: {(labels == 2).sum()} pixels, {share:.1%} of the annotated, in 3 cores of 3 groups."
    assert f"note classes: {row}" in table
    assert f"note classes: {(labels > 0).mean():.1%} of all pixels are annotated." in table


def test_axes_that_differ_between_cores(write_set, make_core, data) -> None:
    other = make_core(wavenumbers=np.linspace(902, 1802, 101))
    root = write_set({"core_1": "P1", "core_2": "P2", "core_3": "P3"}, {"core_2": other, "core_3": other})
    (fault,) = together(root, data)
    assert fault.startswith("error axes: core_1.npz and core_2.npz (and 1 other core) have different wavenumbers")
    assert together(root, replace(data, step=9.0)) == []


def test_pixels_of_several_sizes(write_core, data) -> None:
    for name, size in (("core_1", 5.5), ("core_2", 5.6), ("core_3", None)):
        meta = {"patient_id": name} | ({} if size is None else {"pixel_um": size})
        root = write_core(name, meta=meta).parent
    assert "note pixels: pixels are 5.5 µm wide." in together(root, data, notes=True)
    write_core("core_3", meta={"patient_id": "P3", "pixel_um": 1.1})
    (fault,) = together(root, data)
    assert fault.startswith("warning pixels: core_3.npz has pixels of 1.1 µm, core_2.npz of 5.6 µm")


def test_axes_that_differ_where_nothing_is_kept_are_the_same(write_set, make_core, data) -> None:
    wide = make_core(wavenumbers=np.arange(720.0, 2000.0, 9.0))
    assert together(write_set({"core_1": "P1", "core_2": "P2"}, {"core_2": wide}), data) == []


def test_a_class_that_nobody_has_and_one_that_a_single_patient_has(write_set, make_core, data) -> None:
    few = {"y": np.minimum(make_core(seed=0)["y"], 2)}
    alone = {"y": (make_core(seed=0)["y"] > 0).astype(np.uint8)}
    root = write_set(
        {"core_1": "P1", "core_2": "P2", "core_3": "P2"}, {"core_1": few, "core_2": alone, "core_3": alone}
    )
    faults = together(root, data)
    assert "warning classes: class 3 blue: not one annotated pixel in all cores that can be read." in faults
    assert any("class 2 green: only group P1 has it" in fault for fault in faults)
    assert "warning groups: 1 group with annotated pixels of one class only: P2." in faults


def test_a_set_of_a_single_class(write_set, make_core, data) -> None:
    alone = {"y": 2 * (make_core(seed=0)["y"] > 0).astype(np.uint8)}
    root = write_set({"core_1": "P1", "core_2": "P2"}, {"core_1": alone, "core_2": alone})
    said = "error classes: all annotated pixels are of one class, green: training needs two or more."
    assert said in together(root, data)
    assert not any(f.startswith("error") for f in together(root, replace(data, ignore=None)))


def test_a_core_that_cannot_be_read_does_not_hide_the_others(write_set, data) -> None:
    root = write_set({"core_1": "P1", "core_2": "P2", "core_3": "P3"}, {"core_2": {"y": np.full((12, 14), 99)}})
    assert any("in 2 cores of 2 groups" in line for line in together(root, data, notes=True))
    assert _kinds(set_findings([], data, NAMED)) == ["note classes"]
    gone = Record("core_9", "P9", {"core": root / "core_9.npz"})
    assert _kinds(set_findings([gone], data, NAMED)) == ["note classes"]


def _kinds(found: Iterable[Finding]) -> list[str]:
    return [f"{finding.level} {finding.rule}" for finding in found]


@pytest.mark.parametrize("ignore, first", [(0, {}), (None, {"unannotated": 6}), (9, {})])
def test_pixels_of_each_class(ignore: int | None, first: dict[str, int], write_core, make_core) -> None:
    """Pixels that nobody annotated are ignored, or a class without a label; pixels off the tissue are ignored."""
    labels = np.full((12, 14), 1, np.uint8)
    labels[6, 4:10], labels[7, 4:9] = 0 if ignore is None else ignore, 3
    tissue = make_core()["tissue_mask"]
    config = SSMConfig()
    config.data = SpectraConfig(classes=("red", "green", "blue"), ignore=ignore)
    project = SSMUNet(config)
    (record,) = project.records(write_core(y=labels).parent)
    found = project.checks().annotation(project.decode(record))
    assert found is not None
    assert found.counts == {**first, "red": int(tissue.sum()) - 11, "green": 0, "blue": 5}
    assert found.ignored == int((~tissue).sum()) + (0 if ignore is None else 6)
    assert project.checks().annotation(project.decode(replace(record, files={"core": record.files["core"]}))) is None
