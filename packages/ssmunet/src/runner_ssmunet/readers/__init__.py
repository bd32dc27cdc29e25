"""Readers of one core, by file format: npz, ENVI, Agilent, MATLAB, OPUS, PerkinElmer, Photothermal.

Each module has `read(path, spectra=True) -> Raw`, `meta(path)` (the core's ids, with as little reading as possible) and
`parts(path)` (the files of the core, the one to read first). Formats of large images have `blocks(path)` too, to read
them in parts. The libraries behind them are imported when a file is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
from runner_core import BadInput, Json

from runner_ssmunet import drawings
from runner_ssmunet.drawings.colours import Colour
from runner_ssmunet.readers import agilent, envi, matlab, npz, omnic, opus, perkinelmer, ptir
from runner_ssmunet.readers import base as _base
from runner_ssmunet.readers.base import Array, Core, Outline, Units
from runner_ssmunet.readers.blocks import Blocks, is_large, of_array, stored
from runner_ssmunet.readers.sidecars import MAPS, beside, completed, is_beside, read_map, read_meta

__all__ = [
    "Core",
    "Outline",
    "Units",
    "annotated_classes",
    "class_names",
    "files",
    "is_core",
    "labels",
    "meta",
    "open_blocks",
    "read",
    "read_outline",
]

FORMATS = (
    "core_*.npz, ENVI (.hdr with its data file), Agilent (.dmt of a mosaic, .dat with .bsp of a tile), MATLAB and "
    "Spero (.mat), OPUS (.0, .1, …), PerkinElmer (.fsm), Photothermal (.ptir)"
)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide the libraries' warnings: their reasons are refused here, or become remarks."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@_quietly()
def read(path: Path, labels: Path | None = None, units: Units | None = None) -> Core:
    """Return the core of a file, with the files beside it, and with the label file `labels` if it lies elsewhere.

    `units` are those of its spectra, in place of what the file says. Raises BadInput naming the file and what is
    wrong with it.
    """
    module = reader(path)
    if hasattr(module, "blocks") and is_large((image := module.blocks(path)).shape, path):
        rest, spectra, measured = stored(image, completed(image.raw, path, labels), path, units)
        return _base.whole(rest, spectra, measured, path)
    return _base.core(completed(module.read(path), path, labels), path, units)


@_quietly()
def open_blocks(path: Path) -> Blocks:
    """Return the image of a file, to be read in parts. A format that cannot be is read at once.

    Its `raw` has the labels and the mask from beside the file. Raises BadInput naming the file.
    """
    module = reader(path)
    if hasattr(module, "blocks"):
        found: Blocks = module.blocks(path)
    else:
        raw = module.read(path)
        found = of_array(raw, raw.spectra)
    _base.outline(completed(found.raw, path), path)  # refuses axes, labels and masks that do not fit
    return found


@_quietly()
def read_outline(path: Path, labels: Path | None = None) -> Outline:
    """Read a core as `read` does, but without its spectra, if the format allows it."""
    return _base.outline(completed(reader(path).read(path, spectra=False), path, labels), path)


def labels(path: Path, elsewhere: Path | None = None) -> Array | None:
    """Return the labels (H, W) of the core `path`; None if it has none, or if its file names classes.

    Reads only the label file if there is one.
    """
    own = beside(path).get("labels") if elsewhere in (None, path) else elsewhere
    if own is None:
        found = read_outline(path)
        return None if found.label_names else found.labels
    return None if drawings.names_classes(own) else read_map(own)


def annotated_classes(path: Path) -> Mapping[str, Colour | None] | None:
    """Return names and colours of the classes in the label file `path`, if it names classes; else None."""
    if path.suffix == ".npz":
        return dict.fromkeys(npz.label_names(path)) or None
    return drawings.class_names(path)


def class_names(path: Path) -> tuple[list[str], list[tuple[int, int, int]]] | None:
    """Return names and colours of the labels 0, 1, … in the label file `path`; None if it has none."""
    return envi.class_names(path) if path.suffix == ".hdr" else None


def meta(path: Path) -> dict[str, Json]:
    """Return the core's ids: its own meta and that of the JSON file beside it."""
    files = beside(path)
    return _base.merged(reader(path).meta(path), read_meta(files["meta"]) if "meta" in files else {}, path)


def files(path: Path, labels: Path | None = None) -> dict[str, Path]:
    """Return every file of a core by role: core (the argument of `read`), labels, tissue, meta.

    labels is the core's own file if that holds them, or `labels` if they lie elsewhere. If a header has its spectra in
    other files, those come first (data, data 2, …): copies of a core are recognised by the first file, and headers are
    often equal.
    """
    module = reader(path)
    core, *data = module.parts(path)
    spectra = {"data" if i == 0 else f"data {i + 1}": part for i, part in enumerate(data)}
    found = spectra | {"core": core} | beside(path) | ({} if labels is None else {"labels": labels})
    for role, place in list(found.items()):
        if role != "core" and place.suffix == ".hdr":
            found[f"{role} data"] = envi.parts(place)[1]
    if "labels" in found and drawings.is_coloured_picture(found["labels"]):
        found["colours"] = drawings.table_of(found["labels"]).path
    if "labels" not in found and module in (npz, matlab) and "y" in module.names(path):
        found["labels"] = path
    return found


def is_core(path: Path) -> bool:
    """Return whether a file below a data folder is a core, by its name and the files beside it."""
    if is_beside(path):
        return False
    if path.suffix == ".npz":
        return path.name.startswith("core_")
    module = _READERS.get(path.suffix.lower(), opus if path.suffix[1:].isdigit() else None)
    return module is not None and module is not npz and bool(module.is_core(path))


def could_be(path: Path) -> bool:
    """Return whether a file that the user lists could be a core, or a core's labels, by its name."""
    suffix = path.suffix.lower()
    return (
        path.name.lower().endswith((*_READERS, *MAPS, *drawings.SUFFIXES))
        or suffix[1:].isdigit()
        or path.with_suffix(".hdr").is_file()
    )


def reader(path: Path) -> ModuleType:
    """Return the module that reads `path`. Raises BadInput naming the formats."""
    suffix = path.suffix.lower()
    if suffix[1:].isdigit():
        return opus
    if suffix in (".dat", ".hdr"):
        return agilent if agilent.owns(path) else envi
    if suffix not in _READERS and path.with_suffix(".hdr").is_file():
        return envi
    if suffix not in _READERS:
        if path.is_dir():
            raise BadInput(f"{path}: a folder. Name the file of one image.")
        raise BadInput(f"{_base.existing(path)}: not a format that is read here: {FORMATS}.")
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
    ".drd": agilent,
    ".mat": matlab,
    ".fsm": perkinelmer,
    ".ptir": ptir,
    ".map": omnic,
}
