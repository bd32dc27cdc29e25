"""Files beside a core that hold what its format cannot: labels, tissue mask and meta.

STEM.labels.png, .npy or .hdr    class numbers (H, W); PNG: one channel of 8 or 16 bits, or a palette's indices; HDR: an
                                 ENVI classification with its data file, whose class names and colours are used too
STEM.tissue.png, .npy or .hdr    not 0 on tissue
STEM.json                        {"core_id": …, "patient_id": …, "slide_id": …}

STEM is the core's file name without its suffix. For an OPUS file, whose suffix counts repeats, it is the whole name.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core import BadInput, Json, refuse_long_file

from runner_ssmunet.readers import envi
from runner_ssmunet.readers.base import DAMAGED, Array, Raw, existing, merged, one_a_pixel, short

_ROLES = ("labels", "tissue")
_LONGEST = 10_000_000
"""Most bytes of the JSON beside a core."""
MAPS = (".png", ".npy", ".hdr")
"""Suffixes of labels and masks."""


def stem(path: Path) -> str:
    """Return the part of the name that all files of a core share.

    >>> stem(Path("a/core_1.npz")), stem(Path("a/core_1.0"))
    ('core_1', 'core_1.0')
    """
    return path.name if path.suffix[1:].isdigit() else path.stem


def beside(path: Path) -> dict[str, Path]:
    """Return the files beside the core `path` by role: labels, tissue, meta. Raises BadInput if a role has two."""
    name = stem(path)
    found: dict[str, Path] = {}
    for role in _ROLES:
        files = [p for p in (path.with_name(f"{name}.{role}{suffix}") for suffix in MAPS) if p.is_file()]
        if len(files) > 1:
            raise BadInput(f"{path}: two files with its {role}: {files[0].name} and {files[1].name}. Remove one.")
        if files:
            found[role] = files[0]
    meta = path.with_name(f"{name}.json")
    return found | ({"meta": meta} if meta.is_file() else {})


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
        setattr(raw, role, read_map(files[role]))
    raw.meta = merged(raw.meta, read_meta(files["meta"]) if "meta" in files else {}, path)
    return raw


def read_map(path: Path) -> Array:
    """Return the numbers (H, W) of a PNG, NPY or ENVI file. Raises BadInput naming it."""
    readers = {".png": _png, ".npy": _npy, ".hdr": envi.read_map}
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


def _png(path: Path) -> Array:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(existing(path))
        with image:
            mode, data = image.mode, np.asarray(image)
    except BadInput:
        raise
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, Image.DecompressionBombError,
            Image.DecompressionBombWarning) as error:  # fmt: skip
        raise BadInput(f"{path}: not a readable PNG file ({short(error)}). Save it again.") from error
    if data.ndim != 2:
        raise BadInput(
            f"{path}: a colour picture ({mode}); class numbers 0, 1, … in one channel of 8 bits are needed. Give each "
            "colour its number: rgb = np.asarray(Image.open(path).convert('RGB')); y = np.zeros(rgb.shape[:2], "
            "np.uint8); y[(rgb == (255, 0, 0)).all(-1)] = 1 and so on; Image.fromarray(y).save(path)."
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
