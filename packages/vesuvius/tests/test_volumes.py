"""Volumes: every format comes back as it was written, and every fault of a file is one message that names it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numcodecs
import numpy as np
import pytest
import tifffile
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from runner_core import BadInput, Record
from runner_vesuvius import volumes
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

VOLUME = np.random.default_rng(0).integers(0, 256, (5, 16, 19), np.uint8)
SMOOTH = np.add.outer(np.arange(6), np.add.outer(np.arange(40), np.arange(30))).astype(np.uint8)

ON_FILES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_tif(**options: Any) -> Callable[[Path, np.ndarray], Path]:
    def write(folder: Path, volume: np.ndarray) -> Path:
        tifffile.imwrite(folder / "v.tif", volume, photometric="minisblack", **options)
        return folder / "v.tif"

    return write


def as_npy(folder: Path, volume: np.ndarray) -> Path:
    np.save(folder / "v.npy", volume)
    return folder / "v.npy"


def as_fortran_npy(folder: Path, volume: np.ndarray) -> Path:
    return as_npy(folder, np.asfortranarray(volume))


def as_nifti(ending: str, order: str = "<", kind: Any = nibabel.Nifti1Image) -> Callable[[Path, np.ndarray], Path]:
    def write(folder: Path, volume: np.ndarray) -> Path:
        path = folder / f"v{ending}"
        header = kind.header_class(endianness=order)
        header.set_data_dtype(volume.dtype.newbyteorder(order))
        nibabel.save(kind(volume.T, np.diag([2.0, -1, 3, 1]), header), path)
        return path

    return write


def as_zarr(version: int, inside: str = "", scales: str = "") -> Callable[[Path, np.ndarray], Path]:
    """`inside`: in a group, under this name; `scales`: the group says so by OME-Zarr of this version."""

    def write(folder: Path, volume: np.ndarray) -> Path:
        path = folder / "v.zarr"
        shutil.rmtree(path, ignore_errors=True)
        chunks = tuple(min(8, n) for n in volume.shape)
        if not inside:
            zarr.create_array(path, data=volume, chunks=chunks, zarr_format=version)
            return path
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array(inside, data=volume, chunks=chunks)
        levels = [{"datasets": [{"path": inside}, {"path": "half"}]}]
        if scales:
            group.create_array("half", data=volume[::2, ::2, ::2])
            group.attrs.update({"multiscales": levels} if scales == "0.4" else {"ome": {"multiscales": levels}})
        return path

    return write


FORMATS = {
    "lzw": as_tif(compression="lzw"),
    "lzw with predictor": as_tif(compression="lzw", predictor=True),
    "deflate": as_tif(compression="zlib"),
    "uncompressed": as_tif(),
    "no metadata": as_tif(metadata=None),
    "tiles": as_tif(tile=(16, 16), compression="lzw"),
    "strips": as_tif(rowsperstrip=3, compression="lzw"),
    "bigtiff": as_tif(bigtiff=True, compression="lzw"),
    "big endian": as_tif(byteorder=">", compression="lzw"),
    "imagej": as_tif(imagej=True),
    "npy": as_npy,
    "fortran npy": as_fortran_npy,
    "nii": as_nifti(".nii"),
    "nii.gz": as_nifti(".nii.gz"),
    "big endian nii.gz": as_nifti(".nii.gz", ">"),
    "nifti 2": as_nifti(".nii.gz", "<", nibabel.Nifti2Image),
    "zarr 2": as_zarr(2),
    "zarr 3": as_zarr(3),
    "zarr group": as_zarr(3, "volume"),
    "OME-Zarr 0.4": as_zarr(2, "0", "0.4"),
    "OME-Zarr 0.5": as_zarr(3, "s0", "0.5"),
}


def refused(read: Callable[[Path], Any], path: Path, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def read_or_refused(path: Path) -> np.ndarray | None:
    """None where it was refused, by one line that names it."""
    try:
        return volumes.read_image(path)
    except BadInput as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
    return None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_what_was_written_is_read(tmp_path: Path, name: str, dtype: Any) -> None:
    """16 bits by their high byte."""
    volume = VOLUME.astype(dtype)
    if dtype == np.uint16:
        volume = volume * np.uint16(256) + np.uint16(77)
    path = FORMATS[name](tmp_path, volume)
    read = volumes.read_image(path)
    assert read.dtype == np.uint8
    assert read.flags.c_contiguous
    assert np.array_equal(read, VOLUME)
    shape, kind = volumes.outline(path)
    assert shape == VOLUME.shape
    assert kind.newbyteorder("=") == dtype


@settings(ON_FILES, max_examples=25)
@given(data=st.data(), shape=st.tuples(st.integers(2, 6), st.integers(1, 6), st.integers(1, 6)))
def test_any_label_comes_back(tmp_path: Path, data: st.DataObject, shape: tuple[int, int, int]) -> None:
    volume = data.draw(arrays(np.uint8, shape, elements=st.integers(0, 2)))
    volumes.write_tif(tmp_path / "label.tif", volume)
    assert np.array_equal(volumes.read_label(tmp_path / "label.tif"), volume)
    for write in (as_npy, as_zarr(2), as_zarr(3)):
        assert np.array_equal(volumes.read_label(write(tmp_path, volume)), volume)


def test_submissions_are_read_by_others(tmp_path: Path) -> None:
    """A page for each slice, LZW, uint8: also by Pillow."""
    volumes.write_tif(tmp_path / "s.tif", VOLUME)
    with tifffile.TiffFile(tmp_path / "s.tif") as tif:
        assert [(page.compression.name, page.shape) for page in tif.pages] == [("LZW", VOLUME.shape[1:])] * 5
        assert np.array_equal(tif.asarray(), VOLUME)
    with Image.open(tmp_path / "s.tif") as image:
        assert image.n_frames == 5
        for i, page in enumerate(VOLUME):
            image.seek(i)
            assert np.array_equal(np.asarray(image), page)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, *args: Any, **options: Any) -> None:
        Path(path).write_bytes(b"II*\0")
        raise OSError("no space")

    volumes.write_tif(tmp_path / "s.tif", VOLUME)
    monkeypatch.setattr(tifffile, "imwrite", half)
    with pytest.raises(OSError, match="no space"):
        volumes.write_tif(tmp_path / "s.tif", VOLUME[:2])
    assert [p.name for p in tmp_path.iterdir()] == ["s.tif"]
    assert np.array_equal(volumes.read_image(tmp_path / "s.tif"), VOLUME)


@pytest.mark.parametrize("volume", [VOLUME[0], VOLUME.astype(np.float32), VOLUME[:0]])
def test_only_volumes_are_written(tmp_path: Path, volume: np.ndarray) -> None:
    with pytest.raises(ValueError, match="is written, not"):
        volumes.write_tif(tmp_path / "s.tif", volume)


# ---------------------------------------------------------------- faults


@ON_FILES
@given(name=st.sampled_from([n for n in FORMATS if "arr" not in n]), keep=st.floats(0, 1, exclude_max=True))
def test_truncated_files(tmp_path: Path, name: str, keep: float) -> None:
    """Wherever a file ends too early, it is refused; what follows the last page's data (metadata) may be missing."""
    path = FORMATS[name](tmp_path, SMOOTH)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    read = read_or_refused(path)
    if read is not None:
        assert path.suffix == ".tif"
        assert np.array_equal(read, SMOOTH)
        assert keep > 0.9


