"""`check` reports patients that can be read and still look wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_openkbp.checks import findings
from runner_openkbp.config import demo
from runner_openkbp.csvfiles import write_values, write_voxels
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.project import OpenKBP
from runner_openkbp.scores import voxels_in_tenth_cc

Write = Callable[..., Path]
REAL = Path(os.environ.get("RUNNER_TEST_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "openkbp"


def found(folder: Path) -> dict[str, str]:
    """Messages by rule and level, joined."""
    (record,) = find_records(folder)
    messages: dict[str, list[str]] = {}
    for finding in findings(record):
        messages.setdefault(finding.rule, []).append(f"{finding.level}: {finding.message}")
    return {rule: " | ".join(texts) for rule, texts in messages.items()}


def rewrite(folder: Path, file: str, change: Callable[[np.ndarray], None]) -> None:
    (record,) = find_records(folder)
    patient = read_patient(record)
    volume = np.array(patient.dose if file == "dose.csv" else patient.ct, np.float64)
    change(volume)
    write_values(folder / file, volume)


def test_a_good_patient_has_no_findings(write_boxes: Write) -> None:
    assert found(write_boxes()) == {}


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real patients in {REAL}")
def test_the_real_patients_have_none() -> None:
    for record in find_records(REAL):
        assert [f.message for f in findings(record)] == []


def test_no_target(write_boxes: Write) -> None:
    assert "warning: PTV70 is missing" in found(write_boxes("a", without=("PTV70",)))["targets"]
    assert "warning: there is no target" in found(write_boxes("b", without=("PTV70", "PTV56")))["targets"]


def test_targets_that_overlap(write_boxes: Write) -> None:
    folder = write_boxes(boxes={"PTV63": (60, 63, 60, 63, 60, 62)})
    assert found(folder)["targets"] == (
        "warning: PTV63 and PTV70 share 12 voxels; the challenge's targets do not overlap"
    )


def test_a_region_below_a_tenth_of_a_millilitre(write_boxes: Write) -> None:
    assert voxels_in_tenth_cc(np.array([4.0, 4.0, 2.5])) == 2  # 100 mm³ / 40 mm³, to the nearest even
    assert voxels_in_tenth_cc(np.array([10.0, 10.0, 10.0])) == 1
    folder = write_boxes(boxes={"Larynx": (50, 51, 60, 61, 60, 61)})
    assert "warning: Larynx has 1 voxels, fewer than the 2" in found(folder)["regions"]


def test_a_mask_without_voxels(write_boxes: Write) -> None:
    folder = write_boxes()
    (folder / "Larynx.csv").write_text(",data\n")
    assert found(folder)["regions"] == "note: Larynx.csv holds no voxel, so the region counts as missing"


def test_left_and_right_exchanged(write_boxes: Write) -> None:
    folder = write_boxes()
    right, left = folder / "RightParotid.csv", folder / "LeftParotid.csv"
    right.rename(folder / "other")
    left.rename(right)
    (folder / "other").rename(left)
    assert "left and right look exchanged: along axis 1 RightParotid lies at 78" in found(folder)["sides"]


def test_dose_outside_the_mask(write_boxes: Write) -> None:
    folder = write_boxes()

    def spill(dose: np.ndarray) -> None:
        dose[0, 0, :3] = 4

    rewrite(folder, "dose.csv", spill)
    assert "3 voxels outside the possible-dose mask have a dose, up to 4.0 Gy" in found(folder)["dose"]


def test_files_with_a_gap(write_boxes: Write) -> None:
    """Nothing in the file itself shows it; the possible-dose mask does."""
    folder = write_boxes()
    for file in ("dose.csv", "ct.csv"):
        lines = (folder / file).read_text().splitlines(keepends=True)
        del lines[1 + int(len(lines) * 0.8) : 1 + int(len(lines) * 0.9)]
        (folder / file).write_text("".join(lines))
    messages = found(folder)
    assert "(10%) of the possible-dose mask" in messages["dose"]
    assert "ct.csv has nothing in 10% of the possible-dose mask" in messages["ct"]


def test_ct_in_hounsfield_units(write_boxes: Write) -> None:
    folder = write_boxes()

    def shift(ct: np.ndarray) -> None:
        ct -= 1024

    rewrite(folder, "ct.csv", shift)
    assert "values down to -1024" in found(folder)["ct"]


def test_zero_doses_without_a_line(write_boxes: Write) -> None:
    """Warned of when there are any; listed ones are no reason to."""
    folder = write_boxes()
    path = folder / "dose.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[10:20] = [f"{line.split(',')[0]},0\n" for line in lines[10:20]]
    path.write_text("".join(lines))
    assert found(folder) == {}
    del lines[10:20]
    path.write_text("".join(lines))
    assert "no line for 10 voxels" in found(folder)["dose"]


def test_a_target_outside_the_mask(write_boxes: Write) -> None:
    folder = write_boxes(boxes={"PTV70": (52, 62, 30, 50, 52, 74), "Esophagus": (50, 52, 30, 50, 80, 82)})
    assert found(folder)["targets"].startswith("warning: 2200 of PTV70's 4400 voxels lie outside the possible-dose")


def test_dose_of_another_plan(write_boxes: Write) -> None:
    def half(dose: np.ndarray) -> None:
        dose /= 2

    folder = write_boxes()
    rewrite(folder, "dose.csv", half)
    assert "belong to one plan?" in found(folder)["prescription"]


def test_voxels_in_centimetres(write_boxes: Write) -> None:
    folder = write_boxes()
    write_voxels(folder / "voxel_dimensions.csv", np.array([0.4, 0.4, 0.25]))
    assert "voxels of 0.4 × 0.4 × 0.25 mm" in found(folder)["voxels"]


def test_a_misspelt_region(write_boxes: Write) -> None:
    folder = write_boxes()
    (folder / "Larinx.csv").write_text(",data\n5,\n")
    assert (
        "Larinx.csv is not one of the challenge's files and is not read; did you mean 'Larynx.csv'?"
        in found(folder)["files"]
    )


def test_a_region_in_other_letters(write_boxes: Write) -> None:
    folder = write_boxes(without=("PTV70",))
    (folder / "ptv70.csv").write_text(",data\n5,\n")
    assert (
        "ptv70.csv is not one of the challenge's files and is not read; did you mean 'PTV70.csv'?"
        in found(folder)["files"]
    )


@pytest.mark.parametrize("masked, dvh", [(True, 0.0), (True, 1.0), (False, 0.0)])
def test_voxels_of_each_region_among_those_that_the_loss_sees(masked: bool, dvh: float, write_boxes: Write) -> None:
    """The loss sees the possible-dose mask with `loss.masked`, and the regions beyond it with histograms; else all
    voxels."""
    config = demo()
    config.loss.masked, config.loss.dvh = masked, dvh
    project = OpenKBP(config)
    half_outside = {"Larynx": (86, 94, 50, 54, 40, 44)}
    (record,) = project.records(write_boxes(boxes=half_outside).parent)
    decoded = project.decode(record)
    counted = project.checks().annotation(decoded)
    assert counted is not None
    whole = 8 * 4 * 4
    assert counted.counts["Larynx"] == (whole // 2 if masked and not dvh else whole)
    assert counted.counts["PTV63"] == 0
    possible = 50 * 50 * 90
    assert counted.annotated == ((possible + whole // 2 if dvh else possible) if masked else 128**3)
    assert counted.ignored == (128**3 - counted.annotated if masked else None)
