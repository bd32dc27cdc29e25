"""Batches unpacked on the host hold what the device makes of packed ones, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput, RowSamples
from runner_core.testing import open_store
from runner_openkbp.config import demo
from runner_openkbp.project import OpenKBP
from runner_openkbp.samples import UnpackedSamples


def opened(root: Path, cache: Path, unpack: str, mode: str = "memmap"):
    config = demo()
    config.data.size, config.data.unpack = 32, unpack
    config.cache.dir, config.cache.mode = cache, mode
    project = OpenKBP(config)
    records = project.records(root)
    store = open_store(project, records)
    return project, project.samples(store, range(len(records)), "train")


@pytest.fixture
def root(write_boxes: Callable[..., Path]) -> Path:
    write_boxes("pt_1")
    write_boxes("pt_2", without=("LeftParotid",), boxes={"PTV63": (60, 80, 50, 60, 50, 70)})
    return write_boxes("pt_3", boxes={"Larynx": (50, 60, 50, 60, 54, 60)}).parent


@pytest.mark.parametrize("augmented", [False, True])
def test_what_the_network_reads_is_the_same(root: Path, tmp_path: Path, augmented: bool) -> None:
    """Loss and gradients are the same too: nothing else is known about the origin of a batch."""
    import keras

    made = []
    for unpack, kind in (("device", RowSamples), ("host", UnpackedSamples)):
        project, samples = opened(root, tmp_path / "cache", unpack)
        assert type(samples) is kind
        arrays = {name: np.empty((3, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
        samples.fill(np.array([2, 0, 1]), np.arange(3), 5, 0, arrays)
        rng = keras.random.SeedGenerator(7) if augmented else None
        made.append((arrays, project.on_device(dict(arrays), {}, rng)))
    (packed, expected), (plain, found) = made
    assert set(plain) == {"ct", "rois", "dose", "record"}
    assert all(array.dtype == np.float32 for name, array in plain.items() if name != "record")
    sizes = [sum(array.nbytes for array in batch.values()) for batch in (packed, plain)]
    assert sizes[1] > 8 * sizes[0]
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_it_is_no_key_of_the_cache(root: Path, tmp_path: Path) -> None:
    _, packed = opened(root, tmp_path / "cache", "device")
    _, plain = opened(root, tmp_path / "cache", "host")
    assert packed.store.identity == plain.store.identity
    assert packed.store.folder == plain.store.folder


def test_a_set_on_the_device_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"data\.unpack host.*cache\.mode"):
        opened(root, tmp_path / "cache", "host", "device")
