"""MATLAB files with the variables of core_*.npz: X, y, wn, tissue_mask, delta_cm1, meta; and those of a Spero.

Daylight Solutions' software writes r (pixels × wavenumbers), wn, dX and dY, the number of columns and rows. Its pixels
go down a column first, as MATLAB's do. (The layout is that which OpenVibSpec reads.)

SciPy reads v5 to v7, h5py v7.3. Links, external storage and virtual data sets of v7.3, which lead to other files, are
refused. `meta` is a character array of JSON. Numbers are double in MATLAB: labels may be too, if they are whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, counted, did_you_mean, shape_text

from runner_ssmunet.readers.base import Array, Raw, existing, library, number, short
from runner_ssmunet.readers.matfile import Variable, variables
from runner_ssmunet.readers.sidecars import parsed
from runner_ssmunet.readers.sizes import array_bytes, refuse_packed, refuse_size

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SMALL = ("y", "wn", "tissue_mask", "delta_cm1", "meta")
_SPERO = ("r", "wn", "dX", "dY")


def is_core(path: Path) -> bool:
    """Return whether a file is a .mat file: any of them may be a core."""
    return path.suffix.lower() == ".mat"


def parts(path: Path) -> list[Path]:
    """Return the files of the core."""
    return [path]


def names(path: Path) -> list[str]:
    """Return the variables of the file."""
    return sorted(_shapes(path))


def meta(path: Path) -> dict[str, Json]:
    """Return `meta` without reading the spectra."""
    return parsed(_text(_variables(path, ["meta"]).get("meta"), path), path)


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core, without X unless `spectra`. Raises BadInput naming the file and the variable."""
    shapes = _shapes(path)
    if "X" not in shapes and {*_SPERO} <= {*shapes}:
        return _spero(path, shapes["r"], spectra)
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
    raw.labels, raw.tissue = found.get("y"), found.get("tissue_mask")
    raw.spectra = np.asarray(found["X"]) if spectra else None
    if "delta_cm1" in found:
        raw.meta.setdefault("delta_cm1", number(np.asarray(found["delta_cm1"]), path))
    return raw


def _spero(path: Path, shape: tuple[int, ...], spectra: bool) -> Raw:
    """Return the image of a Spero."""
    found = _variables(path, [name for name in _SPERO if spectra or name != "r"], large="r")
    sides = [np.asarray(found[name]).ravel() for name in ("dY", "dX")]
    wavenumbers = np.asarray(found["wn"]).ravel()
    if any(side.size != 1 or side.dtype.kind not in "iuf" or side[0] < 1 or side[0] % 1 for side in sides):
        raise BadInput(f"{path}: dX and dY are no numbers of pixels. Export it again.")
    rows, columns = (int(side[0]) for side in sides)
    if shape not in ((rows * columns, wavenumbers.size), (rows, columns, wavenumbers.size)):
        raise BadInput(
            f"{path}: r has shape {shape_text(shape)}, but dY × dX is {rows} × {columns}, and wn has "
            f"{counted(wavenumbers.size, 'wavenumber')}. Export it again."
        )
    raw = Raw(wavenumbers=wavenumbers, shape=(rows, columns, wavenumbers.size))
    if spectra:
        raw.spectra = np.asarray(found["r"]).reshape(raw.shape, order="F")
    return raw


def _is_hdf5(path: Path) -> bool:
    """Return whether the file is v7.3: HDF5 behind a MATLAB header of 512 bytes."""
    with existing(path).open("rb") as file:
        start = file.read(520)
    return _HDF5 in (start[:8], start[512:])


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every variable, as MATLAB shows it."""
    try:
        if not _is_hdf5(path):
            return {variable.name: variable.shape for variable in variables(path)}
        h5py = library("h5py", path)
        with h5py.File(path, "r") as file:
            own = {str(name): file[name] for name in file if _is_own(file, name, h5py)}
            found = {name: tuple(item.shape[::-1]) for name, item in own.items() if getattr(item, "shape", None)}
            return found | {name: () for name in file if name not in own}
    except Exception as error:
        raise _damaged(path, error) from error


def _is_own(file: Any, name: str, h5py: Any) -> bool:
    """Return whether the variable is in the file itself, rather than linked."""
    return isinstance(file.get(name, getlink=True), h5py.HardLink)


def _variables(path: Path, wanted: Sequence[str], large: str = "X") -> dict[str, Any]:
    """Return those of the variables that exist, in MATLAB's order of axes. `large` is always checked."""
    try:
        if not _is_hdf5(path):
            for variable in variables(path):
                if variable.name in {*wanted, large}:
                    _refuse_variable(variable, path)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of variables that SciPy cannot read
                found = library("scipy.io", path).loadmat(path, variable_names=list(wanted))
            return {name: found[name] for name in wanted if name in found}
        h5py = library("h5py", path)
        with h5py.File(path, "r") as file:
            there = set(file)  # the names, without following links
            for name in there & {*wanted, large}:
                _refuse_item(file, name, path, h5py)
            # HDF5 has MATLAB's axes the other way round
            return {name: _own_order(file[name]) for name in wanted if name in there}
    except Exception as error:
        raise _damaged(path, error) from error


def _refuse_variable(variable: Variable, path: Path) -> None:
    if not variable.plain:
        raise BadInput(f"{path}: '{variable.name}' is {variable.kind}; numbers, or text for meta, are needed.")
    what, shape = f"'{variable.name}'", variable.shape
    refuse_packed(path, what, shape, variable.written, variable.stored)
    refuse_size(path, what, shape, variable.unpacked)


def _refuse_item(file: Any, name: str, path: Path, h5py: Any) -> None:
    if not _is_own(file, name, h5py):
        raise BadInput(
            f"{path}: '{name}' is a link to another place, which is not followed. Save the variable itself in the file."
        )
    item = file[name]
    if not hasattr(item, "shape") or item.shape is None or item.dtype.kind not in "iufbS":
        raise BadInput(f"{path}: '{name}' is no array of numbers or text. Save X, y, wn, tissue_mask and meta as such.")
    if item.external or item.is_virtual:
        raise BadInput(
            f"{path}: '{name}' lies in other files, which are not read. Save the variable itself into the file."
        )
    refuse_size(
        path, f"'{name}'", item.shape[::-1], array_bytes(item.shape, item.dtype.itemsize), item.id.get_storage_size()
    )


def _own_order(item: Any) -> Any:
    if item.attrs.get("MATLAB_empty"):
        return np.empty(0)
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
    """Return the error for a damaged file. Both readers raise many errors for a broken byte: all mean the same."""
    if isinstance(error, BadInput):
        return error
    return BadInput(f"{path}: not a readable MATLAB file ({short(error)}). Copy or save it again.")
