"""Formats of single instruments, on files written byte by byte as the instruments write them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
from runner_core import BadInput
from runner_ssmunet.files import find_inputs, find_records, read_core, read_outline
from runner_ssmunet.readers import open_blocks

AXIS = np.linspace(900.0, 1800.0, 101)


def refuse(path: Path, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read_core(path)
    assert path.stem in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- PerkinElmer


def write_fsm(path: Path, image: np.ndarray, axis: np.ndarray, unit: str = "%T", up: float = 6.25) -> Path:
    """An image of a Spotlight: `image` (H, W, C) in the order of the file, its axis falling."""
    rows, columns, points = image.shape
    doubles = (6.25, up, axis[-2] - axis[-1], axis[-1], axis[0], 0.0, 0.0, 6771.3, 13456.5, axis[-1])
    grid = struct.pack("<h", 5) + b"Image" + struct.pack("<10d3i", *doubles, columns, rows, points)
    for text in ("Y - micrometers", "X - micrometers", "cm-1", unit):
        grid += struct.pack("<h", len(text)) + text.encode()
    content = b"PEPE" + b"DataSet - 4DConst3DInterval".ljust(40, b"\0")
    for number, block in ((5100, grid), (5104, b'(7\0\0x\0"7\0\0')):
        content += struct.pack("<Hi", number, len(block)) + block
    for pixel in image.reshape(-1, points)[:, ::-1].astype("<f4"):
        content += struct.pack("<Hi", 5105, 4 * points) + pixel.tobytes()
    path.write_bytes(content)
    return path


def test_a_perkinelmer_image(tmp_path: Path, core) -> None:
    percent = 100 * 10 ** -core["X"].astype(np.float64)
    path = write_fsm(tmp_path / "core_1.fsm", percent[::-1], core["wn"])
    read = read_core(path)
    np.testing.assert_allclose(read.spectra, core["X"], atol=1e-6)
    np.testing.assert_allclose(read.wavenumbers, core["wn"])
    assert read.meta["pixel_um"] == 6.25
    assert "turned round" in read.remarks[0]
    assert [record.key for record in find_inputs(tmp_path)] == ["core_1"]
    np.testing.assert_allclose(read_outline(path).wavenumbers, core["wn"])
    downwards = read_core(write_fsm(tmp_path / "core_2.fsm", percent, core["wn"], up=-6.25))
    np.testing.assert_array_equal(downwards.spectra, read.spectra)
    absorbances = read_core(write_fsm(tmp_path / "core_3.fsm", core["X"][::-1], core["wn"], unit="A"))
    np.testing.assert_array_equal(absorbances.spectra, core["X"])


def test_perkinelmer_files_that_are_wrong(tmp_path: Path, core) -> None:
    path = write_fsm(tmp_path / "core_1.fsm", core["X"], core["wn"], unit="Log 1/R")
    refuse(path, r"its values are 'Log 1/R'; A, T or %T are read")
    whole = write_fsm(path, core["X"], core["wn"]).read_bytes()
    path.write_bytes(whole[:-1])
    refuse(path, r"bytes of spectra, but 5 × 7 × 101 values take 14350")
    path.write_bytes(whole[:30])
    refuse(path, "no spectra in it")
    path.write_bytes(b"PK" + whole[2:])
    refuse(path, "does not begin with PEPE")
    other = bytearray(whole)
    other[-410 * 3 : -410 * 3 + 2] = b"\0\0"
    path.write_bytes(bytes(other))
    refuse(path, "between its spectra stands something else")
    np.testing.assert_allclose(read_outline(path).wavenumbers, core["wn"])  # an outline reads no spectra
    image = open_blocks(path)
    np.testing.assert_array_equal(image.read(slice(1, 3), slice(2, 5), "absorbance"), core["X"][::-1][1:3, 2:5])
    with pytest.raises(BadInput, match=r"core_1.fsm: between its spectra stands something else"):
        image.read(slice(0, 1), slice(0, 7))
    claim, points = struct.pack("<3i", 7, 5, 101), struct.pack("<3i", 7, 5, 2**31 - 1)
    assert claim in whole
    path.write_bytes(whole.replace(claim, points))
    refuse(path, "an image of 5 × 7 × 2147483647 values: it is damaged")


# ---------------------------------------------------------------- Photothermal


def write_ptir(path: Path, image: np.ndarray, axis: np.ndarray, others: int = 0) -> Path:
    """A hyperspectral image of PTIR Studio: `image` (H, W, C) from the top; the file begins at the smallest y."""
    rows, columns, points = image.shape
    x, y = -4088.96 + 20 * np.arange(columns), -886.2 + 20 * np.arange(rows)
    with h5py.File(path, "w") as file:
        for n in range(others + 1):
            group = file.create_group(f"Measurement_{n:03d}")
            numbers = {"WavenumberStart": axis[0], "WavenumberEnd": axis[-1], "XIncrement": 20.0, "YIncrement": -20.0}
            counts = {"WavenumberPoints": points, "XPoints": columns, "YPoints": rows}
            for name, value in (numbers | counts).items():
                group.attrs[f"Range{name}"] = np.array([value])
            group["Position_Values"] = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2).astype(np.float32)
            group["Channel_000/Raw_Data"] = image[::-1].reshape(-1, points).astype(np.float32)
        for name, flag in (("Measurement_900", "IsBackground"), ("Measurement_901", "IsRaman")):
            file.create_group(name).attrs[flag] = np.array([1], np.uint8)
            file[f"{name}/Channel_000/Raw_Data"] = np.ones((2, points), np.float32)
    return path


def test_a_photothermal_image(tmp_path: Path, core) -> None:
    path = write_ptir(tmp_path / "core_1.ptir", core["X"], core["wn"])
    read = read_core(path)
    np.testing.assert_array_equal(read.spectra, core["X"])
    np.testing.assert_allclose(read.wavenumbers, core["wn"])
    assert read.meta == {"measurement": "Measurement_000/Channel_000", "pixel_um": 20.0}
    assert [record.key for record in find_inputs(tmp_path)] == ["core_1"]


def test_one_of_several_photothermal_images_is_chosen(tmp_path: Path, core) -> None:
    path = write_ptir(tmp_path / "core_1.ptir", core["X"], core["wn"], others=1)
    refuse(path, "2 images in it: Measurement_000/Channel_000, Measurement_001/Channel_000. Choose one in core_1.json")
    (tmp_path / "core_1.json").write_text(json.dumps({"measurement": "Measurement_001/Channel_000"}))
    np.testing.assert_array_equal(read_core(path).spectra, core["X"])
    (tmp_path / "core_1.json").write_text('{"measurement": "Measurement_7"}')
    refuse(path, "no infrared image 'Measurement_7' in it")


def test_photothermal_files_that_are_wrong(tmp_path: Path, core) -> None:
    path = write_ptir(tmp_path / "core_1.ptir", core["X"], core["wn"])
    with h5py.File(path, "a") as file:
        file["Measurement_000"].attrs["RangeXPoints"] = np.array([8])
    refuse(path, "35 spectra do not fill its grid of 5 × 8")
    with h5py.File(path, "a") as file:
        file["Measurement_000"].attrs["RangeXPoints"] = np.array([7])
        file["Measurement_000/Position_Values"][3] = 0
    refuse(path, "the positions of its spectra are no grid of 5 × 7")
    with h5py.File(path, "a") as file:
        points = file["Measurement_000"].attrs["RangeWavenumberPoints"]
        file["Measurement_000"].attrs["RangeWavenumberPoints"] = np.array([2**60])
    refuse(path, "and 1152921504606846976 wavenumbers")
    with h5py.File(path, "a") as file:
        file["Measurement_000"].attrs["RangeWavenumberPoints"] = points
        group = file["Measurement_000"]
        channel = next(name for name in group if name.startswith("Channel"))
        file.move(f"Measurement_000/{channel}", "elsewhere")
        group[channel] = h5py.SoftLink("/elsewhere")
    refuse(path, "no hyperspectral infrared image in it")
    with h5py.File(path, "a") as file:
        del file["Measurement_000"]
    refuse(path, "no hyperspectral infrared image in it")
    path.write_bytes(b"text")
    refuse(path, "not a readable .ptir file")


# ---------------------------------------------------------------- Daylight Solutions


def write_spero(path: Path, image: np.ndarray, axis: np.ndarray, v73: bool = False, **changed: Any) -> Path:
    """Variables of a Spero: the pixels of `r` go down the image's columns."""
    rows, columns, points = image.shape
    variables: dict[str, Any] = {"r": image.transpose(1, 0, 2).reshape(-1, points), "wn": axis[:, None]}
    variables |= {"dX": float(columns), "dY": float(rows), "fileName": "Sample"} | changed
    if not v73:
        scipy.io.savemat(path, variables)
        return path
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if not isinstance(value, str):
                file[name] = np.atleast_2d(value).T
    return path


