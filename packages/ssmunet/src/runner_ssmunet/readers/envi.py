"""ENVI: a text header (.hdr) and the data file beside it, read by the package `spectral`."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, refuse_long_file, shape_text

from runner_ssmunet.readers.base import Array, Raw, existing, library, short
from runner_ssmunet.readers.blocks import Blocks, release
from runner_ssmunet.readers.sizes import array_bytes, refuse_size

_LONGEST = 10_000_000
"""Most bytes of a header."""

_AGILENT = ("IR Image", 1020)
"""Description and header offset that Agilent's Resolutions Pro writes."""
_PER_CM = ("", "unknown", "wavenumber", "wavenumbers", "cm-1", "cm^-1", "1/cm")
"""Names of units that are already cm⁻¹."""
_CM = {"micrometers": 1e4, "um": 1e4, "microns": 1e4, "nanometers": 1e7, "nm": 1e7}
"""Wavelength units, with the number that gives cm⁻¹ when divided by a wavelength."""


def is_core(path: Path) -> bool:
    """Return whether a file is an image's header, but not Agilent's own, which lies beside .bsp and .dmt."""
    if path.suffix.lower() != ".hdr":
        return False
    beside = {p.name.lower() for p in path.parent.iterdir()}
    return not beside & {f"{path.stem}{suffix}".lower() for suffix in (".bsp", ".dmt")}


def parts(path: Path) -> list[Path]:
    """Return header and data file."""
    image = _opened(path)
    return [_header(path), Path(image.filename)]


def read_map(path: Path) -> Array:
    """Return the one band (H, W) of an ENVI image: labels, or a mask."""
    image = _opened(path)
    if image.shape[2] != 1:
        raise BadInput(f"{path}: {image.shape[2]} bands; one number for each pixel is needed. Export one band.")
    return _data(image, path)[..., 0]


def class_names(path: Path) -> tuple[list[str], list[tuple[int, int, int]]] | None:
    """Return names and colours of the labels 0, 1, … of an ENVI classification; None without `class names`."""
    metadata = _opened(path).metadata
    names = metadata.get("class names")
    if not isinstance(names, list):
        return None
    levels = [value for value in metadata.get("class lookup") or () if str(value).strip().isdigit()]
    parts = [min(int(value), 255) for value in levels]
    return names, list(zip(parts[::3], parts[1::3], parts[2::3], strict=False))


def meta(path: Path) -> dict[str, Json]:
    """Return no ids: ENVI headers have no place for them."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core; its data only if `spectra`.

    Pixels with the header's `data ignore value` become NaN: not measured.
    """
    image = _opened(path)
    header = _header(path)
    shape = tuple(int(n) for n in image.shape)
    raw = Raw(wavenumbers=_wavenumbers(image, header), shape=shape, meta=_pixel_size(image))
    if spectra:
        data = _data(image, header)
        raw.spectra = data[::-1] if _is_agilents(image) else data
    return raw


def _is_agilents(image: Any) -> bool:
    """Return whether an Agilent instrument wrote the header. Its first row is the bottom one (agilent.py)."""
    described = str(image.metadata.get("description", "")).strip()
    return described == _AGILENT[0] and int(image.offset) == _AGILENT[1]


def _pixel_size(image: Any) -> dict[str, Json]:
    """Return the `pixel size` of the header as `pixel_um`, if it is given in µm or metres."""
    given = image.metadata.get("pixel size")
    words = [str(word).strip().lower() for word in given] if isinstance(given, list) else []
    unit = next((word.partition("=")[2].strip() for word in words if word.startswith("units")), "")
    factor = {"meters": 1e6, "um": 1.0, "micrometers": 1.0, "microns": 1.0}.get(unit)
    try:
        size = round(float(words[0]) * (factor or 0.0), 4) if words else 0.0
    except ValueError:
        return {}
    return {"pixel_um": size} if size > 0 else {}


def _header(path: Path) -> Path:
    header = path if path.suffix.lower() == ".hdr" else path.with_suffix(".hdr")
    if not header.is_file():
        raise BadInput(f"{path}: no ENVI header {header.name} beside it.")
    return header


def _opened(path: Path) -> Any:
    header = _header(existing(path))
    refuse_long_file(existing(header), _LONGEST, "an ENVI header")
    envi = library("spectral.io.envi", path)
    logging.getLogger("spectral").setLevel(logging.ERROR)  # what it warns of is refused below, in one message
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys in capitals, which are read all the same
            image = envi.open(str(header), None if path == header else str(path))
    except Exception as error:  # a wrong value can make the parser raise anything
        raise BadInput(
            f"{header}: not a readable ENVI image ({short(error)}). Export it again, header and data."
        ) from error
    if not hasattr(image, "bands"):
        raise BadInput(f"{header}: an ENVI spectral library, not an image. Take it out of the folder.")
    _refuse_sizes(image, header)
    return image


def _refuse_sizes(image: Any, header: Path) -> None:
    """Raise BadInput if the data file is shorter than the header says."""
    shape, offset = tuple(int(n) for n in image.shape), int(image.offset)
    if min(shape) < 1 or offset < 0:
        raise BadInput(
            f"{header}: lines, samples and bands are {shape_text(shape)}, header offset is {offset}; none can be "
            f"below 1, "
            "nor the offset below 0. Correct it."
        )
    wanted = array_bytes(shape, image.sample_size) + offset
    there = existing(Path(image.filename)).stat().st_size
    if there < wanted:
        raise BadInput(f"{image.filename}: {there} bytes, but {header.name} says {wanted}. Copy the file again.")


def _wavenumbers(image: Any, header: Path) -> Array:
    text = image.metadata.get("wavelength")
    if not text:
        raise BadInput(f"{header}: no `wavelength` list in it; the wavenumber of each band (cm⁻¹) must stand there.")
    try:
        axis = np.array([float(value) for value in ([text] if isinstance(text, str) else text)])
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


def blocks(path: Path) -> Blocks:
    """Return the image to be read in parts."""
    image, header = _opened(path), _header(path)
    raw, lines = read(path, spectra=False), int(image.shape[0])
    mapped = image.open_memmap(interleave="bip")

    def fetch(rows: slice, columns: slice) -> Array:
        first, last, step = rows.indices(lines)
        own = slice(lines - last, lines - first) if _is_agilents(image) else slice(first, last, step)
        part = np.array(mapped[own, columns], np.float32)
        release(mapped)
        if image.scale_factor != 1:
            part /= np.float32(image.scale_factor)
        part = _measured(part, image, header)
        return part[::-1] if _is_agilents(image) else part

    return Blocks(raw, fetch)


def _data(image: Any, header: Path) -> Array:
    shape = tuple(int(n) for n in image.shape)
    refuse_size(header, "its image", shape, array_bytes(shape, 4))
    try:
        with np.errstate(all="ignore"):  # a scale factor of 0
            data = np.asarray(image.load())
    except Exception as error:
        raise BadInput(f"{image.filename}: truncated or damaged ({short(error)}). Copy it again.") from error
    return _measured(data, image, header)


def _measured(data: Array, image: Any, header: Path) -> Array:
    """Return the values, NaN in the pixels that the header says to ignore."""
    nothing = image.metadata.get("data ignore value")
    if nothing is not None:
        try:
            value = np.float32(nothing)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{header}: its `data ignore value` '{nothing}' is no number. Correct it.") from error
        hidden = (data == value).all(-1)
        data = np.where(hidden[..., None], np.float32(np.nan), data)
    return data
