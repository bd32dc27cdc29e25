"""core_*.npz: X (H, W, C), y (H, W), wn (C,), tissue_mask (H, W), delta_cm1, meta (JSON text)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, did_you_mean, shape_text, shell_word

from runner_ssmunet.readers.base import DAMAGED, Array, Raw, existing, number, short
from runner_ssmunet.readers.sidecars import parsed
from runner_ssmunet.readers.sizes import array_bytes, refuse_size

_RESAVE = (
    "import json, sys, numpy as np; d = dict(np.load(sys.argv[1], allow_pickle=True)); m = d['meta'].item(); "
    "d['meta'] = m if isinstance(m, str) else json.dumps(m, default=str); np.savez(sys.argv[1], **d)"
)


def parts(path: Path) -> list[Path]:
    """Return the files of the core."""
    return [path]


def names(path: Path) -> list[str]:
    """Return the keys of the archive."""
    with _opened(path) as archive:
        return list(archive.files)


def meta(path: Path) -> dict[str, Json]:
    """Return `meta` without reading anything else. Raises BadInput: unreadable, an object array, no JSON."""
    with _opened(path) as archive:
        return _meta(archive, path)


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core, without X unless `spectra`. Raises BadInput naming the file and the key."""
    with _opened(path) as archive:
        for key in ("X", "wn"):
            if key not in archive.files:
                there = ", ".join(archive.files) or "nothing"
                raise BadInput(
                    f"{path}: no '{key}' in it{did_you_mean(key, archive.files)} (it holds {there}). A core needs X "
                    "(rows × columns × wavenumbers) and wn (cm⁻¹)."
                )
        raw = Raw(wavenumbers=_array(archive, "wn", path), meta=_meta(archive, path))
        if "y" in archive.files:
            raw.labels = _array(archive, "y", path)
            raw.label_names = _label_names(archive, path)
        if "tissue_mask" in archive.files:
            raw.tissue = _array(archive, "tissue_mask", path)
        if "delta_cm1" in archive.files:
            raw.meta.setdefault("delta_cm1", number(_array(archive, "delta_cm1", path), path))
        if spectra:
            raw.spectra = _array(archive, "X", path)
        else:
            raw.shape = _shape(archive, "X", path)
    return raw


def label_names(path: Path) -> tuple[str, ...]:
    """Return the names of the labels 1, 2, … in a core whose own labels name their classes; empty for others."""
    with _opened(path) as archive:
        return _label_names(archive, path) if "y" in archive.files else ()


def _label_names(archive: Any, path: Path) -> tuple[str, ...]:
    if "label_names" not in archive.files:
        return ()
    names = _array(archive, "label_names", path)
    if names.dtype.kind != "U" or names.ndim != 1 or not all(names.tolist()):
        raise BadInput(
            f"{path}: 'label_names' is {names.dtype} {names.shape}; a list of text is needed, a name a label."
        )
    return tuple(names.tolist())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    existing(path)
    try:
        archive = np.load(path, allow_pickle=False)
    except DAMAGED as error:
        raise BadInput(f"{path}: not a readable npz file ({short(error)}). Copy or write it again.") from error
    if not hasattr(archive, "files"):
        raise BadInput(f"{path}: a single array, not an npz archive of X, y, wn, tissue_mask and meta.")
    with archive:
        yield archive


def _array(archive: Any, key: str, path: Path) -> Array:
    _shape(archive, key, path)
    try:
        array: Array = archive[key]
    except DAMAGED as error:
        if "Object arrays" in str(error):
            how = f'save it again: python -c "{_RESAVE}" {shell_word(path)}' if key == "meta" else "save it as numbers."
            raise BadInput(
                f"{path}: '{key}' was saved as an array of Python objects, which is not read because reading it can "
                f"run any program. If you trust the file, {how}"
            ) from error
        raise _damaged(path, key, short(error)) from error
    return array


def _meta(archive: Any, path: Path) -> dict[str, Json]:
    """Return the meta from JSON text, bytes, or an array of character codes."""
    if "meta" not in archive.files:
        return {}
    value = _array(archive, "meta", path)
    if value.dtype == np.uint8:
        content: Any = value.tobytes()
    elif value.dtype.kind in "US" and value.size == 1:
        content = value.reshape(-1)[0]
    else:
        raise BadInput(f"{path}: 'meta' is {value.dtype} {value.shape}; JSON text is needed (json.dumps of a dict).")
    if isinstance(content, bytes):
        try:
            content = content.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: 'meta' is no UTF-8 text ({short(error)}). Save json.dumps of a dict.") from error
    return parsed(str(content), path)


def _shape(archive: Any, key: str, path: Path) -> tuple[int, ...]:
    """Return a member's shape from its header. Raises BadInput if its size differs, or is too large to read."""
    try:
        info = archive.zip.getinfo(f"{key}.npy")
        with archive.zip.open(info) as member:
            version = np.lib.format.read_magic(member)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(member)
            content = info.file_size - member.tell()
    except DAMAGED as error:
        raise _damaged(path, key, short(error)) from error
    claimed = array_bytes(shape, dtype.itemsize)
    if not dtype.hasobject:  # such are refused when they are read
        refuse_size(path, f"'{key}'", shape, claimed, info.compress_size)
        if content != claimed:
            raise _damaged(path, key, f"{shape_text(shape)} values are {claimed} bytes, it has {content}")
    return tuple(shape)


def _damaged(path: Path, key: str, why: str) -> BadInput:
    return BadInput(f"{path}: '{key}' is truncated or damaged ({why}). Copy or write it again.")
