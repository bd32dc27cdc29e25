"""Agilent (Resolutions Pro) images, read by the package `agilent-format`.

A tile is a .dat file with a .bsp, a mosaic a .dmt file with a .dmd for each tile (and a .dms, which shows it whole).

Rows run from top to bottom, as in the microscope's pictures. Tiles of a mosaic that are missing were not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core.protocols import Json

from runner_ssmunet.readers.base import Raw, library, short


def is_core(path: Path) -> bool:
    """A mosaic's .dmt, or the .dat of a tile that has a .bsp; backgrounds are none."""
    suffix = path.suffix.lower()
    if path.stem.lower().startswith("background"):
        return False
    return suffix == ".dmt" or (suffix == ".dat" and _sibling(path, ".bsp") is not None)


def owns(path: Path) -> bool:
    """Does a .dat file belong to an Agilent image, rather than to an ENVI header?"""
    return _sibling(path, ".bsp") is not None or _sibling(path, ".dmt") is not None


def parts(path: Path) -> list[Path]:
    """Header file first, then the files of spectra."""
    header = _header(path)
    if header.suffix.lower() == ".bsp":
        return [header, _tile(header)]
    tiles = _tiles(header)
    if not tiles:
        raise BadInput(f"{header}: no tile {header.stem}_0000_0000.dmd beside it.")
    return [header, *tiles]


def meta(path: Path) -> dict[str, Json]:
    """Agilent files do not say who the core is."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """The core, with `pixel_um` in its meta. The library reads spectra along with the rest."""
    header, *files = parts(path)
    library_ = library("agilent_format", path)
    kind = library_.agilentImage if header.suffix.lower() == ".bsp" else library_.agilentMosaic
    try:
        image: Any = kind(str(files[0] if header.suffix.lower() == ".bsp" else header), MAT=True)
    except Exception as error:  # whatever a broken byte leads the parser to
        raise BadInput(f"{header}: not a readable Agilent image ({short(error)}). Copy its files again.") from error
    raw = Raw(wavenumbers=np.asarray(image.wavenumbers, np.float64), shape=image.data.shape)
    size = image.info.get("FPA Pixel Size", 0) * image.info.get("PixelAggregationSize", 1)
    if size > 0:
        raw.meta["pixel_um"] = float(size)
    if spectra:
        raw.spectra = image.data
    return raw


def _header(path: Path) -> Path:
    """The .bsp of a tile or the .dmt of a mosaic, whichever file of it is named."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file.")
    suffix = path.suffix.lower()
    if suffix in (".seq", ".drd"):
        raise BadInput(
            f"{path}: interferograms, not spectra. Compute absorbance in Resolutions Pro: its .dat or .dmt is read."
        )
    if suffix in (".bsp", ".dmt"):
        return path
    name = path.name[: -len("_0000_0000.dmd")] + ".dmd" if suffix == ".dmd" else path.name
    header = _sibling(path, ".bsp") if suffix == ".dat" else None
    header = header or _sibling(path.with_name(name), ".dmt")
    if header is None:
        raise BadInput(f"{path}: no {Path(name).stem}.dmt beside it, which says what the wavenumbers are.")
    return header


def _tile(header: Path) -> Path:
    data = _sibling(header, ".dat")
    if data is None:
        raise BadInput(f"{header}: no {header.stem}.dat beside it, which holds the spectra.")
    return data


def _tiles(header: Path) -> list[Path]:
    start = f"{header.stem}_".lower()
    return sorted(p for p in header.parent.iterdir() if p.suffix.lower() == ".dmd" and p.name.lower().startswith(start))


def _sibling(path: Path, suffix: str) -> Path | None:
    """The file beside `path` of the same stem and that suffix, in whatever case (the instrument writes .dmt lower)."""
    wanted = f"{path.stem}{suffix}".lower()
    return next((p for p in path.parent.iterdir() if p.name.lower() == wanted), None)
