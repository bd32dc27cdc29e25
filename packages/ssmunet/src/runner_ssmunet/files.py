"""Find the cores below a folder, and read one core from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from runner_core import (
    BadInput,
    DataErrors,
    Json,
    Pair,
    PairsConfig,
    Record,
    counted,
    did_you_mean,
    first_few,
    leave_out,
    list_inputs,
    list_pairs,
    split_of_folder,
    unique_keys,
    walk,
)

from runner_ssmunet import readers
from runner_ssmunet.classes import Classes
from runner_ssmunet.labels import LABELS
from runner_ssmunet.readers import Core, Outline, Units
from runner_ssmunet.readers.sidecars import stem

__all__ = [
    "Core",
    "Outline",
    "find_inputs",
    "find_records",
    "identity",
    "labelled",
    "read_core",
    "read_outline",
    "stored_labels",
]

Array = np.ndarray[Any, np.dtype[Any]]

LABEL_ROLES = ("labels", "labels data", "landmarks", "colours")
"""Roles of label files, which predictions neither need nor read: labels, the data of their ENVI header, the landmarks
of the picture that they were drawn on, and the table of its colours."""

IDENTITIES: Mapping[str, tuple[str, ...]] = {
    "patient": ("patient_id", "patient"),
    "slide": ("slide_id", "slide"),
    "core": ("core_id", "core"),
}
"""Values of `data.group_by`, with their names in a core's meta."""


def find_records(root: Path, group_by: str, data: PairsConfig | None = None) -> list[Record]:
    """Return every core below `root`, or from a table or patterns (`data`), sorted by key.

    `files` holds core and, if present, labels, tissue and meta.

    Reads names and each core's ids, no spectra. Folders train, validation and test set `split`. Raises BadInput if
    there is no core, and naming every core at once that cannot be opened, or that has labels but no id for `group_by`
    (patient, slide or core).
    """
    pairs = list_pairs(root, data or PairsConfig(), readers.could_be, stem, labelled=False)
    if pairs is None:
        paths = _cores_below(root)
        keys = unique_keys(paths, root, stem)
        pairs = [Pair(keys[path], path, None, None, split_of_folder(path, root)) for path in paths]
    records, errors = [], []
    for pair in pairs:
        try:
            records.append(_record(pair, group_by))
        except BadInput as error:
            errors.append(str(error))
    if errors:  # also report the other cores' faults, as far as they show without reading spectra
        _refuse(sorted([*errors, *filter(None, map(_fault, records))]))
    return sorted(records, key=lambda record: record.key)


