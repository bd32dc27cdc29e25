"""Find the challenge's patients and read one.

    [provided-data/]train-pats/pt_1/ct.csv, dose.csv, possible_dose_mask.csv, voxel_dimensions.csv, PTV70.csv, …
    [provided-data/]validation-pats/pt_201/…
    [provided-data/]test-pats/pt_241/…

Patients' folders of any name below one folder are found too, and so is a single patient's folder. If there is none,
DICOM files are looked for (`dicom.find`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from runner_core import BadInput, FilesConfig, Record, walk

from runner_openkbp.config import DoseDataConfig
from runner_openkbp.csvfiles import read_masks, read_values, read_voxels, write_indices, write_values, write_voxels
from runner_openkbp.dicom import find, read
from runner_openkbp.listed import list_inputs, list_patients
from runner_openkbp.rois import GRID, MASKS, POSSIBLE, ROIS, Array, Patient, bit, refuse_other_unit, unpack
from runner_openkbp.roles import DOSE, FILES, REQUIRED, split_of

LAYOUT = (
    "folders pt_N with ct.csv, dose.csv, possible_dose_mask.csv, voxel_dimensions.csv and one CSV per region "
    "(PTV70.csv, SpinalCord.csv, …), in train-pats/, validation-pats/ and test-pats/ or in any one folder; or DICOM: a "
    "CT series with its RT Structure Set. "
    "Other names: `runner openkbp init-data DIR` writes a table of them to correct (data.manifest); patterns "
    "(data.pattern) do too"
)
_KNOWN = {*FILES.values()}
_PATIENT = re.compile(r"pt_\d+$", re.I)
BEHIND = 0.01
"""Largest share of the possible-dose mask after the last voxel of a file (0 in the challenge's files)."""
_INT16 = np.iinfo(np.int16)


# ---------------------------------------------------------------- finding


def find_records(root: Path, data: FilesConfig | None = None) -> list[Record]:
    """Find every patient below `root`, or those that a table or patterns list, for training and evaluation.

    A record names a required file even if it is missing, so that decoding reports missing files of all patients at
    once. If no patient of a folder has a dose, its patients can only be predicted and are left out (the challenge once
    published its validation and test sets without doses). Raises BadInput if there is no patient, or none has a dose.
    """
    if root.name in _KNOWN and root.is_file():
        raise BadInput(
            f"{root}: one file of a patient, and no table of patients: name the patient's folder ({root.parent}), or "
            "the folder that holds the patients' folders"
        )
    if (listed := list_patients(root, data or FilesConfig(), with_dose=True)) is not None:
        return listed
    found = _patient_folders(root)
    if not found:
        return _from_dicom(root, data, with_dose=True)
    sets = defaultdict(list)
    for folder in found:
        sets[folder.parent].append(folder)
    dosed = [folder for own in sets.values() if any(_has(f, DOSE) for f in own) for folder in own]
    if not dosed:
        lacking = [name for name in REQUIRED.values() if not any(_has(folder, name) for folder in found)]
        needed = f", nor {', '.join(lacking)}; restore the files" if lacking else ". `predict` does without it"
        raise BadInput(
            f"{root}: none of its {len(found)} patients has {DOSE}, which training and evaluation need{needed}"
        )
    return _records(root, dosed, with_dose=True)


def find_inputs(path: Path, data: FilesConfig | None = None) -> list[Record]:
    """Find patients to predict: a patient's folder, a file in it, a folder of patients, or a table; no dose is read."""
    if (listed := list_inputs(path, data or FilesConfig())) is not None:
        return listed
    folder = path.parent if path.is_file() and path.name in _KNOWN else path
    found = _patient_folders(folder)
    return _records(folder, found, with_dose=False) if found else _from_dicom(folder, data, with_dose=False)


def _from_dicom(root: Path, data: FilesConfig | None, with_dose: bool) -> list[Record]:
    """Return the patients of DICOM files. Raises BadInput if there is none either."""
    names = data.names if isinstance(data, DoseDataConfig) else None
    if found := find.find_patients(root, names, with_dose):
        return found
    empty = "it is empty" if not any(root.iterdir()) else "no patient below it"
    raise BadInput(f"{root}: {empty}. Looked for {LAYOUT}")


def _patient_folders(root: Path) -> list[Path]:
    if not root.exists():
        raise BadInput(f"{root}: no such folder")
    if not root.is_dir():
        raise BadInput(f"{root}: not a folder. Looked for {LAYOUT}")
    return sorted(_walk(root), key=lambda folder: _natural(str(folder)))


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in walk(root):
        unpacked = {name.removesuffix(".gz") for name in names}
        if _KNOWN & unpacked or (_PATIENT.match(folder.name) and not folders and not names):
            folders.clear()
            yield folder


def _records(root: Path, folders: Sequence[Path], with_dose: bool) -> list[Record]:
    count = Counter(folder.name for folder in folders)
    records = []
    for folder in folders:
        name = folder.name or folder.resolve().name
        parts = folder.relative_to(root).parts
        key = name if count[folder.name] == 1 else "__".join(parts)
        files = {role: folder / file for role, file in REQUIRED.items()}
        files |= {"dose": folder / DOSE} if with_dose else {}
        files |= {roi: path for roi in ROIS if (path := folder / f"{roi}.csv").exists() or _packed(path)}
        records.append(Record(key, name, files, split_of(parts[:-1])))
    return records


def _has(folder: Path, name: str) -> bool:
    path = folder / name
    return path.exists() or _packed(path)


def _packed(path: Path) -> bool:
    return path.with_name(f"{path.name}.gz").exists()


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts pt_2 before pt_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def write_arrays(arrays: Mapping[str, Array], spacing: tuple[float, ...] | None, folder: Path) -> Path:
    """Write a patient that was given as arrays on the challenge's grid: ct, possible_dose_mask, and regions.

    Raises BadInput that says what is needed.
    """
    needed, example = {"ct", POSSIBLE}, f"predict({{'ct': …, '{POSSIBLE}': …, 'PTV70': …}}, spacing=(x, y, z))"
    if unknown := {*arrays} - {"ct", *MASKS}:
        known = f"the regions are {', '.join(ROIS)}"
        raise BadInput(f"{min(unknown)}: a dose needs more than one array. Write {example}; {known}")
    if lacking := needed - {*arrays}:
        raise BadInput(f"{min(lacking)} is missing: {example}")
    if spacing is None:
        raise BadInput(f"give the size of a voxel in mm: {example}")
    if len(spacing) not in (1, len(GRID)):
        raise BadInput(f"spacing has {len(spacing)} numbers: a patient needs 3, (x, y, z) in mm, or one for all axes")
    for name, array in arrays.items():
        if array.shape != GRID:
            raise BadInput(f"{name} has shape {array.shape}: every array is on the challenge's grid, {GRID}")
        if name == "ct" and array.dtype == bool:
            raise BadInput("ct is of true and false, as a mask is: give the CT, as numbers")
        if not np.isfinite(array).all():
            raise BadInput(f"{name} has values that are NaN or infinite")
    write_voxels(folder / REQUIRED["voxels"], np.broadcast_to(np.array(spacing), 3))
    possible = arrays[POSSIBLE] > 0
    write_values(folder / REQUIRED["ct"], arrays["ct"], possible | (arrays["ct"] != 0))
    for name in {*arrays} - {"ct"}:
        write_indices(folder / f"{name}.csv", arrays[name] > 0)
    return folder


# ---------------------------------------------------------------- reading


def read_patient(record: Record) -> Patient:
    """Read a patient's files as arrays.

    Missing regions are normal. If anything else is missing or broken, BadInput names the file, the fault and the
    remedy.
    """
    if read.is_dicom(record):
        return read.read_patient(record)
    files = record.files
    if missing := [role for role, path in files.items() if not path.exists()]:
        raise BadInput(_missing(missing[0], [files[role] for role in missing]))
    voxel_mm = read_voxels(files["voxels"])
    masks = np.zeros(np.prod(GRID), np.uint16)
    names = [name for name in MASKS if name in files]
    for name, index in zip(names, read_masks([files[name] for name in names]), strict=True):
        masks[index] |= np.uint16(1 << bit(name))
    masks = masks.reshape(GRID)
    possible = unpack(masks, POSSIBLE)
    if not possible.any():
        raise BadInput(f"{files[POSSIBLE]}: the mask is empty, so there is nothing to predict or to score; restore it")
    dose = _read_dose(files["dose"], possible) if "dose" in files else None
    return Patient(_read_ct(files["ct"], possible), dose, masks, voxel_mm)


def _read_ct(path: Path, possible: Array) -> Array:
    """Read values rounded to int16 (the challenge's are whole numbers)."""
    index, values = read_values(path)
    if not index.size:
        raise BadInput(f"{path}: holds no voxel; copy or export it again")
    low, high = values.min(), values.max()
    if low < _INT16.min or high > _INT16.max:
        raise BadInput(
            f"{path}: values run from {low:g} to {high:g}, beyond CT numbers ({_INT16.min} … {_INT16.max}); is this "
            "the CT? Export it again"
        )
    _refuse_cut_off(path, index, possible)
    ct = np.zeros(np.prod(GRID), np.int16)
    ct[index] = np.rint(values)
    return ct.reshape(GRID)


def _read_dose(path: Path, possible: Array) -> Array:
    index, values = read_values(path)
    if not index.size or not values.any():
        raise BadInput(f"{path}: holds no dose above 0; copy or export it again")
    if values.min() < 0:
        worst = int(np.argmin(values))
        raise BadInput(
            f"{path}: {np.count_nonzero(values < 0)} doses are negative, down to {values[worst]:g} Gy at index "
            f"{index[worst]}; export the dose again"
        )
    refuse_other_unit(path, float(values.max()))
    _refuse_cut_off(path, index, possible)
    dose = np.zeros(np.prod(GRID), np.float32)
    dose[index] = values
    return dose.reshape(GRID)


def _refuse_cut_off(path: Path, index: Array, possible: Array) -> None:
    """Raise BadInput if the file ends well before the mask. A file cut off between two lines shows no other fault."""
    flat, last = possible.reshape(-1), int(index.max())
    behind = np.count_nonzero(flat[last + 1 :]) / np.count_nonzero(flat)
    if behind > BEHIND:
        raise BadInput(
            f"{path}: seems cut off: it ends at index {last}, and {behind:.0%} of the possible-dose mask lies behind "
            "it; copy or export it again"
        )


def _missing(role: str, missing: Sequence[Path]) -> str:
    path = missing[0]
    if _packed(path):
        return f"{path}: only {path.name}.gz is there; unpack it (gzip -d)"
    needed = "training and evaluation need the dose" if role == "dose" else "every patient needs it"
    if role == "voxels":
        needed = "it holds a voxel's size in mm, which scores and the geometry of written doses need"
    more = f", and so are {', '.join(p.name for p in missing[1:])}" if len(missing) > 1 else ""
    them = "them" if more else "it"
    return f"{path}: the file is missing ({needed}){more}; restore {them}, or take the patient's folder out"
