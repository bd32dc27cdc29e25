"""MATLAB files with the variables of core_*.npz: X, y, wn, tissue_mask, delta_cm1, meta.

Up to v7 they are read by SciPy, v7.3 by h5py. `meta` is a character array of JSON. Numbers are double in MATLAB: labels
may be, as long as they are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core._errors import BadInput, did_you_mean
from runner_core.protocols import Json

from runner_ssmunet.readers.base import Array, Raw, library, short
from runner_ssmunet.readers.sidecars import parsed

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SMALL = ("y", "wn", "tissue_mask", "delta_cm1", "meta")


def is_core(path: Path) -> bool:
    """Any .mat file."""
    return path.suffix.lower() == ".mat"


def parts(path: Path) -> list[Path]:
    """The files that make up the core."""
    return [path]


def names(path: Path) -> list[str]:
    """The variables of the file."""
    return sorted(_shapes(path))


def meta(path: Path) -> dict[str, Json]:
    """What `meta` says, without reading the spectra."""
    return parsed(_text(_variables(path, ["meta"]).get("meta"), path), path)


def read(path: Path, spectra: bool = True) -> Raw:
    """The core; without X unless `spectra`. Raises BadInput naming the file and the variable."""
    shapes = _shapes(path)
    for key in ("X", "wn"):
        if key not in shapes:
            there = ", ".join(sorted(shapes)) or "nothing"
            raise BadInput(
                f"{path}: no variable '{key}' in it{did_you_mean(key, shapes)} (it holds {there}). A core needs X "
                "(rows × columns × wavenumbers) and wn (cm⁻¹)."
            )
    found = _variables(path, [*_SMALL, "X"] if spectra else _SMALL)
    raw = Raw(
        wavenumbers=np.asarray(found["wn"]),
        shape=shapes["X"],
        meta=parsed(_text(found.get("meta"), path), path),
    )
    raw.labels, raw.tissue, raw.spectra = found.get("y"), found.get("tissue_mask"), found.get("X")
    if "delta_cm1" in found and np.asarray(found["delta_cm1"]).size == 1:
        raw.meta.setdefault("delta_cm1", float(np.asarray(found["delta_cm1"]).ravel()[0]))
    return raw


def _is_hdf5(path: Path) -> bool:
    """v7.3: an HDF5 file behind a MATLAB header of 512 bytes."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file.")
    with path.open("rb") as file:
        start = file.read(520)
    return _HDF5 in (start[:8], start[512:])


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every variable, as MATLAB shows it."""
    try:
        if not _is_hdf5(path):
            return {name: tuple(shape) for name, shape, _ in library("scipy.io", path).whosmat(path)}
        with library("h5py", path).File(path, "r") as file:
            return {str(name): tuple(item.shape[::-1]) for name, item in file.items() if hasattr(item, "shape")}
    except Exception as error:
        raise _damaged(path, error) from error


def _variables(path: Path, wanted: Sequence[str]) -> dict[str, Any]:
    """These variables, as far as they are there, in MATLAB's own order of axes."""
    try:
        if not _is_hdf5(path):
            found = library("scipy.io", path).loadmat(path, variable_names=list(wanted))
            return {name: found[name] for name in wanted if name in found}
        with library("h5py", path).File(path, "r") as file:
            # HDF5 has MATLAB's axes the other way round
            return {n: _own_order(file[n]) for n in wanted if n in file and hasattr(file[n], "shape")}
    except Exception as error:
        raise _damaged(path, error) from error


def _own_order(item: Any) -> Any:
    values = np.asarray(item[()]).T
    return "".join(map(chr, values.ravel(order="F"))) if item.attrs.get("MATLAB_class") == b"char" else values


def _text(value: Any, path: Path) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    array: Array = np.asarray(value)
    if array.size == 0:
        return ""
    if array.dtype.kind != "U" or array.size != 1:
        raise BadInput(
            f"{path}: 'meta' is {array.dtype} {array.shape}; a character array of JSON is needed (jsonencode)."
        )
    return str(array.ravel()[0])


def _damaged(path: Path, error: Exception) -> Exception:
    """Both readers raise whatever a broken byte leads to: all of it means the same."""
    if isinstance(error, BadInput):
        return error
    return BadInput(f"{path}: not a readable MATLAB file ({short(error)}). Copy or save it again.")