@pytest.mark.parametrize("name", ["lzw", "deflate", "uncompressed", "bigtiff", "npy"])
def test_every_early_end_of_a_small_file(tmp_path: Path, name: str) -> None:
    """Nothing is read that is not all there: no page less, no zeros for what is missing."""
    path = FORMATS[name](tmp_path, SMOOTH[:3, :6, :5])
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        read = read_or_refused(path)
        assert read is None or np.array_equal(read, SMOOTH[:3, :6, :5])


@ON_FILES
@given(name=st.sampled_from([n for n in FORMATS if "arr" not in n]), place=st.floats(0, 1), bits=st.integers(1, 255))
def test_damaged_files(tmp_path: Path, name: str, place: float, bits: int) -> None:
    """A changed byte gives another volume, or one message."""
    path = FORMATS[name](tmp_path, SMOOTH)
    data = bytearray(path.read_bytes())
    data[min(int(place * len(data)), len(data) - 1)] ^= bits
    path.write_bytes(bytes(data))
    read = read_or_refused(path)
    assert read is None or read.dtype == np.uint8


@settings(ON_FILES, max_examples=25)
@given(version=st.sampled_from([2, 3]), which=st.integers(0, 100), keep=st.floats(0, 0.99))
def test_truncated_zarr(tmp_path: Path, version: int, which: int, keep: float) -> None:
    path = as_zarr(version)(tmp_path, SMOOTH)
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".zattrs")
    file = files[which % len(files)]
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    refused(volumes.read_image, path, "truncated or damaged|zarr")


