"""A patient from Python: CT, regions and the size of a voxel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_openkbp import files
from runner_openkbp.rois import GRID, unpack

CT = np.random.default_rng(0).integers(0, 3000, GRID).astype(np.int16)
INSIDE = np.zeros(GRID, bool)
INSIDE[40:80, 30:90, 20:100] = True
TARGET = np.zeros(GRID, bool)
TARGET[50:60, 50:60, 50:60] = True
GIVEN = {"ct": CT, "possible_dose_mask": INSIDE, "PTV70": TARGET.astype(np.float32)}


def test_the_arrays_come_back(tmp_path: Path) -> None:
    (record,) = files.find_inputs(files.write_arrays(GIVEN, (4.0, 4.0, 2.5), tmp_path))
    patient = files.read_patient(record)
    np.testing.assert_array_equal(patient.ct, CT)
    np.testing.assert_array_equal(unpack(patient.masks, "possible_dose_mask"), INSIDE)
    np.testing.assert_array_equal(unpack(patient.masks, "PTV70"), TARGET)
    assert patient.voxel_mm.tolist() == [4.0, 4.0, 2.5]


def test_what_is_needed_is_said(tmp_path: Path) -> None:
    for arrays, spacing, message in (
        ({"image": CT}, (4.0,), "needs more than one array"),
        ({"ct": CT}, (4.0,), "possible_dose_mask is missing"),
        (GIVEN, None, "size of a voxel"),
        (GIVEN, (4.0, 4.0), "spacing has 2 numbers: a patient needs 3"),
        (GIVEN | {"ct": INSIDE}, (4.0,), "ct is of true and false"),
        (GIVEN | {"ct": CT[:64]}, (4.0,), "ct has shape"),
        (GIVEN | {"ct": np.full(GRID, np.nan)}, (4.0,), "NaN"),
        (GIVEN | {"PTV71": TARGET}, (4.0,), "the regions are Brainstem"),
    ):
        with pytest.raises(BadInput, match=message):
            files.write_arrays(arrays, spacing, tmp_path)
    assert not list(tmp_path.iterdir())