@pytest.mark.parametrize("v73", [False, True])
def test_a_spero_image(tmp_path: Path, core, v73: bool) -> None:
    path = write_spero(tmp_path / "core_1.mat", core["X"][..., ::-1], core["wn"][::-1], v73)
    read = read_core(path)
    np.testing.assert_array_equal(read.spectra, core["X"])
    np.testing.assert_allclose(read.wavenumbers, core["wn"])
    (tmp_path / "core_1.json").write_text('{"patient_id": "P3", "pixel_um": 4.25}')
    (record,) = find_records(tmp_path, "patient")
    assert record.group == "P3"
    assert read_core(path).meta["pixel_um"] == 4.25
    refuse(write_spero(path, core["X"], core["wn"], v73, dX=8.0), "r has shape 35 × 101, but dY × dX is 5 × 8")
    refuse(write_spero(path, core["X"], core["wn"], v73, dX=0.0), "dX and dY are no numbers of pixels")


def test_the_envi_files_of_chemvision(tmp_path: Path, core) -> None:
    """ChemVision writes its own name as the file's type, and data without a suffix."""
    (tmp_path / "core_1").write_bytes(core["X"].transpose(2, 0, 1).astype("<f4").tobytes())
    header = tmp_path / "core_1.hdr"
    header.write_text(
        "ENVI\ndescription = { ChemVision File, File Name [Sample], Created [Thu Apr 27 15:13:51 2017]}\nsamples = 7\n"
        "lines = 5\nbands = 101\nheader offset = 0\nfile type = Spero Chemvision\ndata type = 4\ninterleave = bsq\n"
        "sensor type = Daylight Solutions Spero\nbyte order = 0\nwavelength units = cm-1\n"
        f"wavelength = {{ {', '.join(f'{n:.1f}' for n in core['wn'])}}}\npixel size = {{4.25, 4.25, units=um}}\n"
    )
    read = read_core(header)
    np.testing.assert_array_equal(read.spectra, core["X"])
    assert read.meta["pixel_um"] == 4.25


