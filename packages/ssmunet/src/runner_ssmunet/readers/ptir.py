"""Photothermal images (.ptir of PTIR Studio): HDF5, read by h5py.

A file has a group for each measurement. A hyperspectral one has positions on a grid, and a channel or several, of one
spectrum for each position. The stage's y points upwards: rows are read from the largest y downwards. The signal of
O-PTIR (mV) is proportional to absorbance and is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, counted, first_few, shape_text

from runner_ssmunet.readers.base import Array, Raw, existing, library, short
from runner_ssmunet.readers.sidecars import beside, read_meta, stem
from runner_ssmunet.readers.sizes import array_bytes, refuse_size


def is_core(path: Path) -> bool:
    """Return whether a file is one of PTIR Studio, by its suffix."""
    return path.suffix.lower() == ".ptir"


def parts(path: Path) -> list[Path]:
    """Return the files of the core."""
    return [path]


def meta(path: Path) -> dict[str, Json]:
    """Return no ids: they stand in the JSON file beside it."""
    return {}


def read(path: Path, spectra: bool = True) -> Raw:
    """Return the core, with `pixel_um` and the name of the measurement in its meta."""
    h5py = library("h5py", path)
    try:
        with h5py.File(existing(path), "r") as file:
            return _read(file, path, spectra, h5py)
    except BadInput:
        raise
    except Exception as error:  # a broken byte can make the library raise anything
        raise BadInput(f"{path}: not a readable .ptir file ({short(error)}). Copy it again.") from error


def _read(file: Any, path: Path, spectra: bool, h5py: Any) -> Raw:
    name, data = _chosen(dict(_images(file, h5py)), path)
    group = file[name.partition("/")[0]]
    refuse_size(path, f"'{name}'", data.shape, array_bytes(data.shape, 4), data.id.get_storage_size())
    points = int(_number(group, "RangeWavenumberPoints"))
    if data.shape[1:] != (points,):
        raise BadInput(f"{path}: '{name}' has shape {shape_text(data.shape)}, and {points} wavenumbers. Copy it again.")
    wavenumbers = np.linspace(_number(group, "RangeWavenumberStart"), _number(group, "RangeWavenumberEnd"), points)
    places, shape, step = _places(group, len(data), path)
    raw = Raw(wavenumbers=wavenumbers, shape=(*shape, data.shape[1]), meta={"measurement": name, "pixel_um": step})
    if spectra:
        image = np.full((shape[0] * shape[1], data.shape[1]), np.nan, np.float32)
        image[places] = data[()]
        raw.spectra = image.reshape(raw.shape)
    return raw


def _images(file: Any, h5py: Any) -> Iterator[tuple[str, Any]]:
    """Yield MEASUREMENT/CHANNEL and the spectra (P, C) of each infrared image in the file."""
    for name in file:
        if not name.startswith("Measurement") or not isinstance(file.get(name, getlink=True), h5py.HardLink):
            continue
        group: Any = file[name]
        if any(np.any(group.attrs.get(flag, 0)) for flag in ("IsBackground", "IsRaman")):
            continue
        for channel in group:
            place = f"{channel}/Raw_Data"
            own = channel.startswith("Channel") and all(
                isinstance(group.get(link, getlink=True), h5py.HardLink) for link in (channel, place)
            )
            data = group[place] if own else None
            if data is not None and len(data) > 1 and not (data.external or data.is_virtual):
                yield f"{name}/{channel}", data


def _chosen(found: dict[str, Any], path: Path) -> tuple[str, Any]:
    """Return the only image, or the one that "measurement" in the JSON file beside it names."""
    files = beside(path)
    wanted = read_meta(files["meta"]).get("measurement") if "meta" in files else None
    if wanted in found:
        return str(wanted), found[str(wanted)]
    where, there = f'{stem(path)}.json beside it: {{"measurement": …}}', first_few(list(found))
    if wanted is not None:
        raise BadInput(f"{path}: no infrared image '{wanted}' in it; there is {there}. Correct {where}.")
    if not found:
        raise BadInput(
            f"{path}: no hyperspectral infrared image in it (single spectra, backgrounds and Raman are none)."
        )
    if len(found) > 1:
        raise BadInput(f"{path}: {counted(len(found), 'image')} in it: {there}. Choose one in {where}.")
    return next(iter(found.items()))


def _number(group: Any, name: str) -> float:
    return float(np.ravel(group.attrs[name])[0])


def _places(group: Any, count: int, path: Path) -> tuple[Array, tuple[int, int], float]:
    """Return the place of each spectrum in the flat image, the image's (H, W), and the distance of pixels (µm)."""
    rows, columns = (int(_number(group, f"Range{axis}Points")) for axis in "YX")
    positions = np.asarray(group["Position_Values"][()], np.float64)
    if rows * columns != count or positions.shape != (count, 2):
        raise BadInput(
            f"{path}: {count} spectra do not fill its grid of {rows} × {columns}: the measurement was stopped, or is a "
            "list of points. Save a whole image."
        )
    steps = [abs(_number(group, f"Range{axis}Increment")) for axis in "XY"]
    low = positions.min(0)
    column, row = np.rint((positions - low) / np.where(np.array(steps) > 0, steps, 1)).astype(int).T
    places = (rows - 1 - row) * columns + column
    if min(row.max() - rows, column.max() - columns) >= 0 or len(np.unique(places)) != count or places.min() < 0:
        raise BadInput(f"{path}: the positions of its spectra are no grid of {rows} × {columns}. Save it again.")
    return places, (rows, columns), steps[0]