@pytest.mark.parametrize("content", [b"", b"II*\0", b"not a volume" * 100, b"PK\x03\x04" * 20, b"\x89PNG" * 30])
@pytest.mark.parametrize("suffix", [".tif", ".npy", ".nii", ".nii.gz"])
def test_other_content(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"v{suffix}"
    path.write_bytes(content)
    refused(volumes.read_image, path, "truncated or damaged")


def test_a_header_whose_shape_is_none(tmp_path: Path) -> None:
    path = as_npy(tmp_path, VOLUME)
    path.write_bytes(path.read_bytes().replace(b"(5, 16, 19)", b"(5,(16,19))"))
    refused(volumes.read_image, path, "truncated or damaged")


def test_a_scaled_nifti_is_refused(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(VOLUME.T, np.eye(4))
    image.header.set_slope_inter(2.0, 10.0)
    nibabel.save(image, tmp_path / "v.nii.gz")
    refused(volumes.read_image, tmp_path / "v.nii.gz", r"its header scales the values \(· 2 \+ 10\).* Save it as uint8")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.full((2, 2, 2), {}, object), allow_pickle=True)
    refused(volumes.read_image, tmp_path / "v.npy", "voxels of type object")


def test_missing_other_and_unreadable_files(tmp_path: Path) -> None:
    refused(volumes.read_image, tmp_path / "v.tif", "no such file")
    (tmp_path / "v.png").write_bytes(b"")
    refused(
        volumes.read_image,
        tmp_path / "v.png",
        r"not a format that is read here \(\.tif, \.tiff, \.npy, \.zarr, \.nii\.gz, \.nii\)",
    )
    (tmp_path / "w.tif").mkdir()
    refused(volumes.read_image, tmp_path / "w.tif", "a folder")
    (tmp_path / "w.zarr").write_bytes(b"")
    refused(volumes.read_image, tmp_path / "w.zarr", "zarr arrays are folders")
    if os.geteuid():
        path = as_npy(tmp_path, VOLUME)
        path.chmod(0)
        refused(volumes.read_image, path, r"cannot be read \(Permission denied\)")


@pytest.mark.parametrize("write", [as_tif(), as_npy, as_zarr(2), as_zarr(3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.float16])
def test_other_types_of_scans(tmp_path: Path, write: Any, dtype: Any) -> None:
    path = write(tmp_path, VOLUME.astype(dtype))
    refused(volumes.read_image, path, rf"voxels of type {np.dtype(dtype)}; .*np\.uint8")


def test_masks_are_no_scans(tmp_path: Path) -> None:
    refused(volumes.read_image, as_npy(tmp_path, VOLUME > 9), "type bool; .*Is this a mask")


def test_nan_is_never_read(tmp_path: Path) -> None:
    path = as_npy(tmp_path, np.full((3, 3, 3), np.nan))
    refused(volumes.read_image, path, "float64")
    refused(volumes.read_label, path, "labels of type float64")


def test_slices_that_are_no_volume(tmp_path: Path) -> None:
    refused(volumes.read_image, as_npy(tmp_path, VOLUME[0]), r"2-D \(16 × 19\)")
    refused(volumes.read_image, as_tif()(tmp_path, VOLUME[0]), "2-D.*Join the slices")
    refused(volumes.read_image, as_npy(tmp_path, VOLUME[None]), r"4-D \(1 × 5 × 16 × 19\)")
    refused(volumes.read_image, as_npy(tmp_path, VOLUME[:0]), r"empty \(0 × 16 × 19\)")
    refused(volumes.read_image, as_npy(tmp_path, np.stack([VOLUME] * 3, -1)), "slices of 3 channels")


PICTURE = np.random.default_rng(1).integers(0, 256, (40, 36, 4), np.uint8)
"""A picture with transparency."""


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "LA", "P", "L", "1"])
def test_pictures_are_no_volumes(tmp_path: Path, mode: str) -> None:
    Image.fromarray(PICTURE, "RGBA").convert("RGB" if mode in ("CMYK", "P") else "RGBA").convert(mode).save(
        tmp_path / "v.tif"
    )
    message = "2-D" if mode in "PL1" else rf"{3 if mode == 'RGB' else len(mode)} values a pixel \("
    refused(volumes.read_image, tmp_path / "v.tif", message)
    refused(volumes.read_label, tmp_path / "v.tif", message)


