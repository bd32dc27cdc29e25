"""Readers of one core, by file format: npz, ENVI, Agilent, MATLAB, OPUS.

Each module has `read(path, spectra=True) -> Raw`, `meta(path)` (who the core is, without reading more than must be) and
`parts(path)` (the files that make it up, first the one to read). The libraries behind them are imported when a file is
read.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from runner_core._errors import BadInput
from runner_core.protocols import Json

from runner_ssmunet.readers import agilent, envi, matlab, npz, opus
from runner_ssmunet.readers import base as _base
from runner_ssmunet.readers.base import Core, Outline
from runner_ssmunet.readers.sidecars import beside, completed, read_meta

__all__ = ["Core", "Outline", "files", "is_core", "meta", "read", "read_outline"]

FORMATS = (
    "core_*.npz, ENVI (.hdr with its data file), Agilent (.dmt of a mosaic, .dat with .bsp of a tile), MATLAB (.mat), "
    "OPUS (.0, .1, …)"
)


def read(path: Path) -> Core:
    """The core of a file, with what stands beside it. Raises BadInput naming the file and what is wrong with it."""
    return _base.core(completed(reader(path).read(path), path), path)


def read_outline(path: Path) -> Outline:
    """The core but its spectra, which are read only where the format leaves no other way."""
    return _base.outline(completed(reader(path).read(path, spectra=False), path), path)


def meta(path: Path) -> dict[str, Json]:
    """Who the core is: its own meta and that of the JSON file beside it."""
    files = beside(path)
    return _base.merged(reader(path).meta(path), read_meta(files["meta"]) if "meta" in files else {}, path)


def files(path: Path) -> dict[str, Path]:
    """Every file of a core by role: core, what `read` is given; labels (the core's own file where it holds them),
    tissue, meta.

    Where a header has its spectra elsewhere, those come first (data, data 2, …): the first file is that by which copies
    of a core are known, and headers are often the same.
    """
    module = reader(path)
    core, *data = module.parts(path)
    spectra = {"data" if i == 0 else f"data {i + 1}": part for i, part in enumerate(data)}
    found = spectra | {"core": core} | beside(path)
    if "labels" not in found and module in (npz, matlab) and "y" in module.names(path):
        found["labels"] = path
    return found


def is_core(path: Path) -> bool:
    """Is a file found below a data folder a core? By its name, and what stands beside it."""
    if path.suffix == ".npz":
        return path.name.startswith("core_")
    module = _READERS.get(path.suffix.lower(), opus if path.suffix[1:].isdigit() else None)
    return module is not None and module is not npz and bool(module.is_core(path))


def reader(path: Path) -> ModuleType:
    """The module that reads `path`. Raises BadInput naming the formats."""
    suffix = path.suffix.lower()
    if suffix[1:].isdigit():
        return opus
    if suffix == ".dat":
        return agilent if agilent.owns(path) else envi
    if suffix not in _READERS and path.with_suffix(".hdr").is_file():
        return envi
    if suffix not in _READERS:
        raise BadInput(f"{path}: not a format that is read here: {FORMATS}.")
    return _READERS[suffix]


_READERS: dict[str, ModuleType] = {
    ".npz": npz,
    ".hdr": envi,
    ".dat": agilent,
    ".bsp": agilent,
    ".dmt": agilent,
    ".dms": agilent,
    ".dmd": agilent,
    ".seq": agilent,
    ".mat": matlab,
}