# ---------------------------------------------------------------- others


def test_a_map_of_omnic_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "core_1.map"
    path.write_bytes(b"Spectral Exte File\r\n".ljust(600, b"\0"))
    refuse(path, "a Thermo OMNIC map, whose layout is not published. Export it as ENVI")
    with pytest.raises(BadInput, match="OMNIC map"):
        find_inputs(tmp_path)


@pytest.mark.parametrize("units, factor", [("percent", 100.0), ("transmittance", 1.0)])
def test_transmittance_becomes_absorbance_by_a_setting(write_core, core, units: str, factor: float) -> None:
    share = 10 ** -core["X"].astype(np.float64)
    share[0, 0] = -0.1  # what noise makes of an opaque pixel
    path = write_core(X=(factor * share).astype(np.float32), y=core["y"], tissue_mask=core["tissue_mask"])
    read = read_core(path, units=units)
    np.testing.assert_allclose(read.spectra[1:], core["X"][1:], atol=1e-6)
    assert (read.spectra[0, 0] == 4).all()
    np.testing.assert_array_equal(read_core(path).spectra, (factor * share).astype(np.float32))


@pytest.mark.parametrize("write", [write_fsm, write_ptir, write_spero])
def test_random_damage_is_refused_or_goes_unnoticed(tmp_path: Path, core, write) -> None:
    """Whatever byte is broken: a core comes back, or one message. Nothing else is raised."""
    path = write(tmp_path / f"core_1{'.mat' if write is write_spero else write.__name__.replace('write_', '.')}",
                 core["X"], core["wn"])  # fmt: skip
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        broken = bytearray(whole if rng.random() < 0.7 else whole[: rng.integers(len(whole))])
        for _ in range(int(rng.integers(1, 4)) if broken else 0):
            broken[rng.integers(min(len(broken), 300))] = rng.integers(256)
        path.write_bytes(bytes(broken))
        try:
            find_inputs(tmp_path)
            read_core(path)
        except BadInput:
            refused += 1
    assert refused