def test_pictures_in_planes_and_stacks_in_colours_are_no_volumes(tmp_path: Path) -> None:
    path = tmp_path / "v.tif"
    tifffile.imwrite(path, PICTURE[..., :3].transpose(2, 0, 1), photometric="rgb", planarconfig="separate")
    refused(volumes.read_image, path, r"3 values a pixel \(RGB\)")
    tifffile.imwrite(path, np.stack([VOLUME] * 3, -1), photometric="rgb")
    refused(volumes.read_image, path, r"3 values a pixel \(RGB\)")
    tifffile.imwrite(path, np.stack([VOLUME] * 5, -1), photometric="minisblack", planarconfig="contig")
    refused(volumes.read_image, path, r"5 values a pixel \(MINISBLACK\)")
    tifffile.imwrite(path, VOLUME % 3, photometric="palette", colormap=np.arange(768, dtype=np.uint16).reshape(3, -1))
    refused(volumes.read_image, path, "a palette image")
    assert np.array_equal(volumes.read_label(path), VOLUME % 3)  # its values are the labels
    tifffile.imwrite(
        path, VOLUME, photometric="palette", colormap=np.stack([np.arange(256, dtype=np.uint16) * 257] * 3)
    )
    assert np.array_equal(volumes.read_image(path), VOLUME)  # the colours are greys


@pytest.mark.parametrize("shape", [(40, 36, 3), (40, 36, 4), (3, 40, 36), (40, 36, 1), (1, 40, 36)])
@pytest.mark.parametrize("write", [as_npy, as_zarr(3)])
def test_arrays_of_a_picture_are_no_volumes(tmp_path: Path, write: Any, shape: tuple[int, ...]) -> None:
    refused(volumes.read_image, write(tmp_path, np.zeros(shape, np.uint8)), r"a picture \(of \d channel")


@pytest.mark.parametrize(
    "options, axes",
    [
        ({"imagej": True, "metadata": {"axes": "ZCYX"}}, "Z 5, C 2"),
        ({"imagej": True, "metadata": {"axes": "TZYX"}}, "T 5, Z 2"),
        ({"ome": True, "metadata": {"axes": "CZYX"}}, "C 5, Z 2"),
        ({}, "Q 5, Q 2"),
    ],
)
def test_several_channels_or_times_are_no_depth(tmp_path: Path, options: dict[str, Any], axes: str) -> None:
    """A single axis of slices that ImageJ calls times is a depth: it calls those of any stack so."""
    path = tmp_path / "v.tif"
    tifffile.imwrite(path, np.stack([VOLUME] * 2, 1), photometric="minisblack", **options)
    refused(volumes.read_image, path, f"4 axes \\({axes}, Y 16, X 19\\)")
    if options:
        options["metadata"]["axes"] = options["metadata"]["axes"].replace("Z", "")
        tifffile.imwrite(path, VOLUME, photometric="minisblack", **options)
        assert np.array_equal(volumes.read_image(path), VOLUME)


