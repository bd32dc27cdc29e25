"""Stored arrays read in parts: what is decompressed for it, and files that runner wrote before."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core.data.cache.build import BLOSC2, FLAT, ArrayWriter
from runner_core.data.cache.storage import BLOCK, BloscArray

SHAPES = [(5, 40, 300, 2), (3, 90, 200, 2), (0, 40, 300, 2), (4, 7, 5, 2)]


def written(path, storage, arrays):
    writer = ArrayWriter(path, storage)
    for array in arrays:
        writer.append(array)
    meta = writer.finish()
    return storage.open(path, np.dtype(meta.dtype), meta.shapes)


def noise(shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 250, shape).astype(dtype)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """(the arrays, the same in each storage): rows of more than a block, and of less."""
    folder = tmp_path_factory.mktemp("stored")
    arrays = [noise(shape) for shape in SHAPES]
    return arrays, [written(folder / s.name, s, arrays) for s in (FLAT, BLOSC2)]


@settings(deadline=None, max_examples=200)  # the machine is shared
@given(data=st.data())
def test_every_region_is_what_slicing_gives(stored, data):
    arrays, storages = stored
    record = data.draw(st.sampled_from(range(len(arrays))))
    sides = [st.slices(side) | st.just(slice(None)) for side in arrays[record].shape]
    region = data.draw(st.integers(0, 4).flatmap(lambda axes: st.tuples(*sides[:axes])))
    for array in storages:
        assert np.array_equal(array.read(record, region), arrays[record][region])


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float32", "complex128", "S3"])
def test_wide_images_and_items_of_any_size(tmp_path, dtype):
    """Rows of an image are lines; larger ones than a block, as of many bands, are read in part as well."""
    image = noise((20, 9000), np.int64).astype(dtype)
    array = written(tmp_path / "a", BLOSC2, [image, image[:, ::-1]])
    assert np.array_equal(array.read(1, (slice(3, 9), slice(5000, 5100))), image[3:9, ::-1][:, 5000:5100])
    assert np.array_equal(array.read(0), image)
    out = np.empty((2, 9000), image.dtype)
    array.take(np.array([39, 4]), out)
    assert np.array_equal(out, np.stack([image[19, ::-1], image[4]]))


class Counted:
    """Chunks that count the items they are asked for."""

    def __init__(self, chunks):
        self.chunks, self.items = chunks, 0

    def get_slice(self, start, stop, out):
        self.items += stop - start
        return self.chunks.get_slice(start, stop, out)


def test_of_large_rows_only_the_lines_asked_for_are_decompressed(tmp_path):
    volume = noise((12, 320, 320))
    array = written(tmp_path / "a", BLOSC2, [volume])
    assert array._chunks.blocksize == BLOCK < 320 * 320
    counted = array.__dict__["_chunks"] = Counted(array._chunks)
    region = (slice(2, 8), slice(100, 150), slice(7, 90))
    assert np.array_equal(array.read(0, region), volume[region])
    assert counted.items == 6 * 50 * 320


def test_small_rows_are_read_at_once(tmp_path):
    """Each call costs a block: not one for every row."""
    volume = noise((60, 16, 16))
    array = written(tmp_path / "a", BLOSC2, [volume])
    counted = array.__dict__["_chunks"] = Counted(array._chunks)
    region = (slice(2, 50), slice(3, 5), slice(7, 9))
    assert np.array_equal(array.read(0, region), volume[region])
    assert counted.items == 48 * 16 * 16


def test_a_file_in_blocks_of_another_size_is_read(tmp_path):
    """Caches that were written before there were blocks of lines: a row was a block."""
    volume = noise((6, 200, 300))
    chunks = blosc2.SChunk(chunksize=60_000, urlpath=str(tmp_path / "a"), contiguous=True, cparams={"typesize": 1})
    for row in volume:
        chunks.append_data(row)
    del chunks
    array = BloscArray(tmp_path / "a", volume.dtype, [volume.shape])
    region = (slice(1, 4), slice(20, 150), slice(7, 90))
    assert np.array_equal(array.read(0, region), volume[region])
    out = np.empty((2, 200, 300), np.uint8)
    array.take(np.array([5, 0]), out)
    assert np.array_equal(out, volume[[5, 0]])


def test_an_array_that_was_replaced_by_a_stored_expression_is_not_opened(tmp_path):
    """blosc2 would evaluate it: before 4.14.1 code that is stored in a file could run so."""
    blosc2.asarray(np.ones(4, np.uint8), urlpath=str(tmp_path / "operand.b2nd"), mode="w")
    operand = blosc2.open(str(tmp_path / "operand.b2nd"), mode="r")
    (operand + 1).save(urlpath=str(tmp_path / "array.b2nd"))
    with pytest.raises(ValueError, match="lazyexpr"):
        BloscArray(tmp_path / "array.b2nd", np.dtype(np.uint8), [(4,)]).read(0)
