"""Training from volumes that memory cannot hold: the same voxels, places and targets as in memory, chunk by chunk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from runner_core import BadInput, PatchSamples, Record, RemoteConfig, location
from runner_vesuvius import lazy, targets, volumes
from runner_vesuvius.chunked import Region
from runner_vesuvius.config import ScrollConfig
from runner_vesuvius.files import find_records
from runner_vesuvius.newest import Newest, mark_of
from runner_vesuvius.project import Vesuvius

SHAPE, CHUNKS = (70, 66, 80), (16, 32, 20)


def write_zarr(path: Path, array: np.ndarray, chunks: tuple[int, ...] = CHUNKS, **how: Any) -> None:
    zarr.create_array(path, data=array, chunks=chunks, **how)


@pytest.fixture
def root(tmp_path: Path, make_sheets: Callable[..., Any]) -> Path:
    for number, key in enumerate(("a_0", "b_0")):
        image, label = make_sheets(SHAPE, number)
        write_zarr(tmp_path / "zarrs" / "images" / f"{key}.zarr", image, zarr_format=2 + number)
        write_zarr(tmp_path / "zarrs" / "labels" / f"{key}.zarr", label)
    return tmp_path / "zarrs"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No volume fits into memory."""
    monkeypatch.setattr(volumes, "MOST", 1000)


@pytest.fixture
def open_store(config: ScrollConfig, tmp_path: Path) -> Callable[..., Any]:
    def open_store(records: Any, losses: tuple[str, ...] = ("surface_distance", "skeleton_recall")) -> Any:
        config.cache.dir = tmp_path / "cache"
        for name in losses:
            getattr(config.loss, name).weight = 1.0
        cache = lazy.cache_for(config, records)
        assert cache is not None

        class Pipeline:
            settings: ClassVar = {"tube": config.data.tube}

        assert cache.plan(Pipeline(), records).mode == "stream"
        return cache.open(Pipeline(), records, lambda text: None)

    return open_store


def region(start: tuple[int, ...], size: tuple[int, ...]) -> Region:
    z, y, x = (slice(a, a + n) for a, n in zip(start, size, strict=True))
    return z, y, x


def test_patches_are_those_of_the_whole_volume(root, large, open_store) -> None:
    records = find_records(root)
    store = open_store(records)
    rng = np.random.default_rng(0)
    agree = []
    for number, record in enumerate(records):
        image = volumes.read_image(record.files["image"])
        whole = targets.prepare(volumes.read_label(record.files["label"]), 0)
        for _ in range(8):
            where = region(rng.integers(0, np.array(SHAPE) - 24 + 1).tolist(), (24, 24, 24))
            assert np.array_equal(store.arrays["image"].read(number, where), image[where])
            target = store.arrays["target"].read(number, where)
            assert np.array_equal(target & targets.LABEL, whole["target"][where] & targets.LABEL)
            assert np.array_equal(store.arrays["distance"].read(number, where), whole["distance"][where])
            medial, expected = (t & targets.MEDIAL > 0 for t in (target, whole["target"][where]))
            agree.append((medial == expected)[(target & targets.LABEL) == 1])
    assert np.concatenate(agree).mean() > 0.99
    assert np.array_equal(store.arrays["image"].read(0), volumes.read_image(records[0].files["image"]))


def test_every_voxel_of_a_kind_is_one_place(root, large, open_store) -> None:
    records = find_records(root)
    store = open_store(records)
    for kind, wanted in (("surface", lambda label: label == 1), ("valid", lambda label: label != 2)):
        places = store.arrays[kind]
        first = 0
        for number, record in enumerate(records):
            expected = {*map(tuple, np.argwhere(wanted(volumes.read_label(record.files["label"]))).tolist())}
            count = places.shapes[number][0]
            assert count == len(expected)
            rows = np.linspace(0, count - 1, 50).astype(np.int64)
            out = np.empty((len(rows), 3), np.int32)
            places.take(first + rows, out)
            assert len({*map(tuple, out.tolist())}) == len(rows)
            assert {*map(tuple, out.tolist())} <= expected
            assert np.array_equal(places.read(number, (slice(0, 3),)), places.read(number, (slice(0, 3), slice(0, 3))))
            first += count