def test_zarr_channels_are_no_depth(tmp_path: Path) -> None:
    """Whether dimension names say it or OME-Zarr's axes do."""
    zarr.create_array(tmp_path / "v.zarr", data=VOLUME, dimension_names=("c", "y", "x"))
    refused(volumes.read_image, tmp_path / "v.zarr", "c 5: several channels or times")
    path = as_zarr(2, "0", "0.4")(tmp_path, VOLUME)
    group = zarr.open_group(path)
    (scales,) = group.attrs["multiscales"]
    for names, refusal in (("tyx", True), ("zyx", False)):
        group.attrs["multiscales"] = [scales | {"axes": [{"name": name} for name in names]}]
        if refusal:
            refused(volumes.read_image, path, "t 5: several channels or times")
        else:
            assert np.array_equal(volumes.read_image(path), VOLUME)


def test_pages_of_different_size_or_type(tmp_path: Path) -> None:
    for last in (VOLUME[0, :9], VOLUME[0].astype(np.uint16)):
        with tifffile.TiffWriter(tmp_path / "v.tif") as tif:
            for page in (VOLUME[0], VOLUME[1], last):
                tif.write(page, contiguous=False)
        refused(volumes.read_image, tmp_path / "v.tif", "page 3 is .* the first is uint8")


def test_pages_in_a_circle(tmp_path: Path) -> None:
    path = as_tif(compression="lzw", metadata=None)(tmp_path, VOLUME)
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tif:
        first, last = tif.pages[0].offset, tif.pages[-1].aspage()
    place = last.offset + 2 + 12 * struct.unpack_from("<H", data, last.offset)[0]
    struct.pack_into("<I", data, place, first)
    path.write_bytes(bytes(data))
    refused(volumes.read_image, path, "run in a circle")


def test_absurd_sizes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = as_zarr(3)(tmp_path, VOLUME)
    header = json.loads((path / "zarr.json").read_text())
    header["shape"] = [10**6] * 3
    (path / "zarr.json").write_text(json.dumps(header))
    refused(volumes.read_image, path, r"1000000 × 1000000 × 1000000 .* take 1000000\.0 TB of memory, and .* are free")
    path = as_tif(compression="lzw", metadata=None)(tmp_path, VOLUME)
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tif:
        places = [page.tags[name].offset + 8 for page in tif.pages for name in ("ImageWidth", "ImageLength")]
    for place in places:
        struct.pack_into("<H", data, place, 0xFFFF)
        struct.pack_into("<H", data, place - 6, 3)
    path.write_bytes(bytes(data))
    refused(volumes.read_image, path, "of memory, and .* are free|truncated or damaged")


def write_npy_header(path: Path, shape: tuple[int, ...], dtype: str = "|u1", fortran: bool = False) -> Path:
    header = str({"descr": dtype, "fortran_order": fortran, "shape": shape}).encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return path


def test_headers_that_claim_more_than_the_file_has(tmp_path: Path) -> None:
    """Uncompressed voxels are as many bytes as the file has of them: what a page lacks is not the next one's."""
    refused(
        volumes.read_image, write_npy_header(tmp_path / "v.npy", (32_000,) * 3), r"32\.8 TB of values by its header"
    )
    path = as_tif(metadata=None)(tmp_path, VOLUME)
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tif:
        places = [page.tags[name].offset for page in tif.pages for name in ("ImageLength", "RowsPerStrip")]
    for place in places:
        struct.pack_into("<HIH", data, place + 2, 3, 1, 2 * VOLUME.shape[1])
    path.write_bytes(bytes(data))
    refused(volumes.read_image, path, "page 1 holds fewer voxels than its header says")


