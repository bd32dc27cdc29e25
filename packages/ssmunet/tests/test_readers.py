"""The other formats, on files written by the libraries that others use, and on real files of an instrument."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import agilent_format
import h5py
import numpy as np
import pytest
import scipy.io
import spectral
from brukeropus.file import constants
from PIL import Image
from runner_core import BadInput
from runner_ssmunet.classes import Classes
from runner_ssmunet.files import find_inputs, find_records, read_core, read_outline, stored_labels
from runner_ssmunet.readers import matfile, open_blocks, sizes
from runner_ssmunet.readers import matlab as matlab_reader

AGILENT = Path(agilent_format.__file__).parent / "datasets"
"""Measured by an Agilent Cary 620; shipped with agilent-format."""


def refuse(path: Path, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read_core(path)
    assert path.stem in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- ENVI


def write_envi(folder: Path, core: dict[str, np.ndarray], interleave: str = "bil", **metadata: Any) -> Path:
    header = folder / "core_1.hdr"
    metadata = {"wavelength": core["wn"].tolist(), "wavelength units": "Wavenumber"} | metadata
    metadata = {key: value for key, value in metadata.items() if value is not None}
    spectral.envi.save_image(str(header), core["X"], interleave=interleave, ext=".dat", metadata=metadata, force=True)
    return header


@pytest.mark.parametrize("interleave", ["bil", "bip", "bsq"])
def test_envi_in_every_interleave(tmp_path: Path, core, interleave: str) -> None:
    header = write_envi(tmp_path, core, interleave)
    for path in (header, header.with_suffix(".dat")):
        read = read_core(path)
        np.testing.assert_array_equal(read.spectra, core["X"])
        np.testing.assert_allclose(read.wavenumbers, core["wn"])
    assert read.labels is None
    (record,) = find_inputs(tmp_path)
    assert list(record.files.items()) == [("data", header.with_suffix(".dat")), ("core", header)]


@pytest.mark.parametrize("unit, factor", [("Micrometers", 1e4), ("nm", 1e7)])
def test_envi_wavelengths_become_wavenumbers(tmp_path: Path, core, unit: str, factor: float) -> None:
    path = write_envi(tmp_path, core, **{"wavelength": (factor / core["wn"]).tolist(), "wavelength units": unit})
    read = read_core(path)
    np.testing.assert_allclose(read.wavenumbers, core["wn"], rtol=1e-6)
    np.testing.assert_array_equal(read.spectra, core["X"])


def test_envi_pixels_to_ignore_were_not_measured(tmp_path: Path, core) -> None:
    core["X"][0, :2] = -9999
    read = read_core(write_envi(tmp_path, core, **{"data ignore value": -9999}))
    assert not read.measured[0, :2].any()
    assert read.measured.sum() == 33


@pytest.mark.parametrize(
    "metadata, message",
    [
        ({"wavelength": None}, "no `wavelength` list"),
        ({"wavelength": ["a"] * 101}, "what is no number"),
        ({"wavelength units": "furlong"}, "`wavelength units` is 'furlong'"),
    ],
)
def test_envi_headers_without_an_axis(tmp_path: Path, core, metadata: dict[str, Any], message: str) -> None:
    refuse(write_envi(tmp_path, core, **metadata), message)


@pytest.mark.filterwarnings("error")
def test_what_the_library_warns_of_is_not_shown(tmp_path: Path, core) -> None:
    core["X"][0, 0] = np.nan
    assert not read_core(write_envi(tmp_path, core)).measured[0, 0]


def test_envi_files_that_are_damaged(tmp_path: Path, core) -> None:
    header = write_envi(tmp_path, core)
    data = header.with_suffix(".dat")
    data.write_bytes(data.read_bytes()[:-1])
    refuse(header, "14139 bytes, but core_1.hdr says 14140")
    header.write_text("ENVI\nsamples = 7\n")
    refuse(header, "not a readable ENVI image")
    data.unlink()
    refuse(header, "not a readable ENVI image")
    header.unlink()
    refuse(header, "no such file")


# ---------------------------------------------------------------- sidecars


def test_labels_mask_and_names_beside_a_file(tmp_path: Path, core) -> None:
    header = write_envi(tmp_path, core)
    Image.fromarray(core["y"]).save(tmp_path / "core_1.labels.png")
    np.save(tmp_path / "core_1.tissue.npy", core["tissue_mask"])
    (tmp_path / "core_1.json").write_text('{"patient_id": "P3"}')
    read = read_core(header)
    np.testing.assert_array_equal(read.labels, core["y"])
    np.testing.assert_array_equal(read.tissue, core["tissue_mask"])
    (record,) = find_records(tmp_path, "patient")
    assert record.group == "P3"
    assert list(record.files) == ["data", "core", "labels", "tissue", "meta"]
    np.testing.assert_array_equal(read_outline(header).labels, core["y"])


@pytest.mark.parametrize("mode", ["palette", "16 bits", "black and white"])
def test_png_files_of_every_kind_of_number(tmp_path: Path, core, mode: str) -> None:
    header = write_envi(tmp_path, core)
    wanted = core["y"].astype(np.int64)
    if mode == "palette":
        image = Image.fromarray(core["y"])
        image.putpalette([255, 0, 0, 0, 255, 0] * 2)
    elif mode == "16 bits":
        wanted = wanted * 300
        image = Image.fromarray(wanted.astype(np.uint16))
    else:
        wanted = wanted > 0
        image = Image.fromarray(wanted)
    image.save(tmp_path / "core_1.labels.png")
    np.testing.assert_array_equal(read_core(header).labels, wanted)


def test_sidecars_that_are_wrong(tmp_path: Path, core) -> None:
    header = write_envi(tmp_path, core)
    labels = tmp_path / "core_1.labels.png"
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(labels)
    refuse(header, r"core_1.labels.png: a colour picture \(RGB\); class numbers .*Image.fromarray\(y\)")
    Image.new("LA", (7, 5)).save(tmp_path / "core_1.labels.png")
    refuse(header, r"core_1.labels.png: a picture of 2 channels \(LA\); a tissue mask, and labels .* have one")
    labels.write_bytes(b"none")
    refuse(header, "core_1.labels.png: not a readable PNG")
    Image.fromarray(core["y"].T).save(labels)
    refuse(header, "the labels are 7 × 5 pixels, the image 5 × 7")
    np.save(tmp_path / "core_1.labels.npy", core["y"])
    refuse(header, "two files with its labels: core_1.labels.png and core_1.labels.npy")
    labels.unlink()
    np.save(tmp_path / "core_1.labels.npy", core["X"])
    refuse(header, r"core_1.labels.npy: values of shape \(5, 7, 101\)")
    np.save(tmp_path / "core_1.labels.npy", np.array([None]), allow_pickle=True)
    refuse(header, "core_1.labels.npy: not a readable NPY")
    (tmp_path / "core_1.labels.npy").unlink()
    (tmp_path / "core_1.json").write_text("[]")
    refuse(header, "core_1.json: its meta is list")


def test_a_core_without_labels_is_told_what_is_missing(tmp_path: Path, core) -> None:
    header = write_envi(tmp_path, core)
    (tmp_path / "core_1.json").write_text('{"patient_id": "P3"}')
    (record,) = find_records(tmp_path, "patient")
    assert "labels" not in record.files
    with pytest.raises(BadInput, match=r"core_1.hdr: it has no labels \(no core_1.labels.png, .npy or .hdr beside it"):
        stored_labels(read_outline(header), header, Classes(("a", "b")), 0, needed=True)


def test_labels_in_the_file_and_beside_it_are_refused(write_core) -> None:
    path = write_core()
    np.save(path.with_name("core_1.labels.npy"), np.zeros((12, 14)))
    refuse(path, "it holds labels of its own, and core_1.labels.npy beside it too")


# ---------------------------------------------------------------- Agilent


def agilent(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in AGILENT.glob(pattern):
            shutil.copy(path, folder / path.name)


def test_an_agilent_tile(tmp_path: Path) -> None:
    agilent(tmp_path, "4_noimage*", "background*")
    (record,) = find_inputs(tmp_path)
    tile = tmp_path / "4_noimage_agg256.dat"
    assert list(record.files.items()) == [("data", tile), ("core", tile.with_suffix(".bsp"))]
    core = read_core(record.files["core"])
    assert core.spectra.shape == (8, 8, 9)
    assert core.spectra[7, 1, 1] == pytest.approx(1.27181053)  # as agilent-format's own tests have it
    assert core.wavenumbers[0] == pytest.approx(1990.17823)
    assert core.meta["pixel_um"] == pytest.approx(5.5 * 16)
    for other in (tile, tile.with_suffix(".bsp")):
        np.testing.assert_array_equal(read_core(other).spectra, core.spectra)


def test_every_file_of_an_agilent_image_has_the_same_row_on_top(tmp_path: Path) -> None:
    """The instrument writes an ENVI header too: two libraries read one file, with and without its .bsp or .dmt."""
    agilent(tmp_path, "4_noimage*", "5_[Mm]osaic*")
    for name, header in (("4_noimage_agg256", ".bsp"), ("5_mosaic_agg1024", ".dmt")):
        wanted = read_core(tmp_path / f"{name}{header}")
        beside = read_core(tmp_path / f"{name}.hdr")
        np.testing.assert_array_equal(beside.spectra, wanted.spectra)
    alone = tmp_path / "alone"
    alone.mkdir()
    agilent(alone, "4_noimage*.hdr", "4_noimage*.dat")
    envi = read_core(alone / "4_noimage_agg256.hdr")
    tile = read_core(tmp_path / "4_noimage_agg256.bsp")
    np.testing.assert_array_equal(envi.spectra, tile.spectra)
    np.testing.assert_allclose(envi.wavenumbers, tile.wavenumbers, atol=1e-5)
    plain = spectral.envi.open(str(alone / "4_noimage_agg256.hdr")).load()
    np.testing.assert_array_equal(np.asarray(plain)[::-1], tile.spectra)


def test_an_agilent_header_claims_no_more_than_its_files_hold(tmp_path: Path) -> None:
    agilent(tmp_path, "4_noimage*.dat", "4_noimage*.bsp")
    header = tmp_path / "4_noimage_agg256.bsp"
    content = bytearray(header.read_bytes())
    for count in (2**31 - 1, 0, -1):
        content[2236:2240] = struct.pack("<i", count)
        header.write_bytes(bytes(content))
        refuse(header, f"not a readable Agilent image .{count} wavenumbers, in files of 3.3 kB")


def test_an_agilent_mosaic(tmp_path: Path) -> None:
    agilent(tmp_path, "5_[Mm]osaic*")
    (record,) = find_inputs(tmp_path)
    tiles = [tmp_path / f"5_Mosaic_agg1024_0000_000{i}.dmd" for i in (0, 1)]
    wanted = {"data": tiles[0], "data 2": tiles[1], "core": tmp_path / "5_mosaic_agg1024.dmt"}
    assert list(record.files.items()) == list(wanted.items())
    core = read_core(record.files["core"])
    assert core.spectra.shape == (8, 4, 9)
    assert core.spectra[7, 1, 1] == pytest.approx(1.14792180)
    for name in ("5_Mosaic_agg1024.dms", "5_Mosaic_agg1024.dat", "5_Mosaic_agg1024_0000_0000.dmd"):
        np.testing.assert_array_equal(read_core(tmp_path / name).spectra, core.spectra)


def test_a_tile_that_is_missing_was_not_measured(tmp_path: Path) -> None:
    agilent(tmp_path, "5_mosaic*.dmt", "5_Mosaic*_0000_000*.dmd")
    first = tmp_path / "5_Mosaic_agg1024_0000_0000.dmd"
    shutil.copy(first, tmp_path / "5_Mosaic_agg1024_0001_0000.dmd")
    core = read_core(tmp_path / "5_mosaic_agg1024.dmt")
    assert core.spectra.shape == (8, 8, 9)
    assert core.measured.sum() == 48
    assert not core.measured[4:, 4:].any()


def test_a_stray_tile_does_not_make_a_mosaic_of_nothing(tmp_path: Path) -> None:
    agilent(tmp_path, "5_mosaic*.dmt", "5_Mosaic*_0000_000*.dmd")
    mosaic, first = tmp_path / "5_mosaic_agg1024.dmt", tmp_path / "5_Mosaic_agg1024_0000_0000.dmd"
    shutil.copy(first, tmp_path / "5_Mosaic_agg1024_9999_9999.dmd")
    refuse(mosaic, "9999_9999.dmd would make a mosaic of 10000 × 10000 tiles, of which 3 are there")
    with pytest.raises(BadInput, match="Remove that tile"):
        open_blocks(mosaic)


def test_agilent_files_that_are_wrong(tmp_path: Path) -> None:
    agilent(tmp_path, "4_noimage*", "5_[Mm]osaic*.dm?")
    refuse(tmp_path / "4_noimage_agg256.seq", "interferograms, not spectra")
    (tmp_path / "5_Mosaic_agg1024_0000_0000.drd").write_bytes(b"")
    refuse(tmp_path / "5_Mosaic_agg1024_0000_0000.drd", "interferograms, not spectra")
    tile = tmp_path / "4_noimage_agg256.dat"
    tile.write_bytes(tile.read_bytes()[:-8])
    refuse(tile, "not a readable Agilent image")
    header = tile.with_suffix(".bsp")
    header.write_bytes(header.read_bytes()[:2220])
    refuse(header, "not a readable Agilent image")
    tile.unlink()
    refuse(header, "no 4_noimage_agg256.dat beside it")
    mosaic = tmp_path / "5_mosaic_agg1024.dmt"
    for path in tmp_path.glob("*.dmd"):
        path.unlink()
        path.symlink_to(path.name)
    with pytest.raises(BadInput, match=r"agg1024_0000_000\d.dmd: (no such file|cannot be read)"):
        read_core(mosaic)
    for path in tmp_path.glob("*.dmd"):
        path.unlink()
    refuse(mosaic, "no tile 5_mosaic_agg1024_0000_0000.dmd")
    mosaic.unlink()
    refuse(tmp_path / "5_Mosaic_agg1024.dms", "no 5_Mosaic_agg1024.dmt beside it")


# ---------------------------------------------------------------- MATLAB


def write_matlab(path: Path, variables: dict[str, Any], v73: bool) -> Path:
    """v7.3 as MATLAB writes it: a header of 512 bytes, axes the other way round, text as codes."""
    if not v73:
        scipy.io.savemat(path, variables, do_compression=True)
        return path
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            text = isinstance(value, str)
            array = np.array([[ord(c) for c in value]], np.uint16) if text else np.atleast_2d(value)
            item = file.create_dataset(name, data=(array.astype(np.uint8) if array.dtype == bool else array).T)
            item.attrs["MATLAB_class"] = np.bytes_("char" if text else "double")
    return path


@pytest.fixture(params=[False, True], ids=["v7", "v7.3"])
def matlab(request, tmp_path: Path, core) -> Any:
    def write(**changed: Any) -> Path:
        variables: dict[str, Any] = core | {"y": core["y"].astype(float), "wn": core["wn"][None]}
        variables |= {"meta": json.dumps({"patient_id": "P5"})} | changed
        kept = {name: value for name, value in variables.items() if value is not None}
        return write_matlab(tmp_path / "core_1.mat", kept, request.param)

    return write


def test_matlab(matlab, core) -> None:
    path = matlab()
    read = read_core(path)
    np.testing.assert_array_equal(read.spectra, core["X"])
    np.testing.assert_array_equal(read.wavenumbers, core["wn"])
    np.testing.assert_array_equal(read.labels, core["y"])
    np.testing.assert_array_equal(read.tissue, core["tissue_mask"])
    assert (read.meta["patient_id"], read.meta["delta_cm1"]) == ("P5", pytest.approx(9.0))
    (record,) = find_records(path.parent, "patient")
    assert (record.group, record.files) == ("P5", {"core": path, "labels": path})


def test_labels_that_matlab_wrote_as_bytes_may_pack_to_very_little(tmp_path: Path) -> None:
    """It writes whole numbers of type double as bytes: a label map of 18 MB in memory is 2.3 kB in the file."""
    labels = np.zeros((1500, 1500), np.uint8)
    labels[200:300, 400:900], labels[700:900, 100:300] = 1, 2
    plain = io.BytesIO()
    scipy.io.savemat(plain, {"y": labels})
    content = bytearray(plain.getvalue()[128:])
    content[16] = 6  # of type double
    packed = zlib.compress(bytes(content), 9)
    path = tmp_path / "core_1.mat"
    path.write_bytes(plain.getvalue()[:128] + struct.pack("<2I", 15, len(packed)) + packed)
    (variable,) = matfile.variables(path)
    assert (variable.kind, variable.unpacked) == ("double", 18_000_000)
    assert variable.unpacked > 1100 * variable.stored
    np.testing.assert_array_equal(matlab_reader._variables(path, ("y",))["y"], labels)


def test_matlab_without_labels_or_meta(matlab) -> None:
    path = matlab(y=None, meta=None, tissue_mask=None)
    assert read_core(path).labels is None
    assert find_inputs(path.parent)[0].files == {"core": path}


def test_matlab_files_that_are_wrong(matlab, core) -> None:
    refuse(matlab(wn=None), "no variable 'wn' in it.*it holds X")
    refuse(matlab(wn=core["wn"][None, 1:]), "101 channels of spectra but 100 wavenumbers")
    refuse(matlab(meta=np.array([[1.0, 2.0]])), "'meta' is float64")
    path = matlab()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refuse(path, "not a readable MATLAB file|cut short")
    path.write_bytes(whole[:700])
    refuse(path, "not a readable MATLAB file|cut short")
    path.write_bytes(b"")
    refuse(path, "not a readable MATLAB file")


# ---------------------------------------------------------------- OPUS


def opus_block(kind: tuple[int, int, int, int, int, int], content: bytes) -> tuple[int, bytes]:
    shifts = (0, 2, 4, 10, 17, 19)
    return sum(value << shift for value, shift in zip(kind, shifts, strict=True)), content


def opus_parameters(**values: Any) -> bytes:
    """Three letters, type and length in words, value: a parameter block."""
    out = b""
    for key, value in values.items():
        if isinstance(value, str):
            text = value.encode() + b"\0" * (2 - len(value) % 2)
            kind, content = 2, text
        else:
            kind, content = (0, struct.pack("<i", value)) if isinstance(value, int) else (1, struct.pack("<d", value))
        out += key.upper().encode() + b"\0" + struct.pack("<2h", kind, len(content) // 2) + content
    return out + b"END\0" + b"\0" * 8


def write_opus(path: Path, wavenumbers: np.ndarray, spectra: np.ndarray, kind: int = 4) -> Path:
    """A Bruker OPUS file (kind 4: absorbance) of one spectrum, or of a series (spectra, points).

    Its axis falls, as Bruker writes it. Blocks: magic, header, directory, data, and the parameters of its axis.
    """
    values = np.atleast_2d(spectra)[:, ::-1].astype("<f4")
    series = 2 if spectra.ndim == 2 else 0
    content = values.tobytes()
    if series:
        sizes = struct.Struct("<" + "".join(entry["fmt"] for entry in constants.STRUCT_3D_INFO_BLOCK))
        info = b"\0" * sizes.size
        content = struct.pack("<6i", 0, len(values), 32, values[0].nbytes, len(info), 1)
        content += struct.pack("<2i", 0, len(values) - 1) + b"".join(row.tobytes() + info for row in values)
    axis = {"npt": values.shape[1], "fxv": float(wavenumbers[-1]), "lxv": float(wavenumbers[0])}
    status = opus_parameters(dpf=1, **axis, csf=1.0, mxy=float(values.max()), mny=float(values.min()), dxu="WN")
    blocks = [opus_block((3, 3, 0, kind, 0, series), content), opus_block((3, 3, 1, kind, 0, series), status)]
    start = 24 + 12 * (len(blocks) + 1)
    directory, body = b"", b""
    for code, block in blocks:
        block += b"\0" * (-len(block) % 4)
        directory += struct.pack("<3i", code, len(block) // 4, start + len(body))
        body += block
    header = b"\n\n\xfe\xfe" + struct.pack("<d3i", 920622.0, 24, len(blocks) + 1, len(blocks))
    path.write_bytes(header + directory + b"\0" * 12 + body)
    return path


def test_one_opus_spectrum(tmp_path: Path, core) -> None:
    path = write_opus(tmp_path / "sample.0", core["wn"], core["X"][2, 3])
    read = read_core(path)
    np.testing.assert_array_equal(read.spectra, core["X"][2:3, 3:4])
    np.testing.assert_allclose(read.wavenumbers, core["wn"])
    assert "turned round" in read.remarks[0]


def test_an_opus_series_takes_its_grid_from_what_stands_beside_it(tmp_path: Path, core) -> None:
    path = write_opus(tmp_path / "core_1.0", core["wn"], core["X"].reshape(35, -1))
    refuse(path, r"35 spectra without a grid. Say it in core_1.0.json")
    names = {"patient_id": "P1", "shape": [5, 7]}
    (tmp_path / "core_1.0.json").write_text(json.dumps(names))
    np.testing.assert_array_equal(read_core(path).spectra, core["X"])
    (tmp_path / "core_1.0.json").write_text('{"patient_id": "P1"}')
    Image.fromarray(core["y"]).save(tmp_path / "core_1.0.labels.png")
    read = read_core(path)
    np.testing.assert_array_equal(read.spectra, core["X"])
    np.testing.assert_array_equal(read.labels, core["y"])
    (record,) = find_records(tmp_path, "patient")
    assert (record.key, record.group) == ("core_1.0", "P1")


@pytest.mark.parametrize("shape", ["[4, 7]", "[35]", '"35"', "[-5, -7]"])
def test_a_grid_that_does_not_fit(tmp_path: Path, core, shape: str) -> None:
    path = write_opus(tmp_path / "core_1.0", core["wn"], core["X"].reshape(35, -1))
    (tmp_path / "core_1.0.json").write_text(f'{{"shape": {shape}}}')
    refuse(path, "35 spectra do not fill a grid of")


def test_opus_files_that_are_wrong(tmp_path: Path, core) -> None:
    path = write_opus(tmp_path / "core_1.0", core["wn"], core["X"][2, 3], kind=5)
    refuse(path, r"no absorbance in it \(it holds t\)")
    path.write_bytes(path.read_bytes()[:40])
    refuse(path, "40 bytes, but a block of it ends at byte")
    path.write_bytes(b"text")
    refuse(path, "not an OPUS file")
    with pytest.raises(BadInput, match="no core below it"):
        find_inputs(tmp_path)


# ---------------------------------------------------------------- files cut short, sizes that are not there


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_matlab_file_cut_short_is_not_unlabelled(tmp_path: Path, core, compressed: bool, share: float) -> None:
    """Its variables stand one after the other: what is cut off is the last of them, as if it had never been there."""
    path = tmp_path / "core_1.mat"
    variables = {"wn": core["wn"], "meta": '{"patient_id": "P1"}', "X": core["X"], "y": core["y"]}
    scipy.io.savemat(path, variables, do_compression=compressed)
    assert "labels" in find_records(tmp_path, "patient")[0].files
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    for read in (lambda: find_records(tmp_path, "patient"), lambda: find_inputs(tmp_path), lambda: read_core(path)):
        with pytest.raises(BadInput, match=r"core_1\.mat: it ends within a variable"):
            read()


def test_bytes_after_the_last_variable_are_no_variable(tmp_path: Path, core) -> None:
    path = write_matlab(tmp_path / "core_1.mat", {"X": core["X"], "wn": core["wn"]}, False)
    path.write_bytes(path.read_bytes() + b"\1\2\3")
    refuse(path, "it ends within a variable, 3 bytes after byte")


@pytest.mark.parametrize("kind", ["npz", "envi", "agilent", "matlab 7", "matlab 7.3", "opus"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_a_file_cut_short_is_refused(tmp_path: Path, core, kind: str, share: float) -> None:
    path = a_core_of(kind, tmp_path, core)
    data = max((file for file in tmp_path.iterdir() if "tissue" not in file.name), key=lambda file: file.stat().st_size)
    if kind == "agilent":
        data = path
    whole = data.read_bytes()
    data.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInput, match=r"core_1|4_noimage"):
        read_core(path)


def test_an_archive_that_unpacks_to_more_than_was_measured_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "_LARGE", 1_000_000)
    path = tmp_path / "core_1.npz"
    np.savez_compressed(path, X=np.zeros((100, 100, 101), np.float32), wn=np.linspace(900, 1800, 101))
    for read in (read_core, read_outline):
        with pytest.raises(BadInput, match=r"'X' unpacks from 4\.. kB to 4.0 MB \(100 × 100 × 101 values\)"):
            read(path)
    path = write_matlab(tmp_path / "core_2.mat", {"X": np.zeros((100, 100, 101)), "wn": np.arange(101.0) + 900}, False)
    refuse(path, "'X' unpacks from .* kB to 8.1 MB")


def test_an_array_of_another_size_than_its_header_says_is_refused(tmp_path: Path, core) -> None:
    path = tmp_path / "core_1.npz"
    claim = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        claim, {"descr": "<f4", "fortran_order": False, "shape": (32000, 32000, 32000)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", claim.getvalue() + b"\0" * 64)
        wavenumbers = io.BytesIO()
        np.save(wavenumbers, core["wn"])
        archive.writestr("wn.npy", wavenumbers.getvalue())
    refuse(path, r"'X' of 32000 × 32000 × 32000 values promises 131.1 TB, which the .* cannot hold")
    sidecar = tmp_path / "core_2.labels.npy"
    sidecar.write_bytes(claim.getvalue() + b"\0" * 64)
    np.savez(tmp_path / "core_2.npz", X=core["X"], wn=core["wn"])
    refuse(tmp_path / "core_2.npz", "core_2.labels.npy: not a readable NPY file")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lines": "32000", "samples": "32000", "bands": "32000"}, "14140 bytes, but core_1.hdr says 131072"),
        ({"lines": "-5"}, "none can be below 1"),
        ({"bands": "0"}, "none can be below 1"),
        ({"lines": "five"}, "not a readable ENVI image"),
        ({"samples": "1e400"}, "not a readable ENVI image"),
        ({"header offset": "-8"}, "nor the offset below 0"),
        ({"data type": "99"}, "not a readable ENVI image"),
        ({"byte order": "middle"}, "not a readable ENVI image"),
        ({"data ignore value": "none"}, "`data ignore value` 'none' is no number"),
        ({"reflectance scale factor": "0"}, "NaN or infinite|every spectrum"),
        ({"wavelength": "1000"}, "wavenumbers are float64"),
        ({"wavelength units": "{a, b}"}, "`wavelength units` is"),
    ],
)
def test_envi_values_that_are_wrong(tmp_path: Path, core, changed: dict[str, str], said: str) -> None:
    header = write_envi(tmp_path, core)
    lines = [line for line in header.read_text().splitlines() if line.partition("=")[0].strip() not in changed]
    header.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in changed.items())]) + "\n")
    refuse(header, said)


def test_variables_that_are_no_numbers_are_refused(tmp_path: Path, core) -> None:
    plain = {"X": core["X"], "wn": core["wn"][None], "y": core["y"]}
    for changed in ({"X": "text"}, {"y": "text"}, {"wn": "text"}, {"delta_cm1": "abc"}, {"tissue_mask": "text"}):
        for v73 in (False, True):
            refuse(write_matlab(tmp_path / "core_1.mat", plain | changed, v73), "text|needed|<U")
    for odd in ({"a": 1}, np.array([[1, "a"]], object), scipy.sparse.eye(3).tocsc()):
        scipy.io.savemat(tmp_path / "core_2.mat", plain | {"y": odd})
        refuse(
            tmp_path / "core_2.mat", "'y' is a (struct|cell array|sparse array); numbers, or text for meta, are needed"
        )


def test_links_to_other_files_are_not_followed(tmp_path: Path, core) -> None:
    other = write_matlab(tmp_path / "other.mat", {"X": core["X"], "y": core["y"]}, True)
    (tmp_path / "raw").write_bytes(core["y"].astype("<f8").T.tobytes())

    def external(file: Any) -> None:
        file["y"] = h5py.ExternalLink(str(other), "/y")

    def soft(file: Any) -> None:
        file["elsewhere"] = core["y"]
        file["y"] = h5py.SoftLink("/elsewhere")

    def stored(file: Any) -> None:
        file.create_dataset("y", (7, 5), "<f8", external=[(str(tmp_path / "raw"), 0, 280)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((7, 5), "<f8")
        layout[:] = h5py.VirtualSource(str(other), "y", (7, 5))
        file.create_virtual_dataset("y", layout)

    def claims(file: Any) -> None:
        file.create_dataset("y", (32000, 32000, 320), "<f8", chunks=(1, 100, 100))

    faults = {
        external: "'y' is a link", soft: "'y' is a link", stored: "'y' lies in other files",
        virtual: "'y' lies in other files", claims: "'y' of 320 × 32000 × 32000 values promises",
    }  # fmt: skip
    for change, said in faults.items():
        path = write_matlab(tmp_path / "core_1.mat", {"X": core["X"], "wn": core["wn"][None]}, True)
        with h5py.File(path, "a") as file:
            change(file)
        refuse(path, said)


@pytest.mark.timeout(20)
def test_pipes_are_no_cores(tmp_path: Path) -> None:
    for name in ("core_1.npz", "core_1.mat", "core_1.hdr", "core_1.0", "core_1.dmt"):
        path = tmp_path / name
        os.mkfifo(path)
        refuse(path, "a named pipe|no tile|no such file")
        path.unlink()
    (tmp_path / "core_1.dat").touch()  # its header is a pipe
    os.mkfifo(tmp_path / "core_1.bsp")
    refuse(tmp_path / "core_1.dat", r"core_1\.bsp: a named pipe")


# ---------------------------------------------------------------- a missing library


@pytest.mark.parametrize(
    "package, name",
    [("spectral", "core_1.hdr"), ("agilent_format", "4_noimage_agg256.dat"), ("h5py", "core_1.mat"),
     ("brukeropus", "core_1.0")],
)  # fmt: skip
def test_a_library_that_is_not_installed_is_named(tmp_path: Path, core, monkeypatch, package: str, name: str) -> None:
    write_envi(tmp_path, core)
    agilent(tmp_path, "4_noimage*")
    write_matlab(tmp_path / "core_1.mat", {"X": core["X"], "wn": core["wn"]}, v73=True)
    write_opus(tmp_path / "core_1.0", core["wn"], core["X"][0, 0])
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Missing(package), *sys.meta_path])
    with pytest.raises(BadInput, match=rf"`uv pip install {package.replace('_', '-')}` adds it"):
        read_core(tmp_path / name)


class _Missing:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ImportError(name)


# ---------------------------------------------------------------- damage


def a_core_of(kind: str, folder: Path, core: dict[str, np.ndarray]) -> Path:
    if kind == "agilent":
        agilent(folder, "4_noimage*.dat", "4_noimage*.bsp")
        return folder / "4_noimage_agg256.dat"
    if kind == "opus":
        return write_opus(folder / "core_1.0", core["wn"], core["X"][0, 0])
    if kind.startswith("matlab"):
        return write_matlab(folder / "core_1.mat", {"X": core["X"], "wn": core["wn"][None]}, kind == "matlab 7.3")
    np.save(folder / "core_1.tissue.npy", core["tissue_mask"])
    if kind == "envi":
        return write_envi(folder, core)
    np.savez_compressed(folder / "core_1.npz", X=core["X"], wn=core["wn"], meta='{"patient_id": "P1"}')
    return folder / "core_1.npz"


@pytest.mark.parametrize("kind", ["npz", "envi", "agilent", "matlab 7", "matlab 7.3", "opus"])
def test_random_damage_is_refused_or_goes_unnoticed(tmp_path: Path, core, kind: str) -> None:
    """Whatever byte of whatever file is broken: a core comes back, or one message. Nothing else is raised."""
    path = a_core_of(kind, tmp_path, core)
    files = sorted(tmp_path.iterdir())
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        broken = bytearray(whole if rng.random() < 0.7 else whole[: rng.integers(len(whole))])
        for _ in range(int(rng.integers(1, 4)) if broken else 0):
            broken[rng.integers(min(len(broken), 300))] = rng.integers(256)
        file.write_bytes(bytes(broken))
        try:
            find_inputs(tmp_path)
            read_core(path)
        except BadInput:
            refused += 1
        file.write_bytes(whole)
    assert refused
    assert read_core(path).measured.all()
