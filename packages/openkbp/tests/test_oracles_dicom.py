"""Written DICOM against the standard: the tables of PS3.3 that highdicom brings; dciodvfy and dcmdump, where they are.

`bash .ci/run oracles` runs these tests. dciodvfy is Debian's package dicom3tools, dcmdump its dcmtk.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.uid import RTPlanStorage
from runner_openkbp import outputs
from runner_openkbp.config import DosePredictOptions
from runner_openkbp.dicom import write
from runner_openkbp.files import find_inputs
from runner_openkbp.geometry import synthetic
from runner_openkbp.phantom_dicom import write_dicom
from runner_openkbp.rois import GRID, Patient

KINDS = ("planned", "overview", "synthetic", "ct", "structures")
USED = {
    "planned": {"general-image", "image-plane", "image-pixel", "multi-frame", "rt-dvh"},
    "ct": {"general-image"},
    "structures": set(),
}
"""Modules that a file has beside the mandatory ones."""
OLD = ("PLAN_OVERVIEW", "not present in standard DICOM IOD", "Standard Extended SOP Class")
"""The dciodvfy of 2022 does not know plan overviews, which newer editions have (so have highdicom's tables)."""
SPARE = ("DICOMDIR", "Retired Person Name form")
"""Warnings about what may be empty, and about the invented patient's name."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A generated patient, and predicted doses for the patient with a plan, without one, and without a CT series."""
    folder, shape = tmp_path_factory.mktemp("valid"), (20, 20, 14)
    target = np.zeros(shape, bool)
    target[5:12, 6:13, 3:10] = True
    ct = np.random.default_rng(0).integers(900, 1300, shape).astype(np.int16)
    ct[0] = 0
    patient = Patient(ct, ct.astype(np.float32) / 20, np.zeros(shape, np.uint16), np.array([4.0, 4.0, 2.5]))
    write_dicom(folder / "ann", "ann", patient, {"PTV70": target, "SpinalCord": target[::-1]})
    dose = np.random.default_rng(0).uniform(0, 70, GRID).astype(np.float32)
    found = {"ct": folder / "ann" / "ct_003.dcm", "structures": folder / "ann" / "rtstruct.dcm"}
    for kind in ("overview", "planned"):
        if kind == "planned":
            plan(found["structures"]).save_as(folder / "ann" / "rtplan.dcm")
        (record,) = find_inputs(folder / "ann")
        (found[kind],) = outputs.write(record, dose, folder / kind, DosePredictOptions(csv=False))
    found["synthetic"] = folder / "synthetic.dcm"
    write.write_dose(dose, synthetic(patient.voxel_mm), "pt_1", found["synthetic"])
    return found


def plan(structures: Path) -> Any:
    """Return an RT Plan (no valid one) that refers to a structure set."""
    made = pydicom.dcmread(structures)
    refers = [write.reference(made.SOPClassUID, made.SOPInstanceUID)]
    for name in ("StructureSetROISequence", "ROIContourSequence", "RTROIObservationsSequence"):
        del made[name]
    made.Modality, made.SOPClassUID, made.SOPInstanceUID = "RTPLAN", RTPlanStorage, "1.2.3.4"
    made.file_meta.MediaStorageSOPClassUID, made.file_meta.MediaStorageSOPInstanceUID = RTPlanStorage, "1.2.3.4"
    made.ReferencedStructureSetSequence = refers
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_one_of_its_representation(kind: str, files: Mapping[str, Path]) -> None:
    """Pydicom reads strictly: lengths, characters and numbers (it found a comment of 93 characters where 64 may be)."""
    with pydicom.config.strict_reading():
        found = pydicom.dcmread(files[kind])
        list(found.iterall())


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_are_those_of_the_standard(kind: str, files: Mapping[str, Path]) -> None:
    found = pydicom.dcmread(files[kind])
    used = USED.get(kind, USED["planned"] - {"rt-dvh"} if kind == "synthetic" else USED["planned"])
    assert not list(faults(found, used))
    del found.SOPInstanceUID
    found.SeriesInstanceUID, found.RTPlanDate = "", "20260101"
    said = list(faults(found, used))
    assert said == ["RTPlanDate is in no module", "SOPInstanceUID is missing", "SeriesInstanceUID is empty"]


def faults(found: Any, used: set[str]) -> Iterator[str]:
    """Yield what PS3.3 forbids: type 1 that is missing or empty, type 2 that is missing, attributes of no module."""
    known: set[tuple[str, ...]] = set()
    needed: dict[tuple[str, ...], str] = {}
    for module in table("iod_module_map")[table("sop_class_iod_map")[found.SOPClassUID]]:
        attributes = table("module_attribute_map")[module["key"]]
        places = {(*a["path"], a["keyword"]): a["type"] for a in attributes}
        known |= places.keys()
        if module["usage"] == "M" or module["key"] in used:
            needed |= {place: kind for place, kind in places.items() if kind in ("1", "2") and needed.get(place) != "1"}
    yield from sorted({f"{'.'.join(place)} is in no module" for place, _ in walk(found) if place not in known})
    for place, kind in sorted(needed.items()):
        for item in at(found, place[:-1]):
            if place[-1] not in item:
                yield f"{'.'.join(place)} is missing"
            elif kind == "1" and item[place[-1]].is_empty:
                yield f"{'.'.join(place)} is empty"


@cache
def table(name: str) -> Any:
    """Return one of the tables of the standard that highdicom brings, without importing it."""
    if (package := importlib.util.find_spec("highdicom")) is None or package.origin is None:
        pytest.skip("highdicom is not installed: it is in the group oracles")
    return json.loads((Path(package.origin).parent / "_standard" / f"{name}.json").read_text())


def walk(found: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for element in found:
        yield (*place, element.keyword), element
        for item in element.value if element.VR == "SQ" else ():
            yield from walk(item, (*place, element.keyword))


def at(found: Any, place: tuple[str, ...]) -> list[Any]:
    items = [found]
    for name in place:
        items = [inner for item in items for inner in item.get(name) or ()]
    return items


@pytest.mark.parametrize("kind", KINDS)
def test_dciodvfy_finds_no_fault(kind: str, files: Mapping[str, Path]) -> None:
    if (program := shutil.which("dciodvfy")) is None:
        pytest.skip("dciodvfy is not installed (Debian's dicom3tools)")
    said = subprocess.run([program, str(files[kind])], capture_output=True, text=True, check=False).stderr.splitlines()
    assert not [line for line in said if line.startswith("Error")]
    spare = SPARE + (OLD if kind in ("overview", "synthetic") else ())
    assert not [line for line in said if line.startswith("Warning") and not any(word in line for word in spare)]


@pytest.mark.parametrize("kind", KINDS)
def test_dcmdump_reads_every_element(kind: str, files: Mapping[str, Path]) -> None:
    if (program := shutil.which("dcmdump")) is None:
        pytest.skip("dcmdump is not installed (Debian's dcmtk)")
    done = subprocess.run([program, "--quote-nonascii", str(files[kind])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shown = {line.strip()[1:10].replace(",", "").upper() for line in done.stdout.splitlines() if "(" in line[:20]}
    assert {f"{element.tag:08X}" for element in pydicom.dcmread(files[kind])} <= shown