def test_tifs_of_more_pages_than_a_volume_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes.tif, "_MOST_PAGES", 4)
    refused(volumes.read_image, as_tif(metadata=None)(tmp_path, VOLUME), "more than 4 pages")


@pytest.mark.parametrize("codec", ["gzip", "zstd", "blosc"])
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_chunks_that_hold_more_than_a_chunk(tmp_path: Path, version: int, codec: str) -> None:
    """They are refused by their size, or by the size that their headers tell, before they are decoded."""
    path = tmp_path / "v.zarr"
    v3 = {"gzip": GzipCodec(), "zstd": ZstdCodec(), "blosc": BloscCodec()}
    compressor: Any = numcodecs.get_codec({"id": codec}) if version == 2 else v3[codec]
    zarr.create_array(path, data=SMOOTH, chunks=SMOOTH.shape, zarr_format=version, compressors=compressor)
    assert np.array_equal(volumes.read_image(path), SMOOTH)
    (chunk,) = (p for p in path.rglob("*") if p.is_file() and p.name[0] in "0123456789")
    packed = numcodecs.get_codec({"id": codec})
    chunk.write_bytes(packed.encode(np.zeros(50_000_000, np.uint8)))
    refused(volumes.read_image, path, r"chunk \S+ (takes|holds) [\d,]+ bytes, a whole one is 7,200")


def test_zarrs_of_more_chunks_than_can_be_read(tmp_path: Path) -> None:
    path = as_zarr(3)(tmp_path, VOLUME)
    header = json.loads((path / "zarr.json").read_text())
    header["shape"] = [300] * 3
    header["chunk_grid"]["configuration"]["chunk_shape"] = [1] * 3
    (path / "zarr.json").write_text(json.dumps(header))
    refused(volumes.read_image, path, "it has 27,000,000 chunks; 262,144 are the most")


@pytest.mark.parametrize("where", ["compressor", "filters"])
def test_no_chunk_of_a_zarr_is_unpickled(tmp_path: Path, where: str) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    path = tmp_path / "v.zarr"
    zarr.create_array(path, data=VOLUME, chunks=VOLUME.shape, zarr_format=2, compressors=None)
    header = json.loads((path / ".zarray").read_text())
    header[where] = {"id": "pickle", "protocol": 5} if where == "compressor" else [{"id": "pickle", "protocol": 5}]
    (path / ".zarray").write_text(json.dumps(header))
    (path / "0.0.0").write_bytes(pickle.dumps(Harm()))
    refused(volumes.read_image, path, "truncated or damaged")
    assert not (tmp_path / "harm").exists()


def test_what_is_mapped_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume larger than the memory can be read from an npy file of uint8, unless its axes are turned."""
    monkeypatch.setattr("runner_core.base.files.available_ram", lambda: 100)
    read = volumes.read_image(as_npy(tmp_path, VOLUME))
    assert not read.flags.owndata
    assert np.array_equal(read, VOLUME)
    refused(volumes.read_image, as_fortran_npy(tmp_path, VOLUME), "take 1.5 kB of memory, and 100 B are free")
    refused(volumes.read_image, as_tif()(tmp_path, VOLUME), "of memory, and .* are free")
    refused(volumes.read_image, as_npy(tmp_path, VOLUME.astype(np.uint16)), "of memory, and .* are free")


def test_work_that_memory_cannot_hold_is_refused_before_reading(
    tmp_path: Path, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing and predicting take more than the volume itself."""
    image, label = as_npy(tmp_path, VOLUME), tmp_path / "label.npy"
    np.save(label, VOLUME % 3)
    alone, pair = Record("v", "s", {"image": image}), Record("v", "s", {"image": image, "label": label})
    monkeypatch.setattr("runner_core.base.files.available_ram", lambda: 10 * VOLUME.size)
    project.decode(alone)
    with pytest.raises(BadInput, match=r"preparing 5 × 16 × 19 voxels takes 24.3 kB of memory, and 15.2 kB are free"):
        project.decode(pair)
    monkeypatch.setattr("runner_core.base.files.available_ram", lambda: 1 << 50)
    huge = write_npy_header(tmp_path / "huge.npy", (1300,) * 3)
    with pytest.raises(BadInput, match=r"1300 × 1300 × 1300 voxels; fewer than 2³¹"):
        project.decode(Record("v", "s", {"image": huge}))


