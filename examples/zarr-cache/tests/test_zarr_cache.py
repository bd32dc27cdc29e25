"""The storage alone: what is written is read, whole, by region and by row."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import zarr
from zarr_cache import BLOCK, ZarrStorage


def stored(path, arrays):
    storage = ZarrStorage()
    writer = storage.create(path, arrays[0])
    for array in arrays:
        writer.append(array)
    writer.close()
    return pickle.loads(pickle.dumps(storage.open(path, arrays[0].dtype, [a.shape for a in arrays])))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_slices_are_gathered(tmp_path, rng):
    slices = [rng.integers(0, 9, (n, 300, 200), np.uint16) for n in (3, 1, 5)]
    array = stored(tmp_path / "a", slices)
    rows = np.array([8, 0, 3, 3, 1])
    out = np.empty((5, 300, 200), np.uint16)
    array.take(rows, out)
    assert np.array_equal(out, np.concatenate(slices)[rows])
    assert zarr.open_array(tmp_path / "a" / "0").chunks == (1, 300, 200)


def test_volumes_are_read_by_region(tmp_path, rng):
    volumes = [rng.normal(size=shape).astype(np.float32) for shape in ((70, 65, 9), (66, 80, 7), (64, 65, 8))]
    array = stored(tmp_path / "a", volumes)
    region = (slice(3, 67), slice(10, 20), slice(0, 9, 2))
    for number, volume in enumerate(volumes):
        assert np.array_equal(array.read(number), volume)
        assert np.array_equal(array.read(number, region), volume[region])
        assert zarr.open_array(tmp_path / "a" / str(number)).chunks == (BLOCK, BLOCK, volume.shape[2])
    with pytest.raises(ValueError, match="rows of different shapes"):
        array.take(np.array([0]), np.empty((1, 65, 9), np.float32))


@pytest.mark.parametrize("array", [np.empty((0, 4), np.uint8), np.float32(3.5) * np.ones(()), np.zeros((2, 0, 3))])
def test_odd_shapes(tmp_path, array):
    read = stored(tmp_path / "a", [array]).read(0)
    assert read.shape == array.shape
    assert np.array_equal(read, array)


def test_the_estimate_is_what_the_disk_takes(tmp_path, rng):
    array = rng.integers(0, 3, (20, 64, 64), np.uint8)
    stored(tmp_path / "a", [array])
    taken = sum(f.stat().st_size for f in (tmp_path / "a").rglob("*") if f.is_file())
    assert ZarrStorage().bytes(array) == pytest.approx(taken, rel=0.1)
