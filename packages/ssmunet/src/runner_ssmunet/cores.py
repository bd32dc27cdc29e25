"""Cores below a folder, and one core from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from runner_core import BadInput, DataErrors, Record, walk
from runner_core._files import folder_split, unique_keys
from runner_core._text import counted
from runner_core.protocols import Json

from runner_ssmunet import readers
from runner_ssmunet.readers import Core, Outline
from runner_ssmunet.readers.sidecars import stem

__all__ = [
    "Core",
    "Outline",
    "find_cores",
    "find_inputs",
    "identity",
    "labelled",
    "read_core",
    "read_outline",
    "stored_labels",
]

Array = np.ndarray[Any, np.dtype[Any]]

IDENTITIES: Mapping[str, tuple[str, ...]] = {
    "patient": ("patient_id", "patient"),
    "slide": ("slide_id", "slide"),
    "core": ("core_id", "core"),
}
"""What `data.group_by` can be, with the names that it has in a core's meta."""


def find_cores(root: Path, group_by: str) -> list[Record]:
    """Every core below `root`, sorted by key; `files` has core, and where they are there labels, tissue and meta.

    Reads names, and who each core is; no spectra. `split` is set by folders train, validation, test. Raises BadInput
    where there is no core, and naming every core at once that cannot be opened, or that has labels but does not say
    which `group_by` (patient, slide or core) it is of.
    """
    paths = _cores_below(root)
    keys = unique_keys(paths, root, stem)
    records, errors = [], []
    for path in paths:
        try:
            records.append(_record(path, keys[path], folder_split(path, root), group_by))
        except BadInput as error:
            errors.append(str(error))
    if errors:  # who has to mend some cores is told of the others too, as far as can be seen without their spectra
        _refuse(sorted([*errors, *filter(None, map(_fault, records))]))
    return sorted(records, key=lambda record: record.key)


def labelled(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Those that can be trained or scored on, and those without labels. Raises BadInput where none has labels."""
    kept = [record for record in records if "labels" in record.files]
    if not kept:
        _refuse([_unlabelled(record.files["core"]) for record in records])
    return kept, [record for record in records if "labels" not in record.files]


def find_inputs(path: Path) -> list[Record]:
    """Cores to predict: a file, or those below a folder. Labels and ids are not needed; the group is the core's own."""
    if path.is_file():
        paths, keys = [path], {path: stem(path)}
    else:
        paths = _cores_below(path)
        keys = unique_keys(paths, path, stem)
    records = []
    for core in paths:
        files = {role: file for role, file in readers.files(core).items() if role != "labels"}
        records.append(Record(keys[core], keys[core], files))
    return sorted(records, key=lambda record: record.key)


def read_core(path: Path) -> Core:
    """The core of a file, with the labels, mask and meta beside it. Raises BadInput naming the file and the fault."""
    return readers.read(path)


def read_outline(path: Path) -> Outline:
    """The core without its spectra."""
    return readers.read_outline(path)


def identity(meta: Mapping[str, Json], kind: str) -> str | None:
    """The patient, slide or core that `meta` names, or None.

    >>> identity({"patient_id": 7}, "patient"), identity({"patient_id": " "}, "patient")
    ('7', None)
    """
    for name in IDENTITIES[kind]:
        value = meta.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return None


def stored_labels(outline: Outline, path: Path, classes: Sequence[str], ignore: int | None, needed: bool) -> Array:
    """Labels as they are cached: (H, W) uint8, 0 where nobody annotated, else the class's number from 1.

    `ignore` is the file's label of unannotated pixels; None: 0, which is a class too then. Raises BadInput naming
    `path` where there are no labels, where one is no class, and, if `needed`, where no pixel is annotated.
    """
    labels = outline.labels
    if labels is None:
        raise BadInput(_unlabelled(path))
    unannotated = 0 if ignore is None else ignore
    wrong = labels[(labels != unannotated) & ((labels < 1) | (labels > len(classes)))]
    if wrong.size:
        found = ", ".join(map(str, np.unique(wrong)[:5].tolist()))
        said = "data.ignore is none" if ignore is None else f"data.ignore is {ignore}"
        raise BadInput(
            f"{path}: label {found} in {counted(wrong.size, 'pixel')} is no class: data.classes names "
            f"{len(classes)} (labels 1 to {len(classes)}), and {said}. Correct the labels, or set one of the two."
        )
    stored = np.where(labels == unannotated, 0, labels).astype(np.uint8)
    if needed and ignore is not None and not stored.any():
        raise BadInput(
            f"{path}: not one pixel is annotated (all are {ignore}, which data.ignore leaves out): a core to train or "
            "score on needs labels. Annotate it, or move it elsewhere."
        )
    return stored


def _cores_below(root: Path) -> list[Path]:
    if not root.exists():
        raise BadInput(f"{root}: no such folder.")
    if not root.is_dir():
        raise BadInput(f"{root}: not a folder. Give the folder that holds the cores: {readers.FORMATS}.")
    names = [folder / name for folder, _, names in walk(root) for name in names]
    paths = [path for path in names if readers.is_core(path)]
    if not paths:
        archives = sum(path.suffix == ".npz" for path in names)
        hint = f" ({counted(archives, 'other npz file')} there: name them core_*.npz)" if archives else ""
        raise BadInput(f"{root}: no core below it{hint}. Looked for {readers.FORMATS}.")
    return paths


def _record(path: Path, key: str, split: str | None, group_by: str) -> Record:
    files = readers.files(path)
    group = identity(readers.meta(path), group_by)
    if group is None and (group_by == "core" or "labels" not in files):
        group = key
    if group is None:
        raise BadInput(_nameless(path, group_by))
    return Record(key, group, files, split)


def _fault(record: Record) -> str | None:
    try:
        read_outline(record.files["core"])
    except BadInput as error:
        return str(error)
    return None


def _refuse(errors: Sequence[str]) -> NoReturn:
    raise BadInput(errors[0]) if len(errors) == 1 else DataErrors(errors)


def _unlabelled(path: Path) -> str:
    beside = f"{stem(path)}.labels.png or .npy"
    inside = f"neither y in it nor {beside} beside it" if path.suffix in (".npz", ".mat") else f"no {beside} beside it"
    return f"{path}: it has no labels ({inside}). Add them to train or score on it; predict needs none."


def _nameless(path: Path, group_by: str) -> str:
    others = " or ".join(kind for kind in IDENTITIES if kind != group_by)
    return (
        f"{path}: its meta does not say which {group_by} the core is of, so that one {group_by}'s cores could train "
        f"and validate at once. Write {IDENTITIES[group_by][0]} into its meta, or into {stem(path)}.json beside it, or "
        f"split by another group: data.group_by {others}."
    )
