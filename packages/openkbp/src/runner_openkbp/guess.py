"""Guess which files below a folder belong to which patient (`runner openkbp init-data`)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from runner_core import GuessedTable, first_few, walk

from runner_openkbp.rois import ROIS
from runner_openkbp.roles import FILES, REQUIRED, by_role, role_of, split_of

_PLAIN = re.compile(r"structures?|masks?|rois?|contours?|regions?|csvs?", re.IGNORECASE)
"""Names of folders within a patient's, which say nothing of the patient."""
_COLUMN = {role: name.removesuffix(".csv") for role, name in FILES.items()}
Patient = tuple[str, ...]
"""Folders above a patient's files, and the patient's name."""


def guess(root: Path) -> GuessedTable:
    """Guess patients from the names of the CSV files below `root`, and from their folders."""
    files: defaultdict[Patient, list[tuple[str, Path]]] = defaultdict(list)
    left_out: defaultdict[str, list[Path]] = defaultdict(list)
    for folder, _, names in walk(root):
        for path in (folder / name for name in names):
            if not path.name.lower().endswith(".csv"):
                left_out["not of a format that this project reads"].append(path)
            elif found := _read(path.relative_to(root), root.resolve().name):
                files[found[0]].append((found[1], path))
            else:
                left_out["named neither as ct, dose, possible_dose_mask, voxel_dimensions nor as a region"].append(path)
    patients = {patient: by_role(own, "/".join(patient)) for patient, own in files.items()}
    for patient in [patient for patient, own in patients.items() if "ct" not in own]:
        left_out["of a patient without a ct"] += patients.pop(patient).values()
    for patient, own in patients.items():
        left_out["another file of the same kind"] += [path for _, path in files[patient] if path not in own.values()]
    order = sorted(patients, key=lambda patient: [_natural(part) for part in patient])
    return _table(root, {patient: patients[patient] for patient in order}, {w: p for w, p in left_out.items() if p})


def _read(path: Path, root: str) -> tuple[Patient, str] | None:
    """Return the patient and the role that a path below the data stands for.

    >>> _read(Path("p1/structures/spinal_cord.csv"), "data"), _read(Path("ct/p1.csv"), "data")
    ((('p1',), 'SpinalCord'), (('p1',), 'ct'))
    >>> _read(Path("p1_ct.csv"), "data"), _read(Path("ct.csv"), "data")
    ((('p1',), 'ct'), (('data',), 'ct'))
    """
    folders = tuple(part for part in path.parts[:-1] if not _PLAIN.fullmatch(part))
    words = re.split(r"[-_.\s]+", path.stem)
    for n in range(len(words)):
        if role := role_of("".join(words[n:])):
            return ((*folders, "_".join(words[:n])) if n else folders or (root,)), role
        if role := role_of("".join(words[: len(words) - n])):
            return (*folders, "_".join(words[len(words) - n :])), role
    if folders and (role := role_of(folders[-1])):
        return (*folders[:-1], path.stem), role
    return None


def _table(root: Path, patients: dict[Patient, dict[str, Path]], left_out: dict[str, list[Path]]) -> GuessedTable:
    count = Counter(patient[-1] for patient in patients)
    splits = [split_of(patient[:-1]) for patient in patients]
    plain = all(_is_folder(own) for own in patients.values())
    rows: list[dict[str, str | Path]] = []
    shown = []
    for (patient, own), split in zip(patients.items(), splits, strict=True):
        key = patient[-1] if count[patient[-1]] == 1 else "__".join(patient)
        row: dict[str, str | Path] = {"id": key, "group": key, "split": (split or "train") if any(splits) else ""}
        if plain:
            row["folder"] = own["ct"].parent
        else:
            row |= {_COLUMN[role]: own.get(role, "") for role in FILES}
        rows.append(row)
        regions = sum(role in own for role in ROIS)
        shown.append(f"{key}: {', '.join(_COLUMN[r] for r in FILES if r in own and r not in ROIS)}, {regions} regions")
    keys = [str(row["id"]) for row in rows]
    notes = [f"groups, which no split cuts: {len(keys):,} ({first_few(keys)}), guessed: each patient alone"]
    for role in (*REQUIRED, "dose"):
        if lacking := [key for key, own in zip(keys, patients.values(), strict=True) if role not in own]:
            notes.append(f"no {_COLUMN[role]} was found for {len(lacking):,} of {len(keys):,}: {first_few(lacking)}")
    return GuessedTable(rows, "patient", shown, notes, left_out)


def _is_folder(files: dict[str, Path]) -> bool:
    """Return True if the files lie in one folder, under names that are understood there."""
    return len({path.parent for path in files.values()}) == 1 and all(
        role_of(path.stem) == role for role, path in files.items()
    )


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