def test_more_places_than_can_be_told_apart_are_drawn_evenly(root, large, open_store, monkeypatch) -> None:
    from runner_vesuvius import patchstore

    whole = open_store(find_records(root)).arrays["surface"]
    monkeypatch.setattr(patchstore, "_STRIDE", 1000)
    some = open_store(find_records(root)).arrays["surface"]
    stride = -(-whole.shapes[0][0] // 1000)
    assert stride > 1
    assert some.shapes[0][0] == -(-whole.shapes[0][0] // stride)
    assert np.array_equal(some.read(0, (slice(5, 9),)), whole.read(0, (slice(5 * stride, 9 * stride),))[::stride])


def test_samples_depend_on_seed_epoch_and_position_alone(root, large, open_store) -> None:
    """Whatever was read before, however little is kept, and in whatever process."""
    samples = PatchSamples(
        open_store(find_records(root)),
        ("image", "target", "distance"),
        (16, 16, 16),
        (0, 1),
        8,
        around={"surface": 0.6},
    )
    filled = []
    for order, kept in (([0, 1, 2, 3], 10**9), ([3, 1, 0, 2], 5000), ([2, 3, 1, 0], 0)):
        own = pickle.loads(pickle.dumps(samples))
        for pair in own.arrays["image"]._pairs:
            pair.image._newest = pair.label._label._newest = Newest(kept)
        out = {name: np.empty((4, *spec.shape), spec.dtype) for name, spec in own.spec.items()}
        for i in order:
            one = {name: array[i : i + 1] for name, array in out.items()}
            own.fill(np.array([i * 3]), np.array([40 + i]), 7, 2, one)
        filled.append(out)
    for other in filled[1:]:
        assert all(np.array_equal(other[name], filled[0][name]) for name in other)
    assert len(np.unique(filled[0]["image"].reshape(4, -1), axis=0)) == 4


def test_the_newest_chunks_stay_within_their_bytes() -> None:
    newest = Newest(250)
    for n in range(5):
        newest.put(("v", (n,)), np.zeros(100, np.uint8))
        newest.get(("v", (0,)))
    assert [n for n in range(5) if newest.get(("v", (n,))) is not None] == [0, 4]
    assert newest._held == 200


def test_statistics_of_some_blocks_are_those_of_the_volume(root, large, open_store, project) -> None:
    """Few blocks: all are read, and the counts are exact."""
    from runner_vesuvius.statistics import histogram

    records = find_records(root)
    counts = open_store(records).arrays["histogram"]
    for number, record in enumerate(records):
        image, label = (volumes.read_image(record.files["image"]), volumes.read_label(record.files["label"]))
        assert np.array_equal(counts.read(number), histogram(image, label))


def test_a_sample_of_blocks_is_scaled_to_the_volume(root, large, open_store, monkeypatch) -> None:
    from runner_vesuvius import census

    monkeypatch.setattr(census, "SAMPLED", 1)
    monkeypatch.setattr(census, "_SIDE", 16)
    record = find_records(root)[0]
    label, found = volumes.read_label(record.files["label"]), open_store([record]).arrays["histogram"].read(0)
    assert np.allclose(found.sum(1), [np.count_nonzero(label == value) for value in range(3)], rtol=1e-3)
    grey = np.arange(256)
    image = volumes.read_image(record.files["image"])
    means = (found[:2] * grey).sum(1) / found[:2].sum(1)
    assert np.allclose(means, [image[label == value].mean() for value in range(2)], atol=3)


def test_labels_are_counted_once_and_again_when_they_change(root, large, open_store, monkeypatch) -> None:
    from runner_vesuvius import census

    taken: list[str] = []
    take = census.take
    monkeypatch.setattr(census, "take", lambda key, *given: taken.append(key) or take(key, *given))
    first = open_store(find_records(root)).identity
    assert open_store(find_records(root)).identity == first
    assert taken == ["a_0", "b_0"]
    label = zarr.open_array(root / "labels" / "b_0.zarr", mode="r+")
    label[:5] = 0
    assert open_store(find_records(root)).identity != first
    assert taken == ["a_0", "b_0", "b_0"]


def test_outside_of_the_mask_nothing_is_annotated(root, large, open_store, project, config, monkeypatch) -> None:
    mask = np.zeros([-(-n // 2) for n in SHAPE], np.uint8)
    mask[10:20, 5:20, 8:30] = 1
    inside = mask.repeat(2, 0).repeat(2, 1).repeat(2, 2)[: SHAPE[0], : SHAPE[1], : SHAPE[2]] > 0
    write_zarr(root / "mask.zarr", mask, (8, 8, 8))
    write_zarr(root / "whole.zarr", inside.astype(np.uint8))
    for name in ("mask", "whole"):
        rows = [f"images/{key}.zarr,labels/{key}.zarr,{key[0]},{name}.zarr" for key in ("a_0", "b_0")]
        (root / f"{name}.csv").write_text("\n".join(["image,label,scroll,annotated", *rows]) + "\n")
    label = volumes.read_label(root / "labels" / "a_0.zarr")
    expected = np.where(inside, label, 2)
    for name in ("mask", "whole"):
        store = open_store(find_records(root / f"{name}.csv"))
        assert np.array_equal(store.arrays["target"].read(0) & targets.LABEL, expected)
        assert store.arrays["surface"].shapes[0][0] == np.count_nonzero(expected == 1)
    monkeypatch.undo()
    for name in ("mask", "whole"):
        record = find_records(root / f"{name}.csv")[0]
        assert np.array_equal(project.decode(record).arrays["label"], expected), "in memory, too"


def test_which_volumes_are_read_chunk_by_chunk(root, config, monkeypatch, write_volumes) -> None:
    records, tifs = find_records(root), find_records(write_volumes({"1": "s1"}).rename(root.parent / "tifs"))
    assert lazy.cache_for(config, records) is None, "memory holds them"
    config.cache.mode = "stream"
    assert lazy.cache_for(config, records) is not None
    monkeypatch.setattr(volumes, "MOST", 1000)
    config.cache.mode = "memmap"
    assert lazy.cache_for(config, records) is None
    with pytest.raises(BadInput, match=r"cache\.mode auto or stream"):
        Vesuvius(config).decode(records[0])
    config.cache.mode = "auto"
    assert lazy.cache_for(config, records) is not None
    with pytest.raises(BadInput, match=r"1\.tif: memory cannot hold a_0, .* must be zarr"):
        lazy.cache_for(config, [*records, *tifs])
    assert lazy.cache_for(config, tifs) is None


def test_bad_volumes_are_named_all_at_once(root, large, open_store) -> None:
    write_zarr(root / "images" / "c_0.zarr", np.zeros((70, 60, 70), np.uint8))
    write_zarr(root / "labels" / "c_0.zarr", np.zeros(SHAPE, np.uint8))
    label = zarr.open_array(root / "labels" / "b_0.zarr", mode="r+")
    label[40, 40, 40] = 9
    from runner_core import DataErrors

    with pytest.raises(DataErrors) as errors:
        open_store(find_records(root))
    text = str(errors.value)
    assert "b_0.zarr: holds 9 in 1 voxel" in text
    assert "c_0.zarr: 70 × 66 × 80 voxels, but its image" in text
    label[...] = 2
    with pytest.raises(DataErrors, match="b_0: every voxel of the label is 2"):
        open_store([find_records(root)[1]])


def test_chunks_that_decode_too_much_are_refused(root, large, open_store, monkeypatch) -> None:
    monkeypatch.setattr(lazy, "LARGEST_READ", 10_000)
    with pytest.raises(BadInput, match=r"in chunks of 16 × 32 × 20 a patch decodes .* 128³"):
        open_store(find_records(root))


def test_check_says_what_it_read_and_what_it_left_out(root, large, config, tmp_path) -> None:
    config.cache.dir = tmp_path / "cache"
    project = Vesuvius(config)
    records = find_records(root)
    decoded = project.decode(records[0])
    assert decoded.arrays["image"].shape == (64, 64, 80)
    checks = project.checks()
    found = {finding.rule: finding for finding in checks.record(records[0])}
    assert "70 × 66 × 80 voxels are read chunk by chunk" in found["read"].message
    assert "the whole label, 4 of 4 blocks of the image" in found["read"].message
    assert "0…63 × 0…63 × 0…79" in found["read"].message
    assert not [finding for finding in found.values() if finding.level == "error"]
    together = [finding.message for finding in checks.records(records)]
    assert any("leave out 2 volumes that memory cannot hold (a_0, b_0)" in text for text in together)
    config.data.patch = (16, 16, 96)
    assert any(finding.rule == "patch" for finding in Vesuvius(config).checks().record(records[0]))
    with pytest.raises(BadInput, match="can be worked on at once"):
        project.decode(Record("a_0", "a", {"image": records[0].files["image"]}))


@pytest.mark.weekly  # a minute, most of it waiting for one chunk after the other
def test_volumes_at_urls_are_those_of_the_folder(root, large, open_store, serve, tmp_path, monkeypatch) -> None:
    pytest.importorskip("obstore")
    address = serve(root)
    rows = [f"{address}/images/{key}.zarr,{address}/labels/{key}.zarr,{key[0]}" for key in ("a_0", "b_0")]
    table = tmp_path / "volumes.csv"
    table.write_text("\n".join(["image,label,scroll", *rows]) + "\n")
    records = find_records(table)
    assert [(record.key, record.group, dict(record.files)) for record in records] == [
        ("a_0", "a", {}),
        ("b_0", "b", {}),
    ]
    here, there = open_store(find_records(root)), open_store(records)
    where = region((10, 20, 30), (32, 32, 32))
    for name in ("image", "target"):
        assert np.array_equal(there.arrays[name].read(0, where), here.arrays[name].read(0, where))
    assert there.arrays["surface"].shapes == here.arrays["surface"].shapes
    again = open_store(records)
    monkeypatch.setattr(
        "runner_vesuvius.chunked.Volume.read", lambda *given: pytest.fail("these chunks are on the disk")
    )
    assert np.array_equal(again.arrays["image"].read(0, where), here.arrays["image"].read(0, where))
    label, remote = location(f"{address}/labels/a_0.zarr"), RemoteConfig()
    assert mark_of(label, remote) == mark_of(label, remote)
    chunk = max((root / "labels" / "a_0.zarr").rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
    before, mark = chunk.stat(), mark_of(label, remote)
    os.utime(chunk, ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))  # exported again, of the same size
    assert mark_of(label, remote) != mark
    os.utime(chunk, ns=(before.st_atime_ns, before.st_mtime_ns))
    table.write_text(f"image,label,scroll\n{address}/images/a_0.tif,{address}/labels/a_0.zarr,a\n")
    with pytest.raises(BadInput, match=r"volumes\.csv: line 2: .*a_0\.tif: no zarr volume"):
        find_records(table)


_PATCHES = """
import sys, resource
from pathlib import Path
import numpy as np
from runner_core import PatchSamples
from runner_vesuvius import lazy
from runner_vesuvius.config import demo
from runner_vesuvius.files import find_records
config = demo()
config.cache.mode, config.cache.dir = "stream", Path(sys.argv[2])
class Pipeline:
    settings = {}
lazy.VolumeCache(config)
import zarr, numba
from runner_vesuvius import batches, medial
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
before = peak()
records = find_records(Path(sys.argv[1]))
store = lazy.cache_for(config, records).open(Pipeline(), records, print)
samples = PatchSamples(store, ("image", "target"), (64, 64, 64), (0,), 64, around={"surface": 0.5, "valid": 0.2})
out = {name: np.empty((1, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
surface = 0
for n in range(40):
    samples.fill(np.array([n]), np.array([n]), 0, 0, out)
    surface += int((out["target"] & 3 == 1).sum())
print("surface", surface, "bytes", peak() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_volume(tmp_path, make_sheets) -> None:
    """A volume of 1,024³ (1.07 GB, its label as much) is trained from in less than 0.7 GB."""
    image, label = make_sheets((128, 128, 128))
    for name, block, fill in (("images", image, 70), ("labels", label, 2)):
        array = zarr.create_array(
            tmp_path / "data" / name / "a_0.zarr", shape=(1024,) * 3, chunks=(128,) * 3, dtype="uint8", fill_value=fill
        )
        for z, y, x in ((0, 0, 0), (3, 5, 1), (7, 7, 7), (2, 6, 4)):
            array[z * 128 : z * 128 + 128, y * 128 : y * 128 + 128, x * 128 : x * 128 + 128] = block
    command = [sys.executable, "-c", _PATCHES, str(tmp_path / "data"), str(tmp_path / "cache")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stdout.split()
    assert int(said[-3]) > 10_000, "patches around surface voxels hold surface"
    assert int(said[-1]) < 0.7e9