@pytest.mark.parametrize(
    "image, message",
    [
        (np.full_like(VOLUME, 7), "every voxel is 7. Export it again"),
        (VOLUME.astype(np.uint16), "these are 8 bits in a 16-bit file"),
    ],
)
def test_scans_without_any_detail_are_not_trained_on(tmp_path: Path, project: Any, image: Any, message: str) -> None:
    """`check` calls them errors that training refuses."""
    path, label = as_npy(tmp_path, image), tmp_path / "label.npy"
    np.save(label, VOLUME % 3)
    refused(lambda path: project.decode(Record("v", "s", {"image": path, "label": label})), path, message)
    project.decode(Record("v", "s", {"image": path}))  # predicting warns


def test_zarr_groups_that_say_too_little(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "v.zarr", mode="w")
    refused(volumes.read_image, tmp_path / "v.zarr", r"0 arrays \(none\)")
    for name in "ab":
        group.create_array(name, data=VOLUME)
    refused(volumes.read_image, tmp_path / "v.zarr", r"2 arrays \(a, b\)")
    group.attrs["multiscales"] = [{"datasets": [{"path": "../../etc"}]}]
    refused(volumes.read_image, tmp_path / "v.zarr", "truncated or damaged")


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.int8])
def test_labels_of_any_integers(tmp_path: Path, dtype: Any) -> None:
    label = (VOLUME % 3).astype(dtype)
    read = volumes.read_label(as_npy(tmp_path, label))
    assert read.dtype == np.uint8
    assert np.array_equal(read, label)


def test_labels_with_other_values(tmp_path: Path) -> None:
    label = VOLUME % 3
    label[0, 0, :4] = 255
    label[1, 0, 0] = 7
    refused(volumes.read_label, as_tif()(tmp_path, label), "holds 7 in 1 voxel, 255 in 4 voxels; labels are 0 backg")
    refused(
        volumes.read_label,
        as_npy(tmp_path, label.astype(np.int16) * -1),
        "holds -255 in 4 voxels, -7 in 1 voxel, -2 in ",
    )
    refused(volumes.read_label, as_npy(tmp_path, VOLUME), "3 in .* 7 in .* and 248 more")


def test_labels_of_other_types(tmp_path: Path) -> None:
    refused(volumes.read_label, as_npy(tmp_path, (VOLUME % 3).astype(np.float32)), "labels of type float32")


@pytest.mark.parametrize("write", [as_npy, as_zarr(2), as_zarr(3)])
def test_labels_of_true_and_false(tmp_path: Path, write: Any) -> None:
    read = volumes.read_label(write(tmp_path, VOLUME > 3))
    assert read.dtype == np.uint8
    assert np.array_equal(read, VOLUME > 3)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_axes_of_length_1_before_a_zarrs_volume_are_dropped(tmp_path: Path, version: str) -> None:
    """Of OME-Zarr's five axes, time and channel are dropped unless they hold more than one volume."""
    write = as_zarr(2 if version == "0.4" else 3, "0", version)
    path = write(tmp_path, VOLUME[None, None])
    assert volumes.outline(path) == (VOLUME.shape, VOLUME.dtype)
    assert np.array_equal(volumes.read_image(path), VOLUME)
    label = volumes.read_label(write(tmp_path, (VOLUME % 3)[None]))
    assert np.array_equal(label, VOLUME % 3)
    refused(volumes.read_image, write(tmp_path, np.stack([VOLUME, VOLUME])[None]), r"4-D \(2 × 5 × 16 × 19\)")
