"""Remarks about a predicted dose that no plan would have."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_openkbp import outputs
from runner_openkbp.config import DosePredictOptions, demo
from runner_openkbp.files import find_records
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import GRID, POSSIBLE, pack_masks


def patient(**masks: Any) -> Any:
    inside = np.ones((4, 4, 4), bool)
    return SimpleNamespace(ct=None, dose=None, masks=pack_masks({POSSIBLE: inside, **masks}), voxel_mm=np.full(3, 3.0))


def target() -> Any:
    mask = np.zeros((4, 4, 4), bool)
    mask[1:3, 1:3, 1:3] = True
    return mask


def plan(gy: float) -> Any:
    return np.where(target(), gy, 20).astype(np.float32)


@pytest.mark.parametrize(
    "dose, said",
    [
        (plan(0) * 0, "0 Gy everywhere"),
        (plan(math.nan), "NaN or infinite in 8 voxels"),
        (plan(140), "reaches 140 Gy"),
        (plan(40), "far from what is prescribed: PTV70 40.0 Gy"),
    ],
)
def test_a_dose_that_no_plan_has_is_warned_of(dose: Any, said: str) -> None:
    findings = list(outputs.on_dose(patient(PTV70=target()), dose))
    assert any(said in f.message and f.level == "warning" for f in findings), findings


def test_a_plausible_dose_is_not_remarked_on() -> None:
    assert list(outputs.on_dose(patient(PTV70=target()), plan(69))) == []
    assert list(outputs.on_dose(patient(), plan(40))) == []


def test_outside_the_mask_nothing_counts() -> None:
    found = patient(PTV70=target())
    found.masks[0] = 0
    dose = plan(70)
    dose[0] = math.inf
    assert list(outputs.on_dose(found, dose)) == []


def test_an_organ_below_a_tenth_cc_is_noted() -> None:
    """0.1 cm³ are 4 voxels of 27 mm³."""
    organ = np.zeros((4, 4, 4), bool)
    organ[0, 0, :3] = True
    (finding,) = outputs.on_dose(patient(PTV70=target(), Larynx=organ), plan(70))
    assert finding.level == "note"
    assert finding.message == "Larynx has 3 voxels, fewer than the 4 in 0.1 cm³: its D_0.1_cc is not scored"
    organ[0, 0, 3] = True
    assert list(outputs.on_dose(patient(PTV70=target(), Larynx=organ), plan(70))) == []


def test_a_synthetic_geometry_is_said(tmp_path: Any) -> None:
    assert list(outputs.on_files(DosePredictOptions())) == []
    (finding,) = outputs.on_files(DosePredictOptions(nifti=True, dicom=True))
    assert finding.message.startswith("NIfTI and RTDOSE: the geometry is synthetic")
    assert list(outputs.on_files(DosePredictOptions(nifti=True, dicom=True, reference=tmp_path))) == []


def test_what_check_warns_of_is_remarked(write_boxes: Any) -> None:
    """A missing target and dose that is not listed; not the notes, and small ROIs once."""
    folder = write_boxes(without=("PTV70", "PTV56"), boxes={"Larynx": (50, 51, 60, 61, 60, 61)})
    (folder / "Esophagus.csv").write_text(",data\n")
    lines = (folder / "dose.csv").read_text().splitlines(keepends=True)
    (folder / "dose.csv").write_text("".join(lines[:1] + lines[len(lines) // 2 :]))
    (record,) = find_records(folder)
    found = list(OpenKBP(demo()).checks().prediction(record, np.full(GRID, 20, np.float32)))
    said = [f"{f.level}: {f.message[:23]}" for f in found]
    assert said == [
        "warning: there is no target (PTV",
        "warning: dose.csv has no line fo",
        "note: Larynx has 1 voxel, few",
        "note: the predicted dose meet",
    ]
