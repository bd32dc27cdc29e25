"""Files beside a core that hold what its format cannot: labels, tissue mask and meta.

STEM.labels.png or .npy    class numbers (H, W); PNG: one channel of 8 or 16 bits, or a palette's indices
STEM.tissue.png or .npy    not 0 where tissue is
STEM.json                  {"core_id": …, "patient_id": …, "slide_id": …}

STEM is the core's file name without its suffix; of an OPUS file, whose suffix counts repeats, the whole name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core._errors import BadInput
from runner_core.protocols import Json

from runner_ssmunet.readers.base import DAMAGED, Array, Raw, merged, one_a_pixel, short

_ROLES = ("labels", "tissue")
_SUFFIXES = (".png", ".npy")


def stem(path: Path) -> str:
    """What a core's files share.

    >>> stem(Path("a/core_1.npz")), stem(Path("a/core_1.0"))
    ('core_1', 'core_1.0')
    """
    return path.name if path.suffix[1:].isdigit() else path.stem


def beside(path: Path) -> dict[str, Path]:
    """The files beside the core `path`, by role: labels, tissue, meta. Raises BadInput where there are two of one."""
    name = stem(path)
    found: dict[str, Path] = {}
    for role in _ROLES:
        files = [p for p in (path.with_name(f"{name}.{role}{suffix}") for suffix in _SUFFIXES) if p.is_file()]
        if len(files) > 1:
            raise BadInput(f"{path}: two files with its {role}: {files[0].name} and {files[1].name}. Remove one.")
        if files:
            found[role] = files[0]
    meta = path.with_name(f"{name}.json")
    return found | ({"meta": meta} if meta.is_file() else {})


def completed(raw: Raw, path: Path) -> Raw:
    """`raw` with what stands beside the core. Raises BadInput where the core has labels or a mask of its own too."""
    files = beside(path)
    for role in _ROLES:
        if role not in files:
            continue
        if getattr(raw, role) is not None:
            raise BadInput(f"{path}: it holds {role} of its own, and {files[role].name} beside it too. Remove one.")
        setattr(raw, role, read_map(files[role]))
    raw.meta = merged(raw.meta, read_meta(files["meta"]) if "meta" in files else {}, path)
    return raw


def read_map(path: Path) -> Array:
    """Numbers (H, W) of a PNG or NPY file. Raises BadInput naming it."""
    data = _png(path) if path.suffix == ".png" else _npy(path)
    return one_a_pixel(data, path, "values")


def read_meta(path: Path) -> dict[str, Json]:
    """The object of a JSON file. Raises BadInput naming it."""
    try:
        return parsed(path.read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({short(error)}). Write it again, as JSON in UTF-8.") from error


def parsed(text: str, path: Path) -> dict[str, Json]:
    """The object that JSON `text` of `path` is; no text: an empty one. Raises BadInput."""
    if not text.strip():
        return {}
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: its meta is not JSON ({short(error)}). Write json.dumps of a dict.") from error
    if not isinstance(meta, dict):
        raise BadInput(
            f'{path}: its meta is {type(meta).__name__}; a JSON object is needed: {{"patient_id": "P1", …}}.'
        )
    return meta


def _png(path: Path) -> Array:
    try:
        with Image.open(path) as image:
            mode, data = image.mode, np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
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
        data: Any = np.load(path, allow_pickle=False)
    except DAMAGED as error:
        raise BadInput(f"{path}: not a readable NPY file ({short(error)}). Save it again, by np.save.") from error
    if not isinstance(data, np.ndarray):
        raise BadInput(f"{path}: an archive of arrays; one array is needed: save it by np.save.")
    return data
