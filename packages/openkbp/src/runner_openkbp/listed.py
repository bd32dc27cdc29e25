"""Patients whose files the user lists: in a table (`data.manifest`), or by patterns of their names (`data.pattern`).

id,group,split,folder                                    a patient's folder, in which files have usual names
id,ct,dose,possible_dose_mask,voxel_dimensions,PTV70 …   a column for each file
id,ct,dose,possible_dose_mask,voxel_dimensions,structures   a folder of the regions
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from runner_core import (
    BadInput,
    FilesConfig,
    Pattern,
    Record,
    TableRow,
    counted,
    is_table,
    leave_out,
    named_table,
    read_rows,
    record_key,
    split_named,
    walk,
)

from runner_openkbp.roles import FILES, REQUIRED, KnownRoles, by_role, role_of, split_of

EXAMPLE = (
    "It needs a row for each patient with the column folder, or with ct, dose, possible_dose_mask, voxel_dimensions "
    "and a column for each region (or structures, a folder of them); id, group and split if wanted."
)
_FOLDERS = {"folder": "folder", "path": "folder", "structures": "structures", "masks": "structures"}
_PARTS = ("id", "role", "group", "split")
Patient = tuple[str, str, str, str]
"""The folders above what a pattern says, and its split, group and id."""


def list_patients(root: Path, config: FilesConfig, with_dose: bool) -> list[Record] | None:
    """Return the patients by `data.manifest`, by `data.pattern` or from the table `root`; None if the user names none.

    Raises BadInput with the table and line, or the pattern, and a remedy.
    """
    table = named_table(root, config)
    if table is not None:
        records = _from_table(table, root.parent if table == root else root)
    elif config.pattern:
        records = _from_patterns(root, config.pattern)
    else:
        return None
    if not with_dose:
        return [_without_dose(record) for record in records]
    if without := [record for record in records if "dose" not in record.files]:
        raise BadInput(
            f"{without[0].key}: {table or 'data.pattern'} names no dose for it ({len(without):,} of "
            f"{counted(len(records), 'patient')}). Training and evaluation need one; `predict` does without it."
        )
    return records


def list_inputs(path: Path, config: FilesConfig) -> list[Record] | None:
    """Return patients to predict, like `list_patients`. If `data.pattern` fits nothing, `leave_out` says so."""
    table = is_table(path) and path.name not in FILES.values()
    try:
        own = FilesConfig() if table else FilesConfig(pattern=config.pattern)
        return list_patients(path, own, with_dose=False) if table or path.is_dir() else None
    except BadInput as error:
        if table:
            raise
        leave_out(f"{error} Patients are found by the challenge's names instead.")
        return None


def _without_dose(record: Record) -> Record:
    files = {role: path for role, path in record.files.items() if role != "dose"}
    return Record(record.key, record.group, files, record.split)


# ---------------------------------------------------------------- tables


def _from_table(table: Path, root: Path) -> list[Record]:
    rows = read_rows(table, root, lambda name: _FOLDERS.get(name) or role_of(name), _could_be, EXAMPLE)
    keys = [row.key or record_key(_name(table, row), f"{table}: line {row.line}") for row in rows]
    if twice := [key for key, count in Counter(keys).items() if count > 1]:
        raise BadInput(f"{table}: two patients would be called {twice[0]}. Give the table a column id.")
    files = [_files(table, row) for row in rows]
    known: dict[Path, int] = {}
    for row, own in zip(rows, files, strict=True):
        if (first := known.setdefault(own["ct"], row.line)) != row.line:
            raise BadInput(f"{table}: ct {own['ct']} is on line {first} and on line {row.line}. Delete one of them.")
    return [Record(key, row.group or key, own, row.split) for key, row, own in zip(keys, rows, files, strict=True)]


def _could_be(path: Path) -> bool:
    return path.is_dir() or path.name.lower().endswith((".csv", ".csv.gz"))


def _name(table: Path, row: TableRow) -> str:
    """Return the name of a patient without an id: of its folder, or of its CT unless that is called ct, too."""
    place = row.files.get("folder") or row.files.get("ct")
    if place is None:
        raise BadInput(f"{table}: line {row.line} names neither a folder nor a ct. {EXAMPLE}")
    return place.parent.name if role_of(place.stem) else place.name.removesuffix(".gz").removesuffix(".csv")


def _files(table: Path, row: TableRow) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for column in ("folder", "structures"):
        folder = row.files.get(column)
        if folder is None:
            continue
        if not folder.is_dir():
            raise BadInput(f"{table}: line {row.line}: {folder}: not a folder, as the column {column} needs.")
        there = [(role, path) for path in sorted(folder.glob("*.csv")) if (role := role_of(path.stem))]
        found |= by_role(there, str(folder))
    found |= {role: path for role, path in row.files.items() if role in FILES}
    for role, name in REQUIRED.items():
        if role in found:
            continue
        if "folder" not in row.files:
            raise BadInput(f"{table}: line {row.line} has no {name.removesuffix('.csv')}. Fill it in. {EXAMPLE}")
        found[role] = row.files["folder"] / name  # reading says that it is missing, of all patients at once
    return found


# ---------------------------------------------------------------- patterns


def _from_patterns(root: Path, texts: Sequence[str]) -> list[Record]:
    patterns = [Pattern(text, _PARTS, ("id", "role"), "data.pattern") for text in texts]
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder; data.pattern looks for files below one.")
    names = sorted(
        (folder / name).relative_to(root).as_posix()
        for folder, _, own in walk(root)
        for name in own
        if name.lower().endswith((".csv", ".csv.gz"))
    )
    files: defaultdict[Patient, list[tuple[str, Path]]] = defaultdict(list)
    parts: dict[Patient, dict[str, str]] = {}
    unknown: list[str] = []
    for name in names:
        found = next(((p, fields) for p in patterns if (fields := p.match(name, {"role": KnownRoles()}))), None)
        if found and found[1]["role"] != Path(name).stem and role_of(Path(name).stem):
            continue  # possible_dose_mask.csv is no dose_mask of a patient named possible
        if found is None:
            unknown += [name] if any(p.match(name) for p in patterns) else []
            continue
        pattern, fields = found
        above = "/".join(name.split("/")[: -pattern.depth])
        patient = (above, fields.get("split", ""), fields.get("group", ""), fields["id"])
        files[patient].append((role_of(fields["role"]) or "", root / name))
        parts.setdefault(patient, {}).update(fields)
    if not files:
        raise BadInput(
            f"{root}: data.pattern {texts[0]!r} fits none of the {len(names):,} files below it that could be read. It "
            "is the end of a path: folders and name, {id} for the patient and {role} for what the file is (ct, dose, "
            "PTV70, …)."
        )
    if unknown:
        count = counted(len(unknown), "file")
        leave_out(f"{count} whose {{role}} in data.pattern is not known, {unknown[0]} for one: left out.", "warning")
    return _patients(root, patterns[0], files, parts)


def _patients(
    root: Path,
    pattern: Pattern,
    files: dict[Patient, list[tuple[str, Path]]],
    parts: dict[Patient, dict[str, str]],
) -> list[Record]:
    count = Counter(patient[-1] for patient in files)
    records = []
    for patient, own in files.items():
        fields = parts[patient]
        where = str(own[0][1])
        full = "__".join(part for text in patient for part in text.split("/") if part)
        key = record_key(patient[-1] if count[patient[-1]] == 1 else full, where)
        found = by_role(own, key)
        for role, name in REQUIRED.items():
            role_name = name.removesuffix(".csv")
            found.setdefault(role, root.joinpath(patient[0], pattern.filled(fields | {"role": role_name})))
        folders = own[0][1].relative_to(root).parts[:-1]
        split = split_named(fields["split"], where) if "split" in fields else split_of(folders)
        records.append(Record(key, fields.get("group", key), found, split))
    return records
