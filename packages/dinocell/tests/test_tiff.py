"""16 bits stay 16 bits, on real images and through every compression; and what is refused, by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_core import BadInput, Record
from runner_dinocell import fields, tiff, windows
from runner_dinocell.config import CellConfig
from runner_dinocell.files import find_records

Write = Callable[..., Path]
Grey = Callable[..., np.ndarray]


def refused(path: Path, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        tiff.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("compression", [None, "lzw", "zlib", "zstd", "packbits"])
@pytest.mark.parametrize(
    "settings", [{}, {"tile": (16, 16)}, {"byteorder": ">"}, {"bigtiff": True}, {"rowsperstrip": 7}]
)
def test_every_grey_value_is_read(tmp_path: Path, write_image: Write, compression: str, settings: dict) -> None:
    image = np.arange(256 * 256, dtype=np.uint16).reshape(256, 256)
    path = write_image(tmp_path / "a.tif", image, compression=compression, **settings)
    read = tiff.read(path)
    assert read.dtype == np.uint16
    assert read.dtype.isnative
    assert np.array_equal(read, image)
    assert tiff.outline(path) == ((256, 256), 16)


def test_real_images_keep_their_grey_values(real_plate: Path, config: CellConfig) -> None:
    """Hundreds of grey values a channel, as tifffile reads them; not the few that 8 bits leave."""
    for record in find_records(real_plate, config):
        image = fields.decode(record).arrays["image"]
        assert (image.shape, image.dtype) == ((5, 520, 696), np.uint16)
        for channel, path in zip(image, record.files.values(), strict=True):
            assert np.array_equal(channel, tifffile.imread(path))
            assert len(np.unique(channel)) > 400 > len(np.unique(channel >> 8))


def test_8_bits_are_read_as_such(tmp_path: Path, write_image: Write) -> None:
    path = write_image(tmp_path / "a.tif", np.arange(100, dtype=np.uint8).reshape(10, 10))
    assert tiff.read(path).dtype == np.uint8
    assert tiff.outline(path) == ((10, 10), 8)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "image, message",
    [
        (np.zeros((3, 20, 30), np.uint16), "3 pages. One file holds one channel"),
        (np.zeros((20, 30, 3), np.uint8), "20 × 30 × 3 values, an image in colour.*in grey"),
        (np.zeros((20, 30), np.float32), "values of type float32; unsigned integers of 16 bits"),
        (np.zeros((20, 30), np.int16), "values of type int16"),
        (np.zeros((20, 30), np.uint32), "values of type uint32"),
        (np.zeros((20, 30), bool), "values of type bool"),
    ],
)
def test_other_images(tmp_path: Path, image: np.ndarray, message: str) -> None:
    path = tmp_path / "a.tif"
    kind = "rgb" if image.shape[-1] == 3 else "minisblack"
    tifffile.imwrite(path, image, photometric=kind)
    refused(path, message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "a.tif", r"no such file\. Restore it")
    refused(tmp_path, "cannot be read")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.tif").touch()
    refused(tmp_path / "a.tif", r"the file is empty\. Fetch or export it again")


@pytest.mark.parametrize("content", [b"x", b"II*\0", b"II*\0\x08\0\0\0", b"\x89PNG\r\n\x1a\n" + bytes(99), bytes(5000)])
def test_other_files_with_the_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tif").write_bytes(content)
    refused(tmp_path / "a.tif", "truncated or damaged, or no TIFF file")


@pytest.mark.parametrize("compression", [None, "lzw", "zlib"])
def test_a_truncated_file_is_refused_wherever_it_ends(
    tmp_path: Path, write_image: Write, compression: str, grey: Grey
) -> None:
    path = write_image(tmp_path / "a.tif", grey(), compression=compression, rowsperstrip=8)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:length])
        refused(path, "truncated or damaged|the file is empty")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_bad_input_or_an_image(tmp_path: Path, write_image: Write, grey: Grey, data: st.DataObject) -> None:
    """Bytes changed anywhere: either what is left is an image, or the message says whose."""
    path = write_image(tmp_path / "b.tif", grey((16, 16)), compression="zlib")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    said, image = "", np.empty((0, 0), np.uint16)
    try:
        image = tiff.read(path)
    except BadInput as error:
        said = str(error)
    assert said.startswith(f"{path}: ") or (not said and image.ndim == 2 and image.dtype in (np.uint8, np.uint16))


def test_a_header_that_claims_too_much(tmp_path: Path, write_image: Write, grey: Grey) -> None:
    """Nothing is allocated for it."""
    path = write_image(tmp_path / "a.tif", grey((64, 64)))
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tif:
        for name in ("ImageWidth", "ImageLength"):
            tag = tif.pages.first.aspage().tags[name]
            struct.pack_into("<HI", content, tag.offset + 2, 4, 1)
            struct.pack_into("<I", content, tag.offset + 8, 1_000_000)
    path.write_bytes(content)
    refused(path, "truncated or damaged")


# ---------------------------------------------------------------- a field's images together


def record(folder: Path, **images: np.ndarray) -> fields.Field:
    files = {}
    for name, image in images.items():
        files[name] = folder / f"{name}.tif"
        tifffile.imwrite(files[name], image, photometric="minisblack")
    return fields.Field("P/A01/1", "P", files, plate="P", well="A01", site="1", channels=("a", "b", "c"))


def test_a_field(tmp_path: Path, grey: Grey) -> None:
    made = record(tmp_path, c=grey(seed=3), a=grey(seed=1), b=grey(seed=2))
    decoded = fields.decode(made)
    assert decoded.meta == {"channels": ["a", "b", "c"]}
    assert (decoded.guide, len(decoded.spacing)) == ("image", 3)
    expected = np.stack([grey(seed=seed) for seed in (1, 2, 3)])
    assert decoded.arrays["image"].dtype == np.uint16
    assert np.array_equal(decoded.arrays["image"], expected)


def test_a_missing_channel(tmp_path: Path, grey: Grey) -> None:
    made = record(tmp_path, a=grey(), c=grey())
    with pytest.raises(BadInput, match=r"P/A01/1: no image of channel b \(there are a, c\)\. Restore.*data\.channels"):
        fields.decode(made)


def test_8_bits_among_16(tmp_path: Path, grey: Grey) -> None:
    made = record(tmp_path, a=grey(), b=(grey() >> 8).astype(np.uint8), c=grey())
    with pytest.raises(BadInput, match=r"b\.tif: 8 bits a pixel, where other channels of P/A01/1 have 16.*as 16-bit"):
        fields.decode(made)
    narrow = (grey() >> 4).astype(np.uint8)
    decoded = fields.decode(record(tmp_path, a=narrow, b=narrow, c=narrow))
    assert decoded.arrays["image"].dtype == np.uint8


def test_another_size(tmp_path: Path, grey: Grey) -> None:
    made = record(tmp_path, a=grey((20, 24)), b=grey(), c=grey())
    with pytest.raises(BadInput, match=r"a\.tif: 20 × 24 pixels, where other channels of P/A01/1 have 40 × 48\."):
        fields.decode(made)


def test_a_record_of_another_kind_has_all_its_files(tmp_path: Path, grey: Grey) -> None:
    made = record(tmp_path, a=grey(), b=grey(), c=grey())
    plain = Record(made.key, made.group, {"c": made.files["c"]})
    assert fields.decode(plain).meta == {"channels": ["c"]}


# ---------------------------------------------------------------- what is prepared


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.uint8, np.uint16]),
    st.tuples(st.floats(0, 50), st.floats(50.5, 100)),
    st.integers(1, 3000),
)
def test_levels_are_numpys_percentiles(seed: int, kind: type, percentiles: tuple[float, float], top: int) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, min(top, np.iinfo(kind).max) + 1, (3, 7, 11)).astype(kind)
    made = windows.prepare(image, percentiles)
    expected = np.percentile(image.astype(np.float64), percentiles, axis=(1, 2)).T
    assert made["levels"].dtype == np.float32
    assert np.allclose(made["levels"], expected, rtol=1e-6, atol=1e-6)
    assert made["grey"].tolist() == [len(np.unique(channel)) for channel in image]
    assert made["image"] is image


def test_a_constant_channel_has_equal_levels() -> None:
    made = windows.prepare(np.full((2, 8, 8), 65535, np.uint16), (0.1, 99.9))
    assert made["levels"].tolist() == [[65535, 65535]] * 2
    assert made["grey"].tolist() == [1, 1]
