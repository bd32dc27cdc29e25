"""The cache holds exact masks, a dose within half a step, and arrays of the promised sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from runner_core import BadInput, RowSamples
from runner_core.testing import open_store
from runner_openkbp import packing
from runner_openkbp.config import PRESETS
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.packing import DOSE_STEP, prepare, quantise
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import MASKS, POSSIBLE, pack_masks, unpack
from runner_openkbp.whole import pool_masks

Write = Callable[..., Path]
QUICK = settings(deadline=None)
ULP = 1e-5
"""float32 keeps 80 Gy to 8e-6."""


@QUICK
@given(dose=hnp.arrays(np.float32, (3, 4), elements=st.floats(0, np.float32(81.9), width=32)))
def test_a_dose_is_stored_within_half_a_step(dose: np.ndarray) -> None:
    units, step = quantise(dose)
    assert (units.dtype, step) == (np.uint16, DOSE_STEP)
    assert np.abs(units * step - dose.astype(np.float64)).max() <= 0.000625 + ULP


@QUICK
@given(dose=hnp.arrays(np.float32, (3, 4), elements=st.floats(0, 1e6, width=32)))
def test_any_dose_is_stored_within_half_its_own_step(dose: np.ndarray) -> None:
    units, step = quantise(dose)
    assert step == max(DOSE_STEP, float(dose.max()) / 65535)
    assert np.abs(units * step - dose.astype(np.float64)).max() <= step / 2 + 2e-7 * dose.max() + ULP


@QUICK
@given(data=st.data(), factor=st.sampled_from([2, 4]))
def test_pooled_masks_are_the_majority(data: st.DataObject, factor: int) -> None:
    side = 2 * factor
    masks = {
        name: data.draw(hnp.arrays(np.bool_, (side,) * 3))
        for name in data.draw(st.sets(st.sampled_from(MASKS), min_size=1))
    }
    small = pool_masks(pack_masks(masks), factor)
    for name in MASKS:
        mask = masks.get(name, np.zeros((side,) * 3, bool))
        blocks = mask.reshape(2, factor, 2, factor, 2, factor).mean(axis=(1, 3, 5))
        expected = blocks > 0 if name == POSSIBLE else blocks >= 0.5
        assert np.array_equal(unpack(small, name), expected), name


def test_prepared_arrays(write_boxes: Write) -> None:
    (record,) = find_records(write_boxes())
    patient = read_patient(record)
    decoded = packing.pack(patient)
    assert decoded.meta == {"voxel_mm": [4.0, 4.0, 2.5], "dose_step": 1 / 800}
    whole = prepare(decoded, 128)
    assert {n: (a.shape, a.dtype.name) for n, a in whole.items()} == {
        "ct": ((1, 128, 128, 128), "int16"),
        "masks": ((1, 128, 128, 128), "uint16"),
        "dose": ((1, 128, 128, 128), "uint16"),
        "dose_step": ((1, 1), "float32"),
    }
    assert 200 * sum(a.nbytes for a in whole.values()) < 2.6e9
    assert np.array_equal(whole["ct"][0], patient.ct)
    assert np.array_equal(whole["masks"][0], patient.masks)
    assert patient.dose is not None
    assert np.abs(whole["dose"][0] * whole["dose_step"][0, 0] - patient.dose).max() <= 0.000625 + ULP


@pytest.mark.parametrize("size", [64, 32])
def test_a_smaller_grid_keeps_means(write_boxes: Write, size: int) -> None:
    (record,) = find_records(write_boxes())
    decoded = packing.pack(read_patient(record))
    small = prepare(decoded, size)
    factor = 128 // size

    def blocks(array: np.ndarray) -> np.ndarray:
        return array.astype(float).reshape(size, factor, size, factor, size, factor).mean(axis=(1, 3, 5))

    possible = blocks(unpack(decoded.arrays["masks"], POSSIBLE))
    expected = {"ct": blocks(decoded.arrays["ct"]), "dose": blocks(decoded.arrays["dose"]) / np.maximum(possible, 1e-9)}
    for name, own in expected.items():
        assert small[name].shape == (1, size, size, size)
        assert np.abs(small[name][0] - own).max() <= 0.5
    assert np.array_equal(unpack(small["masks"][0], POSSIBLE), possible > 0)
    assert unpack(small["masks"], "PTV70").any()


def test_without_a_dose(write_boxes: Write) -> None:
    (record,) = find_records(write_boxes())
    files = {role: path for role, path in record.files.items() if role != "dose"}
    patient = read_patient(type(record)(record.key, record.group, files))
    assert sorted(prepare(packing.pack(patient), 64)) == ["ct", "masks"]


# ---------------------------------------------------------------- through the core's cache


@pytest.fixture
def project(tmp_path: Path) -> OpenKBP:
    config = PRESETS["demo"]()
    config.data.size = 64
    config.cache.dir, config.cache.workers = tmp_path / "cache", 1
    return OpenKBP(config)


def test_a_batch_is_what_was_prepared(project: OpenKBP, tmp_path: Path, write_boxes: Write) -> None:
    for number in range(3):
        write_boxes(f"pt_{number}", boxes={"Larynx": (50, 55, 60, 65, 60 + number, 70)})
    store = open_store(project, project.records(tmp_path / "data"))
    samples = RowSamples(store, dict.fromkeys(("ct", "masks", "dose", "dose_step"), (0,)), range(3))
    out = {name: np.empty((2, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(np.array([2, 0]), np.arange(2), 0, 0, out)
    assert out["record"].tolist() == [2, 0]
    for place, number in enumerate((2, 0)):
        own = project.prepare(project.decode(project.records(tmp_path / "data")[number]))
        assert all(np.array_equal(out[name][place], own[name]) for name in own)


def test_a_half_written_cache_is_built_again(project: OpenKBP, tmp_path: Path, write_boxes: Write) -> None:
    """Killed while it was written: the leftover is no cache. Damaged afterwards: found, and built again."""
    write_boxes("pt_1")
    store = open_store(project, project.records(tmp_path / "data"))
    own = np.array(store.arrays["dose"].read(0))
    del store
    (finished,) = (tmp_path / "cache").rglob("*.flat")
    flat = finished / "array-0.bin"
    flat.write_bytes(flat.read_bytes()[:1000])
    again = open_store(project, project.records(tmp_path / "data"))
    assert np.array_equal(again.arrays["dose"].read(0), own)
    assert unpack(again.arrays["masks"].read(0), POSSIBLE).any()


def test_faulty_patients_are_listed_together_and_leave_nothing(
    project: OpenKBP, tmp_path: Path, write_boxes: Write
) -> None:
    for number in range(3):
        write_boxes(f"pt_{number}")
    for number, file in ((0, "dose.csv"), (2, "PTV70.csv")):
        path = tmp_path / f"data/pt_{number}" / file
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadInput, match=r"(?s)2 records cannot be used.*pt_0/dose\.csv.*cut off.*pt_2/PTV70\.csv"):
        open_store(project, project.records(tmp_path / "data"))
    assert not list((tmp_path / "cache").rglob("array-*"))
