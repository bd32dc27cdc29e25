"""Find the patients in folders of DICOM files: each RT Structure Set with its CT series, dose and plan."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner_core import BadInput, Record, Scalar, record_key, walk

from runner_openkbp.dicom.names import Structure, Table, assign, notes, read_table
from runner_openkbp.roles import split_of

STRUCTURES = "structures"
"""Role of the RT Structure Set, which every patient from DICOM has."""
PLAN = "plan"
_TAGS = (
    *("Modality", "SOPInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "PatientID", "ImagePositionPatient"),
    *("StructureSetROISequence", "RTROIObservationsSequence", "ReferencedFrameOfReferenceSequence"),
    *("ReferencedStructureSetSequence", "ReferencedRTPlanSequence", "DoseReferenceSequence", "DoseSummationType"),
)
_OTHER = (".csv", ".gz", ".nii", ".png", ".jpg", ".txt", ".json", ".yaml", ".yml", ".html", ".md", ".zip", ".pdf")


@dataclass
class _Found:
    """Headers of the DICOM files below a folder, by what they are."""

    series: dict[str, list[tuple[Path, Any]]] = field(default_factory=lambda: defaultdict(list))
    structures: list[tuple[Path, Any]] = field(default_factory=list)
    doses: list[tuple[Path, Any]] = field(default_factory=list)
    plans: dict[str, tuple[Path, Any]] = field(default_factory=dict)


def find_patients(root: Path, names: Path | None, with_dose: bool) -> list[Record]:
    """Return the patients below a folder of DICOM files; an empty list if there is no DICOM file.

    A patient that cannot be understood is returned too, with the reason in `values["fault"]`: reading it raises it.
    Raises BadInput if there are DICOM files but no RT Structure Set, or if a table of names cannot be read.
    """
    found = _index(root)
    if not (found.series or found.structures or found.doses):
        return []
    table = read_table(names)
    if not found.structures:
        raise BadInput(
            f"{root}: holds {len(found.series)} DICOM CT series, but no RT Structure Set (RTSTRUCT), whose contours "
            "the network needs; export it from the planning system too"
        )
    doubled = Counter(uid for _, header in found.structures for uid in _series_of(header))
    keys = _keys(root, found)
    records = [
        _record(root, found, table, doubled, pair, key, with_dose)
        for pair, key in zip(found.structures, keys, strict=True)
    ]
    if with_dose and not found.doses:
        raise BadInput(
            f"{root}: none of its {len(records)} patients has an RT Dose (RTDOSE), which training and evaluation need. "
            "`predict` does without it"
        )
    return records


def _index(root: Path) -> _Found:
    import pydicom

    found = _Found()
    for path in sorted(folder / name for folder, _, names in walk(root) for name in names):
        if path.suffix.lower() in _OTHER or not _is_dicom(path):
            continue
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS))
        except (OSError, ValueError, EOFError, pydicom.errors.InvalidDicomError) as error:
            raise BadInput(f"{path}: a DICOM file that cannot be read ({error}); copy or export it again") from error
        kind = header.get("Modality")
        if kind == "CT":
            found.series[str(header.get("SeriesInstanceUID", ""))].append((path, header))
        elif kind == "RTSTRUCT":
            found.structures.append((path, header))
        elif kind == "RTDOSE":
            found.doses.append((path, header))
        elif kind == "RTPLAN":
            found.plans[str(header.get("SOPInstanceUID", ""))] = (path, header)
    return found


def _is_dicom(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _series_of(structures: Any) -> list[str]:
    """Return the UIDs of the series that a structure set was drawn on."""
    return [
        str(series.SeriesInstanceUID)
        for frame in structures.get("ReferencedFrameOfReferenceSequence") or ()
        for study in frame.get("RTReferencedStudySequence") or ()
        for series in study.get("RTReferencedSeriesSequence") or ()
    ]


def _keys(root: Path, found: _Found) -> list[str]:
    """Return a key for each structure set: its patient's folder, or the patient's ID if folders do not tell."""
    folders = []
    for path, header in found.structures:
        slices = [p for uid in _series_of(header) for p, _ in found.series.get(uid, ())]
        folders.append(Path(os.path.commonpath([p.parent for p in (path, *slices)])))
    if len(set(folders)) == len(folders):
        names = [(folder.name or folder.resolve().name) for folder in folders]
        full = ["__".join(folder.relative_to(root).parts) for folder in folders]
    else:
        names = [str(header.get("PatientID") or path.stem) for path, header in found.structures]
        full = [f"{name}__{path.stem}" for name, (path, _) in zip(names, found.structures, strict=True)]
    count = Counter(names)
    own = [name if count[name] == 1 else long for name, long in zip(names, full, strict=True)]
    return [record_key(key, str(path)) for key, (path, _) in zip(own, found.structures, strict=True)]


def _record(
    root: Path, found: _Found, table: Table, doubled: Mapping[str, int], pair: tuple[Path, Any], key: str, dosed: bool
) -> Record:
    path, header = pair
    files: dict[str, Path] = {}
    values: dict[str, Scalar] = {}
    try:
        series = _series(path, header, found, doubled)
        files = {"ct" if n == 0 else f"ct {n + 1:04d}": slice_ for n, (slice_, _) in enumerate(series)}
        files[STRUCTURES] = path
        plan = _plan(path, header, found)
        dose = _dose(path, header, found, plan) if dosed else None
        files |= ({PLAN: plan[0]} if plan else {}) | ({"dose": dose} if dose else {})
        if dosed and dose is None:
            raise BadInput(f"{path}: there is no RT Dose (RTDOSE) of this patient, which training and evaluation need")
        named = assign(_structures(header), table, _prescribed(plan), str(path))
        values |= {roi: " ".join(str(s.number) for s in own) for roi, own in named.rois.items()}
        values |= {"body": str(named.body.number)} if named.body else {}
        values["names"] = "; ".join(notes(named))
    except BadInput as error:
        files.setdefault("ct", path)
        files[STRUCTURES] = path
        values["fault"] = str(error)
    group = str(header.get("PatientID") or key)
    return Record(key, group, files, split_of(path.relative_to(root).parts[:-1]), values=values)


def _series(path: Path, header: Any, found: _Found, doubled: Mapping[str, int]) -> list[tuple[Path, Any]]:
    """Return the slices of the series that a structure set refers to."""
    wanted = _series_of(header)
    there = [uid for uid in wanted if uid in found.series]
    if not there and not wanted and len(found.series) == 1:
        there = list(found.series)
    if len(there) != 1:
        have = ", ".join(f"{len(own)} slices in {own[0][0].parent}" for own in found.series.values()) or "none"
        what = f"refers to {len(there)} of the CT series that are there" if there else "its CT series is not there"
        raise BadInput(
            f"{path}: {what} (there are: {have}); export the structure set with the one series it belongs to"
        )
    if doubled[there[0]] > 1:
        raise BadInput(f"{path}: {doubled[there[0]]} structure sets belong to its CT series; keep the one to be used")
    frames = {str(f.get("FrameOfReferenceUID", "")) for f in header.get("ReferencedFrameOfReferenceSequence") or ()}
    own = {str(slice_.get("FrameOfReferenceUID", "")) for _, slice_ in found.series[there[0]]}
    if len(own) > 1:
        raise BadInput(
            f"{path}: the slices of its CT series lie in {len(own)} frames of reference; export one series again"
        )
    if frames and not frames & own:
        raise BadInput(
            f"{path}: the structures lie in another frame of reference than the CT; export both from one plan"
        )
    return found.series[there[0]]


def _structures(header: Any) -> Sequence[Structure]:
    kinds = {
        int(item.ReferencedROINumber): str(item.get("RTROIInterpretedType", "") or "").upper()
        for item in header.get("RTROIObservationsSequence") or ()
    }
    return [
        Structure(int(item.ROINumber), str(item.get("ROIName", "")), kinds.get(int(item.ROINumber), ""))
        for item in header.get("StructureSetROISequence") or ()
    ]


def _references(header: Any, name: str) -> set[str]:
    return {str(item.get("ReferencedSOPInstanceUID", "")) for item in header.get(name) or ()}


def _plan(path: Path, header: Any, found: _Found) -> tuple[Path, Any] | None:
    uid = str(header.get("SOPInstanceUID", ""))
    plans = [p for p in found.plans.values() if uid in _references(p[1], "ReferencedStructureSetSequence")]
    if len(plans) > 1:
        raise BadInput(f"{path}: {len(plans)} RT Plans refer to this structure set; keep one of them, or none")
    return plans[0] if plans else None


def _dose(path: Path, header: Any, found: _Found, plan: tuple[Path, Any] | None) -> Path | None:
    """Return the dose of a patient: its plan's or its structure set's, else the only one in its frame of reference.

    That one may name a plan that was not exported, but no other one: its dose would be wrong without a sign.
    """
    uid, frames = str(header.get("SOPInstanceUID", "")), set(_frames(header))
    planned = str(plan[1].get("SOPInstanceUID", "")) if plan else None
    near = [pair for pair in found.doses if str(pair[1].get("FrameOfReferenceUID", "")) in frames]
    unrelated = [d for d in near if not _is_of_another(d[1], uid, planned, found)]
    for doses in (
        [d for d in near if planned and planned in _references(d[1], "ReferencedRTPlanSequence")],
        [d for d in near if uid in _references(d[1], "ReferencedStructureSetSequence")],
        unrelated,
    ):
        whole = [d for d in doses if str(d[1].get("DoseSummationType", "")).endswith("PLAN")] or doses
        if len(whole) == 1:
            return whole[0][0]
        if whole:
            raise BadInput(f"{path}: {len(whole)} RT Doses belong to it ({whole[0][0].name}, …); keep the plan's one")
    if near:
        raise BadInput(
            f"{path}: the RT Dose in its frame of reference ({near[0][0].name}) is of another plan or structure set; "
            "export dose and structures from one plan, or leave the dose out"
        )
    if found.doses:
        raise BadInput(f"{path}: no RT Dose lies in its frame of reference; export dose and structures from one plan")
    return None


def _is_of_another(dose: Any, uid: str, planned: str | None, found: _Found) -> bool:
    """Return whether a dose names another structure set, or a plan that is not this patient's, as far as known."""
    plans, sets = (_references(dose, f"Referenced{what}Sequence") for what in ("RTPlan", "StructureSet"))
    return (bool(plans) and (planned is not None or not plans.isdisjoint(found.plans))) or bool(sets)


def _frames(header: Any) -> Iterator[str]:
    yield from (str(f.get("FrameOfReferenceUID", "")) for f in header.get("ReferencedFrameOfReferenceSequence") or ())


def _prescribed(plan: tuple[Path, Any] | None) -> dict[int, float]:
    """Return the prescribed dose (Gy) of a plan by number of the structure."""
    items = (plan[1].get("DoseReferenceSequence") or ()) if plan else ()
    return {
        int(item.ReferencedROINumber): float(item.TargetPrescriptionDose)
        for item in items
        if item.get("ReferencedROINumber") is not None and item.get("TargetPrescriptionDose") is not None
    }
