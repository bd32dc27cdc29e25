"""ENVI: a text header (.hdr) and the data file beside it, read by the package `spectral`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core.protocols import Json

from runner_ssmunet.readers.base import Array, Raw, library, short

_PER_CM = ("", "unknown", "wavenumber", "wavenumbers", "cm-1", "cm^-1", "1/cm")
"""Names of units that are cm⁻¹ already."""
_CM = {"micrometers": 1e4, "um": 1e4, "microns": 1e4, "nanometers": 1e7, "nm": 1e7}
"""Wavelength units, with what divided by a wavelength gives cm⁻¹."""


def is_core(path: Path) -> bool:
    """A header of an image: not of Agilent's own files, whose headers stand beside .bsp and .dmt."""
    if path.suffix.lower() != ".hdr":
        return False
    beside = {p.name.lower() for p in path.parent.iterdir()}
    return not beside & {f"{path.stem}{suffix}".lower() for suffix in (".bsp", ".dmt")}


def parts(path: Path) -> list[Path]:
    """Header and data file."""
    image = _opened(path)
    return [_header(path), Path(image.filename)]


def meta(path: Path) -> dict[str, Json]:
    """ENVI headers have no place for who the core is."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """The core; its data only where `spectra`. Pixels of the header's `data ignore value` become NaN: not measured."""
    image = _opened(path)
    header = _header(path)
    raw = Raw(wavenumbers=_wavenumbers(image, header), shape=tuple(int(n) for n in image.shape))
    if spectra:
        raw.spectra = _data(image, header)
    return raw


def _header(path: Path) -> Path:
    header = path if path.suffix.lower() == ".hdr" else path.with_suffix(".hdr")
    if not header.is_file():
        raise BadInput(f"{path}: no ENVI header {header.name} beside it.")
    return header


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"{path}: no such file.")
    header = _header(path)
    envi = library("spectral.io.envi", path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys in capitals, which are read all the same
            image = envi.open(str(header), None if path == header else str(path))
    except (OSError, EOFError, ValueError, KeyError, TypeError, envi.EnviException) as error:
        raise BadInput(
            f"{header}: not a readable ENVI image ({short(error)}). Export it again, header and data."
        ) from error
    if not hasattr(image, "bands"):
        raise BadInput(f"{header}: an ENVI spectral library, not an image. Take it out of the folder.")
    return image


def _wavenumbers(image: Any, header: Path) -> Array:
    text = image.metadata.get("wavelength")
    if not text:
        raise BadInput(f"{header}: no `wavelength` list in it; the wavenumber of each band (cm⁻¹) must stand there.")
    try:
        axis = np.array([float(value) for value in text])
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{header}: its `wavelength` list holds what is no number ({short(error)}). Correct it."
        ) from error
    unit = str(image.metadata.get("wavelength units", "")).strip().lower()
    if unit in _CM:
        with np.errstate(divide="ignore"):
            return _CM[unit] / axis
    if unit not in _PER_CM:
        raise BadInput(
            f"{header}: `wavelength units` is '{unit}'; wavenumber, micrometers or nanometers are known: correct it."
        )
    return axis


def _data(image: Any, header: Path) -> Array:
    wanted = int(np.prod(image.shape)) * int(image.sample_size) + int(image.offset)
    there = Path(image.filename).stat().st_size
    if there < wanted:
        raise BadInput(f"{image.filename}: {there} bytes, but {header.name} says {wanted}. Copy the file again.")
    try:
        data = np.asarray(image.load())
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise BadInput(f"{image.filename}: truncated or damaged ({short(error)}). Copy it again.") from error
    nothing = image.metadata.get("data ignore value")
    if nothing is not None:
        hidden = (data == np.float32(nothing)).all(-1)
        data = np.where(hidden[..., None], np.float32(np.nan), data)
    return data
