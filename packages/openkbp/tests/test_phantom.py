"""Generated patients: the challenge's very files, plausible, varied, the same for the same generator."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from runner_openkbp import phantom
from runner_openkbp.checks import findings
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.rois import OARS, POSSIBLE, TARGETS, unpack

REAL = Path(os.environ.get("RUNNER_TEST_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "openkbp"


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phantom, "TRAINING", 4)
        patch.setattr(phantom, "VALIDATION", 1)
        phantom.write_phantom(folder, np.random.default_rng(0))
    return folder


def test_names_and_splits(patients: Path) -> None:
    found = [(r.key, r.split) for r in find_records(patients)]
    assert found == [*((f"pt_{i}", "train") for i in range(1, 5)), ("pt_201", "validation")]


def test_nothing_to_complain_about(patients: Path) -> None:
    for record in find_records(patients):
        assert [f.message for f in findings(record) if f.level != "note"] == []


def test_dose_follows_the_targets(patients: Path) -> None:
    """Levels as the challenge's plans reach them, organs spared, nothing outside the mask."""
    for record in find_records(patients):
        patient = read_patient(record)
        assert patient.dose is not None
        possible = unpack(patient.masks, POSSIBLE)
        assert not patient.dose[~possible].any()
        assert 8 < patient.dose[possible].mean() < 45
        assert 70 < patient.dose.max() < 78
        for name in TARGETS:
            inside = patient.dose[unpack(patient.masks, name)]
            if inside.size:
                prescribed = float(name.removeprefix("PTV"))
                assert prescribed - 4 < inside.mean() < prescribed + 8
                assert np.percentile(inside, 1) > 0.8 * prescribed
        if "SpinalCord" in record.files:
            assert patient.dose[unpack(patient.masks, "SpinalCord")].max() < 62


def test_targets_are_disjoint_and_inside(patients: Path) -> None:
    for record in find_records(patients):
        masks = read_patient(record).masks
        targets = sum(unpack(masks, name).astype(int) for name in TARGETS)
        assert targets.max() == 1
        assert not (targets.astype(bool) & ~unpack(masks, POSSIBLE)).any()


def test_patients_differ(patients: Path) -> None:
    records = find_records(patients)
    read = [read_patient(r) for r in records]
    assert len({tuple(p.voxel_mm) for p in read}) > 1
    assert len({frozenset(r.files) for r in records}) > 1  # not the same regions everywhere
    missing = {name for r in records for name in (*OARS, *TARGETS) if name not in r.files}
    assert missing
    assert "PTV70" not in missing


def test_no_constant_is_good_enough(patients: Path) -> None:
    """Neither one dose for every voxel nor the other patients' mean comes near what a network learns (below 4 Gy)."""
    read = [read_patient(r) for r in find_records(patients)]
    doses = np.stack([p.dose for p in read if p.dose is not None])
    for number, patient in enumerate(read):
        inside = unpack(patient.masks, POSSIBLE)
        others = np.delete(doses, number, axis=0)
        for guess in (np.median(doses[number][inside]), others.mean(axis=0)[inside]):
            assert np.abs(doses[number][inside] - guess).mean() > 5


def test_the_same_generator_gives_the_same_patient(tmp_path: Path) -> None:
    for name in ("a", "b"):
        phantom.write_patient(tmp_path / name, np.random.default_rng(3))
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real patients in {REAL}")
def test_files_are_written_as_the_challenges_are(patients: Path) -> None:
    """Byte for byte: header, the shape of a line, line ends, the dose's lines for every voxel of the mask."""
    real, own = REAL / "train-pats" / "pt_1", patients / "train-pats" / "pt_1"
    for file in ("ct.csv", "dose.csv", "possible_dose_mask.csv", "PTV70.csv", "voxel_dimensions.csv"):
        theirs, ours = (folder / file for folder in (real, own))
        shapes = [_shape(p.read_bytes().split(b"\n")) for p in (theirs, ours)]
        assert shapes[0] == shapes[1], file
    rows = [p.read_text().count("\n") for p in (own / "dose.csv", own / "possible_dose_mask.csv")]
    assert rows[0] == rows[1]


def _shape(lines: list[bytes]) -> tuple[bytes, set[int], bytes]:
    """The first line's letters (digits as 0), how many fields lines have, what stands after the last line end."""
    first = bytes(b"0"[0] if chr(c).isdigit() else c for c in lines[0])
    return first, {line.count(b",") for line in lines[1:-1]}, lines[-1]