def labelled(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Divide records into those with labels and those without. Raises BadInput if none has labels."""
    kept = [record for record in records if "labels" in record.files]
    if not kept:
        _refuse([_unlabelled(record.files["core"]) for record in records])
    return kept, [record for record in records if "labels" not in record.files]


def find_inputs(path: Path, data: PairsConfig | None = None) -> list[Record]:
    """Return the cores to predict: a file, or those of a table, of `data.pattern` or below a folder.

    Labels and ids are not needed. Each core is a group of its own.
    """
    pairs = list_inputs(path, data or PairsConfig(), readers.could_be, stem)
    if pairs is not None:
        paths, keys = [pair.image for pair in pairs], {pair.image: pair.key for pair in pairs}
    elif path.is_file():
        paths, keys = [path], {path: stem(path)}
    else:
        paths = _cores_below(path)
        if others := [p.name for p in _below(path) if p.suffix == ".npz" and p not in set(paths)]:
            leave_out(f"{path}: {counted(len(others), 'npz file')} left out, not named core_*.npz: {first_few(others)}")
        keys = unique_keys(paths, path, stem)
    records = []
    for core in paths:
        files = {role: file for role, file in readers.files(core).items() if role not in LABEL_ROLES}
        records.append(Record(keys[core], keys[core], files))
    return sorted(records, key=lambda record: record.key)


def write_arrays(arrays: Mapping[str, Array], own: Array, folder: Path) -> Path:
    """Write a core that was given as `image` (H, W, bands), `wavenumbers` (bands,) and perhaps `tissue` (H, W).

    `own` are the network's wavenumbers, which as many bands have if none are given. Raises BadInput that says what is
    needed.
    """
    names = {"image": "X", "wavenumbers": "wn", "tissue": "tissue_mask"}
    if unknown := {*arrays} - {*names}:
        raise BadInput(f"{min(unknown)}: a core is given as {', '.join(names)}")
    image = arrays.get("image", np.empty(0))
    if image.ndim != 3:
        raise BadInput(f"the array has shape {image.shape}: a core is (rows, columns, bands), and called image")
    if image.dtype == bool:
        raise BadInput("the array is of true and false, as a mask is: give the spectra, as numbers")
    if "wavenumbers" not in arrays and image.shape[2] != len(own):
        raise BadInput(
            f"the array has {counted(image.shape[2], 'band')}, the network reads {len(own)}: say which the array's "
            "are, predict({'image': array, 'wavenumbers': axis}), in cm⁻¹"
        )
    path, given = folder / "core_array.npz", {"wavenumbers": own, **arrays}
    np.savez(path, **{names[name]: array for name, array in given.items()})  # type: ignore[arg-type]  # an array may not be called allow_pickle
    return path


def read_core(path: Path, labels: Path | None = None, units: str = "auto") -> Core:
    """Return the core of a file, with mask and meta from beside it, and labels from there or from `labels`.

    `units` is `data.units`. Raises BadInput naming the file and the fault.
    """
    return readers.read(path, labels, None if units == "auto" else cast("Units", units))


def read_outline(path: Path, labels: Path | None = None) -> Outline:
    """Return the core without its spectra."""
    return readers.read_outline(path, labels)


def identity(meta: Mapping[str, Json], kind: str) -> str | None:
    """Return the patient, slide or core that `meta` names, or None.

    >>> identity({"patient_id": 7}, "patient"), identity({"patient_id": " "}, "patient")
    ('7', None)
    """
    for name in IDENTITIES[kind]:
        value = meta.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return None


def stored_labels(outline: Outline, path: Path, classes: Classes, ignore: int | None, needed: bool) -> Array:
    """Return labels as they are cached: (H, W) uint8, 0 for unannotated, else the class's number from 1.

    `ignore` is the file's label of unannotated pixels. If it is None, that label is 0, which is then a class too.
    Raises BadInput naming `path` if there are no labels, if one is no class, and, with `needed`, if no pixel is
    annotated.
    """
    labels = outline.labels
    if labels is None:
        raise BadInput(_unlabelled(path))
    if outline.label_names and classes.names:
        return _by_name(labels, outline.label_names, path, classes, needed and ignore is not None)
    unannotated = 0 if ignore is None or outline.label_names else ignore
    most = len(classes.names) or LABELS - 1  # of a record alone nobody knows how many there are
    wrong = labels[(labels != unannotated) & ((labels < 1) | (labels > most))]
    if wrong.size:
        found = ", ".join(map(str, np.unique(wrong)[:5].tolist()))
        setting = "data.ignore is none" if ignore is None else f"data.ignore is {ignore}"
        raise BadInput(
            f"{path}: label {found} in {counted(wrong.size, 'pixel')} is no class: there are {most} (labels 1 to "
            f"{most}, by {classes.source or 'their type'}), and {setting}. Correct the labels, or one of the two."
        )
    stored = np.where(labels == unannotated, 0, labels).astype(np.uint8)
    if needed and ignore is not None and not stored.any():
        raise BadInput(
            f"{path}: not one pixel is annotated (all are {ignore}, which data.ignore leaves out): a core to train or "
            "score on needs labels. Annotate it, or move it elsewhere."
        )
    return stored


def _by_name(labels: Array, names: Sequence[str], path: Path, classes: Classes, needed: bool) -> Array:
    """Return labels whose file names its classes under the numbers of `classes`."""
    there = sorted({*np.unique(labels).tolist()} - {0})
    if other := [names[label - 1] for label in there if names[label - 1] not in classes.names]:
        hint = did_you_mean(other[0], classes.names)
        raise BadInput(
            f"{path}: its annotation names {first_few(other)}, which {'is no class' if len(other) == 1 else 'are none'}"
            f"{hint}; the classes are {first_few(classes.names)}, by {classes.source}. Correct one of them; a name "
            "that ends with * in QuPath or ImageJ counts as unannotated."
        )
    if needed and not there:
        raise BadInput(
            f"{path}: not one pixel is annotated: no region covers the centre of a pixel. A core to train or score on "
            "needs labels. Annotate it, or move it elsewhere."
        )
    numbers = [classes.names.index(name) + 1 if name in classes.names else 0 for name in names]
    return np.array([0, *numbers], np.uint8)[labels]


def _cores_below(root: Path) -> list[Path]:
    if not root.exists():
        raise BadInput(f"{root}: no such folder.")
    if not root.is_dir():
        raise BadInput(f"{root}: not a folder. Give the folder that holds the cores: {readers.FORMATS}.")
    names = _below(root)
    paths = [path for path in names if readers.is_core(path)]
    if not paths:
        archives = sum(path.suffix == ".npz" for path in names)
        hint = f" ({counted(archives, 'other npz file')} there: name them core_*.npz)" if archives else ""
        raise BadInput(f"{root}: no core below it{hint}. Looked for {readers.FORMATS}.")
    return paths


def _below(root: Path) -> list[Path]:
    return [folder / name for folder, _, names in walk(root) for name in names]


def _record(pair: Pair, group_by: str) -> Record:
    path, key = pair.image, pair.key
    files = readers.files(path, pair.label if pair.label and pair.label.exists() else None)
    group = pair.group or identity(readers.meta(path), group_by)
    if group is None and (group_by == "core" or "labels" not in files):
        group = key
    if group is None:
        raise BadInput(_nameless(path, group_by))
    return Record(key, group, files, pair.split)


def _fault(record: Record) -> str | None:
    try:
        read_outline(record.files["core"], record.files.get("labels"))
    except BadInput as error:
        return str(error)
    return None


def _refuse(errors: Sequence[str]) -> NoReturn:
    raise BadInput(errors[0]) if len(errors) == 1 else DataErrors(errors)


def _unlabelled(path: Path) -> str:
    beside = f"{stem(path)}.labels.png, .npy or .hdr"
    inside = f"neither y in it nor {beside} beside it" if path.suffix in (".npz", ".mat") else f"no {beside} beside it"
    inside += f", nor {stem(path)}.geojson or .roi.zip"
    return f"{path}: it has no labels ({inside}). Add them to train or score on it; predict needs none."


def _nameless(path: Path, group_by: str) -> str:
    others = " or ".join(kind for kind in IDENTITIES if kind != group_by)
    return (
        f"{path}: its meta does not say which {group_by} the core is of, so that one {group_by}'s cores could train "
        f"and validate at once. Write {IDENTITIES[group_by][0]} into its meta, or into {stem(path)}.json beside it, or "
        f"split by another group: data.group_by {others}."
    )
