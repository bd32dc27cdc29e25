"""Files beside a core that hold what its format cannot: labels, tissue mask and meta.

STEM.labels.png, .tif, .npy, .hdr  class numbers (H, W); PNG, TIFF: one channel of 8 or 16 bits, or a palette's
                                 indices, or colours that a table names; HDR: an ENVI classification with its data
                                 file, whose class names and colours are used too
STEM.geojson, .roi.zip or .roi   regions drawn in QuPath or ImageJ, named by their classes
STEM.landmarks.csv               where points of the annotated picture lie in the core, if its pixels are not the core's
STEM.tissue.png, .npy or .hdr    not 0 on tissue
STEM.json                        {"core_id": …, "patient_id": …, "slide_id": …}

STEM is the core's file name without its suffix. For an OPUS file, whose suffix counts repeats, it is the whole name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, refuse_long_file

from runner_ssmunet import drawings
from runner_ssmunet.drawings import colours, landmarks
from runner_ssmunet.readers import envi
from runner_ssmunet.readers.base import DAMAGED, Array, Raw, existing, merged, one_a_pixel, short

_ROLES = ("labels", "tissue")
_LONGEST = 10_000_000
"""Most bytes of the JSON beside a core."""
MAPS = (*drawings.PICTURES, ".npy", ".hdr")
"""Suffixes of labels and masks."""


def stem(path: Path) -> str:
    """Return the part of the name that all files of a core share.

    >>> stem(Path("a/core_1.npz")), stem(Path("a/core_1.0"))
    ('core_1', 'core_1.0')
    """
    return path.name if path.suffix[1:].isdigit() else path.stem


def beside(path: Path) -> dict[str, Path]:
    """Return the files beside the core `path` by role: labels, tissue, landmarks, meta.

    Raises BadInput if a role has two.
    """
    name = stem(path)
    found: dict[str, Path] = {}
    for role in _ROLES:
        ends = [f".{role}{suffix}" for suffix in MAPS] + [*(drawings.SUFFIXES if role == "labels" else ())]
        files = [p for p in (path.with_name(f"{name}{end}") for end in ends) if p.is_file()]
        if len(files) > 1:
            raise BadInput(f"{path}: two files with its {role}: {files[0].name} and {files[1].name}. Remove one.")
        if files:
            found[role] = files[0]
    single = {"meta": path.with_name(f"{name}.json"), "landmarks": path.with_name(f"{name}{landmarks.SUFFIX}")}
    return found | {role: file for role, file in single.items() if file.is_file()}


def completed(raw: Raw, path: Path, labels: Path | None = None) -> Raw:
    """Return `raw` with the files beside the core, and with the label file `labels` if it lies elsewhere.

    Raises BadInput if the core also has labels or a mask of its own.
    """
    files = beside(path) | ({} if labels in (None, path) else {"labels": labels})
    for role in _ROLES:
        if role not in files:
            continue
        if getattr(raw, role) is not None:
            raise BadInput(f"{path}: it holds {role} of its own, and {files[role].name} beside it too. Remove one.")
        if role == "labels":
            _annotate(raw, files[role], files.get("landmarks"))
        else:
            setattr(raw, role, read_map(files[role]))
    raw.meta = merged(raw.meta, read_meta(files["meta"]) if "meta" in files else {}, path)
    return raw


def _annotate(raw: Raw, path: Path, marks: Path | None) -> None:
    """Give `raw` the labels of a file, on its grid."""
    placement = None if marks is None else landmarks.read(marks, raw.grid)
    if drawings.names_classes(path):
        raw.annotate(drawings.read(path, raw.grid, placement))
    else:
        numbers = read_map(path)
        raw.labels = numbers if placement is None else placement.sampled(numbers, raw.grid)
    if placement is not None:
        raw.label_remarks = (*raw.label_remarks, *placement.remarks)


def read_map(path: Path) -> Array:
    """Return the numbers (H, W) of a PNG, TIFF, NPY or ENVI file. Raises BadInput naming it."""
    readers = {**dict.fromkeys(drawings.PICTURES, _picture), ".npy": _npy, ".hdr": envi.read_map}
    if path.suffix.lower() not in readers:
        raise BadInput(f"{path}: labels and masks are read from {', '.join(readers)}. Save them so.")
    data = readers[path.suffix.lower()](path)
    return one_a_pixel(data, path, "values")


def is_beside(path: Path) -> bool:
    """Return whether a file belongs beside a core, by its name."""
    return path.stem.endswith(tuple(f".{role}" for role in _ROLES))


def read_meta(path: Path) -> dict[str, Json]:
    """Return the object in a JSON file. Raises BadInput naming it."""
    try:
        return parsed(refuse_long_file(path, _LONGEST, "a JSON file of a core's ids").read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({short(error)}). Write it again, as JSON in UTF-8.") from error


def parsed(text: str, path: Path) -> dict[str, Json]:
    """Return the object in the JSON `text` of `path`, an empty one for no text. Raises BadInput."""
    if not text.strip():
        return {}
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: its meta is not JSON ({short(error)}). Write json.dumps of a dict.") from error
    if not isinstance(meta, dict):
        raise BadInput(
            f'{path}: its meta is {type(meta).__name__}; a JSON object is needed: {{"patient_id": "P1", …}}.'
        )
    return meta


def _picture(path: Path) -> Array:
    mode, data = colours.picture(existing(path))
    if data.ndim != 2:
        raise BadInput(
            f"{path}: a picture of {data.shape[-1]} channels ({mode}); a tissue mask, and labels that are numbers, "
            "have one. Save it so, without transparency."
        )
    return data


def _npy(path: Path) -> Array:
    try:
        # mapped first: its length must be what its header says before any memory is taken
        mapped: Any = np.load(existing(path), mmap_mode="r", allow_pickle=False)
        data = np.array(mapped) if isinstance(mapped, np.ndarray) else mapped
    except BadInput:
        raise
    except DAMAGED as error:
        raise BadInput(f"{path}: not a readable NPY file ({short(error)}). Save it again, by np.save.") from error
    if not isinstance(data, np.ndarray):
        raise BadInput(f"{path}: an archive of arrays; one array is needed: save it by np.save.")
    return data
