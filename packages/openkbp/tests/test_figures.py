"""The picture: complete with and without a reference, in the colours that its legend names."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_openkbp.drawing import DOSE_COLOURS, Scale, dashes
from runner_openkbp.figures import COLOURS, ISODOSES, _View, figure, layers
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.rois import GRID, POSSIBLE, ROIS, TARGETS, bit, unpack

PLACES = np.array([1 << 16, 1 << 8, 1])


def colours_in(picture: Any) -> set[int]:
    return set(np.unique(picture.astype(np.int32) @ PLACES).tolist())


@pytest.fixture
def patient(write_boxes: Any) -> Any:
    (record,) = find_records(write_boxes())
    return read_patient(record)


def test_a_figure_shows_every_roi_that_the_patient_has(patient: Any) -> None:
    picture = figure(patient, patient.dose * 1.1, "pt_1")
    assert picture.dtype == np.uint8
    assert picture.shape[1:] == (1200, 3)
    assert 800 < picture.shape[0] < 2000
    found = colours_in(picture)
    shown = {roi for roi in ROIS if int(COLOURS[roi] @ PLACES) in found}
    assert shown == {roi for roi in ROIS if unpack(patient.masks, roi).any()}
    assert len(shown) == 7
    assert np.array_equal(picture, figure(patient, patient.dose * 1.1, "pt_1"))
    assert not np.array_equal(picture[:36], figure(patient, patient.dose * 1.1, "pt_2")[:36])


def test_without_a_reference_only_the_prediction_is_drawn(patient: Any) -> None:
    prediction = patient.dose * 0.9
    both = figure(patient, prediction, "pt_1")
    patient.dose = None
    alone = figure(patient, prediction, "pt_1")
    assert alone.shape[1:] == (1200, 3)
    assert alone.shape[0] < both.shape[0]


def test_isodose_lines_lie_where_the_dose_passes_a_level(patient: Any) -> None:
    """Along a row of the slice the dose falls from 100 to 0 Gy: each level that is passed has one line."""
    falling = np.broadcast_to(np.linspace(100, 0, GRID[1], dtype=np.float32)[:, None], GRID)
    view = _View.of(patient, [60], bars=1)
    gy = view._enlarged(falling[:, :, 60])[0]
    patient.masks[:] = 0
    tile = _View(patient, view.box, view.size, view.wide, view.high).dose(60, falling)
    row = tile[(view.high - view.size[1]) // 2 + 30, (view.wide - view.size[0]) // 2 :][: view.size[0]]
    lines = np.flatnonzero((row == 255).all(-1))
    passed = [level for level in ISODOSES[::-1] if gy.min() < level < gy.max()]
    assert len(passed) >= 3
    assert lines.tolist() == [int(np.flatnonzero(gy >= level)[-1]) for level in passed]


@pytest.mark.parametrize("value", [0.0, 90.0, np.nan])
def test_any_prediction_can_be_drawn(value: float, patient: Any) -> None:
    assert figure(patient, np.full(GRID, value, np.float32), "pt_1").shape[1] == 1200


def test_a_patient_without_any_roi_is_drawn(patient: Any) -> None:
    patient.masks &= np.uint16(1 << bit(POSSIBLE))
    assert figure(patient, patient.dose, "pt_1").shape[1] == 1200


def test_a_scale_runs_from_its_first_colour_to_its_last() -> None:
    scale = Scale(0, 80, DOSE_COLOURS, range(0, 81, 10))
    found = scale.colour(np.array([-5.0, 0.0, 80.0, 200.0]))
    assert found.tolist() == [list(map(float, DOSE_COLOURS[i])) for i in (0, 0, -1, -1)]
    bar = np.asarray(scale.bar(200))
    assert bar.shape[0] == 200
    assert np.abs(bar[27, 10].astype(int) - DOSE_COLOURS[-1]).max() <= 6


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500)), min_size=2, max_size=12))
def test_dashes_cover_their_share_of_a_line(points: list[tuple[float, float]]) -> None:
    def length(line: Any) -> float:
        return sum(float(np.hypot(b[0] - a[0], b[1] - a[1])) for a, b in pairwise(line))

    whole, pieces = length(points), dashes(points, 9, 6)
    drawn = [length(piece) for piece in pieces]
    assert all(size <= 9 + 1e-6 for size in drawn)
    periods = whole // 15
    assert sum(drawn) == pytest.approx(9 * periods + min(9, whole - 15 * periods), abs=1e-5)


def test_layers_are_axial_and_show_targets_over_organs(patient: Any) -> None:
    """Slices go from head to feet, rows backwards, columns to the patient's left, as the grid's axes do."""
    target, organ = bit(TARGETS[2]), bit("SpinalCord")
    patient.masks[3, 4, 5] = 1 << target | 1 << organ
    ct, dose, predicted, regions = layers(patient, patient.dose + 1)
    assert [layer.name for layer in (dose, predicted)] == ["dose (Gy)", "predicted dose (Gy)"]
    assert (dose.visible, predicted.visible) == (False, True)
    assert ct.spacing == tuple(patient.voxel_mm[[2, 0, 1]])
    assert ct.values[5, 3, 4] == patient.ct[3, 4, 5]
    assert predicted.values[5, 3, 4] == dose.values[5, 3, 4] + 1 == patient.dose[3, 4, 5] + 1
    names = {label.value: label.name for label in regions.labels}
    assert names[regions.values[5, 3, 4]] == TARGETS[2]
    assert regions.labels[0].colour == COLOURS[ROIS[0]]
    patient.dose = None
    assert [layer.name for layer in layers(patient, None)] == ["CT", "regions"]
