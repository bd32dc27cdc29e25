"""The cache of prepared arrays: what it holds, when it is built again, what it refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput, DataErrors, DataSet, OutOfSpace, Record, RunConfig, RunnerError
from runner_core.config import CacheConfig
from runner_core.contract import Device
from runner_core.data.blocks import Chosen
from runner_core.data.cache import build, choose, folder, identity, manage
from runner_core.data.cache.folder import Damaged
from runner_core.data.cache.prepared import PreparedCache
from runner_core.data.columns import SomeDigests
from runner_core.data.crop import CentreCrop, NoCrop
from runner_core.data.duplicates import known_digests
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.table import RecordTable
from runner_core.training.data import describe_plan, read_records, refuse_what_no_device_holds

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from cache_toy import LENGTHS, Folders, Workplace, assert_holds_what_the_pipeline_gives, flip_byte
from rows_toy import RowsToy, write_volumes


@pytest.fixture
def place(tmp_path):
    return Workplace(tmp_path)


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory", "device", "off"])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_mode_reads_what_the_pipeline_prepares(place, mode, workers):
    store = place.open(mode=mode, workers=workers, crop=CentreCrop((9, 11, 8)), dtype="float32")
    assert store.device == (mode == "device")
    assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)
    whole = np.concatenate([store.arrays["image"].read(i) for i in range(4)])
    rows = np.array([0, 4, 5, 11, 12, 13, 21, 0])
    out = np.empty((len(rows), *whole.shape[1:]), whole.dtype)
    store.arrays["image"].take(rows, out)
    assert np.array_equal(out, whole[rows])
    regions = [(slice(2, 4),), (slice(None), slice(3, 5), slice(0, 1)), (slice(1, 7, 2), slice(2, 3)), ()]
    for region in regions:
        assert np.array_equal(store.arrays["image"].read(1, region), store.arrays["image"].read(1)[region])
    again = ForkingPickler.loads(ForkingPickler.dumps(store)) if mode != "memory" else store
    assert np.array_equal(again.arrays["image"].read(3), store.arrays["image"].read(3))
    store.close()


def test_the_identity_is_of_the_files_and_the_settings(place):
    modes = ("memmap", "blosc2", "memory", "device", "off")
    whole = {place.open(mode=mode).identity for mode in modes}
    assert len(whole) == 1
    others = {
        place.open(mode="off", dtype="int16").identity,
        place.open(mode="off", crop=CentreCrop((4, 4, 4))).identity,
    }
    np.save(place.data / "a0.npy", np.ones((5, 16, 16), np.uint8))
    changed = {place.open(mode=mode).identity for mode in modes}
    assert len(changed) == 1
    assert len(whole | others | changed) == 4


def test_what_is_read_cannot_be_written(place):
    with pytest.raises(ValueError, match="read-only"):
        place.open(mode="memmap").arrays["image"].read(0)[...] = 0


def test_records_of_other_trailing_shapes_are_read_one_by_one(place):
    np.save(place.data / "z9.npy", np.ones((3, 8, 4), np.uint8))
    for mode in ("memmap", "blosc2"):
        store = place.open(mode=mode)
        assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)
        with pytest.raises(ValueError, match="rows of different shapes"):
            store.arrays["image"].take(np.array([0]), np.empty((1, 16, 16), np.uint8))


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory", "off"])
def test_one_number_a_row(place, monkeypatch, mode):
    capability = place.capability(mode=mode)
    monkeypatch.setattr(place.project, "prepare", lambda d: {"x": d.arrays["image"][:, 0, 0].astype(np.float64)})
    store = capability.open(place.pipeline, place.records, place.said.append)
    out = np.empty(3)
    store.arrays["x"].take(np.array([20, 0, 6]), out)
    volumes = [np.load(r.files["image"]) for r in place.records]
    assert out.tolist() == [volumes[3][7, 0, 0], volumes[0][0, 0, 0], volumes[1][1, 0, 0]]


def test_an_empty_array_is_stored(place):
    for file in place.data.glob("*.npy"):
        np.save(file, np.empty((0, 4), np.uint8))
    for mode in ("memmap", "blosc2", "memory"):
        assert place.open(mode=mode).arrays["image"].read(1).shape == (0, 4)


# ---------------------------------------------------------------- many records


def oracle(record, digests):
    """The identity of a record by its definition, from the digests of its files."""
    content = {}
    for role, path in sorted(record.files.items()):
        files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        names = [os.fsencode(f.relative_to(path)).decode("utf-8", "surrogateescape") for f in files]
        content[role] = [(name, digests[str(f)]) for name, f in zip(names, files, strict=True)]
    return identity.digest_json([content, dict(record.values)] if record.values else content)


@pytest.mark.parametrize("slow_disk", [False, True])
def test_records_in_columns_have_the_identities_of_single_ones(tmp_path, monkeypatch, slow_disk):
    monkeypatch.setattr(identity, "_TOGETHER", 7)
    monkeypatch.setattr(identity, "_VARIABLES", 3)
    monkeypatch.setattr(identity._Stats, "_SLOW", -1.0 if slow_disk else 1.0)
    records, marks = [], []
    for n in range(150):
        files = {"image": tmp_path / f"{n}.npy", "a mask": tmp_path / f"m{n % 5}.npy"}
        if n % 6 == 1:
            del files["a mask"]
        if n % 6 == 2:
            files["image"] = tmp_path / f"folder{n}"
            (files["image"] / "below").mkdir(parents=True)
            for name in ("a", "below/é", os.fsdecode(b"below/\xff")):
                (files["image"] / name).write_text(f"{n} {name!a}")
        for file in files.values():
            if not file.exists():
                file.write_text(file.name)
        records.append(Record(f"k{n}", f"g{n % 3}", files, values={"age": n} if n % 6 == 3 else {}))
        marks += [] if n % 6 == 4 else identity.identify(records[-1]).marks
    assert list(identity.Identities(tmp_path).identities(records)) == [None] * 150
    index = identity.Identities(tmp_path)
    index.remember(marks)
    (tmp_path / "9.npy").write_text("another content")
    (tmp_path / "15.npy").unlink()
    digests = {mark.path: mark.digest for mark in marks}
    lost = {n for n in range(150) if n % 6 == 4} | {9, 15}
    expected = [None if n in lost else oracle(record, digests) for n, record in enumerate(records)]
    mains = [replace(record, files=dict([*record.files.items()][:1]), values={}) for record in records]
    expected_mains = [None if n in lost else oracle(record, digests) for n, record in enumerate(mains)]
    rows = RecordTable(records)
    for some in (records, rows, Chosen(rows, range(150))):
        assert list(index.identities(some)) == expected
        assert [known and known.identity for known in index.lookup(some)] == expected
        assert list(index.identities(some, main=True)) == expected_mains
        assert list(known_digests(index, some)) == expected_mains
    found = index.identities(rows)
    assert (None in found, found.complete, found.missing.tolist()) == (True, None, sorted(lost))
    filled = found.filled(found.missing, SomeDigests(["ab" * 16] * len(lost)))
    assert list(filled) == list(filled.complete) == [own or "ab" * 16 for own in expected]
    single = [Record(f"k{n}", "g", {"image": tmp_path / f"{n}.npy"}) for n in range(0, 60, 6)]
    identities = index.identities(single).complete
    assert list(known_digests(identity.Identities(tmp_path / "none"), RecordTable(single), identities)) == [*identities]


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory"])
def test_columns_of_many_records_hold_what_lists_of_few_do(place, monkeypatch, mode):
    np.save(place.data / "e4.npy", np.ones((3, 8, 4), np.uint8))  # rows of another shape
    few = place.open(mode=mode)
    monkeypatch.setattr(folder, "_MANY", 1)
    few_folder = few.folder
    shutil.move(few_folder, place.path / "elsewhere")
    place.decoded()
    many = place.open(mode=mode)
    assert len(set(place.decoded())) == 5
    assert (many.folder, many.identity) == (few_folder, few.identity)
    assert (list(many.keys), list(many.meta)) == (list(few.keys), list(few.meta))
    assert list(many.arrays["image"].shapes) == list(few.arrays["image"].shapes)
    assert many.arrays["image"].trailing == few.arrays["image"].trailing is None
    assert "keys" not in json.loads((many.folder / "meta.json").read_text())
    assert_holds_what_the_pipeline_gives(many, place.pipeline, place.records)
    many.close()
    assert_holds_what_the_pipeline_gives(place.open(mode=mode), place.pipeline, place.records)
    place.decoded()
    (place.data / "e4.npy").unlink()
    fewer = place.open(mode=mode)
    assert "4 of 4 records are copied from a cache with the same settings" in place.said
    assert fewer.arrays["image"].trailing == (16, 16)
    assert_holds_what_the_pipeline_gives(fewer, place.pipeline, place.records)
    assert len(manage.prune(place.cache, everything=True).removed) == 1 + (few_folder.exists())


def test_a_damaged_column_is_noticed(place, monkeypatch):
    monkeypatch.setattr(folder, "_MANY", 1)
    place.open().close()
    (cache,) = place.folders()
    names = sorted(file.name for file in cache.glob("column-*"))
    assert len(names) == 3 + 3 + 1 + 2 * 3  # keys, meta, identities, and the shapes of two arrays
    for name in names:
        place.said.clear()
        flip_byte(cache / name, -1)
        with pytest.raises(Damaged, match=f"{name} has changed"):
            folder.read_meta(cache)
        assert_holds_what_the_pipeline_gives(place.open(), place.pipeline, place.records)
        assert any("is built again" in s for s in place.said)
    (cache / names[0]).unlink()
    with pytest.raises(Damaged, match=names[0]):
        folder.read_meta(cache)


@given(
    st.lists(st.text(max_size=5)), st.lists(st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.integers())
)
def test_long_lists_have_the_digest_of_their_json(keys, identities, values):
    assert identity.digest_lists(keys, identities) == identity.digest_json([keys, identities])
    assert identity.digest_lists(values, keys, identities) == identity.digest_json([values, keys, identities])


# ---------------------------------------------------------------- built when, and how much of it


def test_the_second_start_hashes_nothing_and_prepares_one_record(place, monkeypatch):
    place.open()
    assert set(place.decoded()) == {"a0", "b1", "c2", "d3"}
    monkeypatch.setattr("runner_core.data.cache.identity.hash_file", lambda path: pytest.fail(f"{path} was read"))
    plan = place.capability().plan(place.pipeline, place.records)
    assert (plan.ready, plan.disk_bytes) == (4, 2 * sum(LENGTHS) * 16 * 16)
    assert place.decoded() == []
    place.open()
    assert place.decoded() == ["a0"]  # is the cache still what `prepare` makes?


def test_one_more_scan_prepares_one_scan(place):
    place.open().close()
    place.decoded()
    write_volumes(place.path / "more", [0, 0, 0, 0, 6], seed=1)
    shutil.move(place.path / "more" / "e4.npy", place.data)
    (place.data / "b1.npy").unlink()
    place.said.clear()
    store = place.open()
    assert set(place.decoded()) == {"a0", "e4"}  # one of those copied is prepared, and compared
    assert any("3 of 4 records are copied" in s for s in place.said)
    assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory"])
def test_one_corrected_value_prepares_one_record(place, mode):
    capability = place.capability(mode=mode)
    records = [replace(record, values={"class": "round", "age": 60}) for record in place.records]
    capability.open(place.pipeline, records, place.said.append).close()
    assert set(place.decoded()) == {"a0", "b1", "c2", "d3"}
    records[2] = replace(records[2], values={"age": 60, "class": "long"})
    capability.open(place.pipeline, records, place.said.append).close()
    decoded = set(place.decoded())
    assert "c2" in decoded
    assert mode == "memory" or decoded <= {"a0", "c2"}
    swapped = [replace(record, values=dict(reversed(record.values.items()))) for record in records]
    capability.open(place.pipeline, swapped, place.said.append).close()
    assert mode == "memory" or place.decoded() == ["a0"]  # one of those that were there is prepared, and compared


def test_values_are_in_a_records_identity_and_in_no_others(place):
    place.open()
    plain, other = place.records[:2]
    same = identity.identify(replace(plain, values={})).identity
    assert same == identity.identify(plain).identity
    found = [identity.identify(replace(plain, values={"class": value})).identity for value in (1, 1.5, "1", True, None)]
    assert len({*found, same, identity.identify(other).identity}) == 7


@pytest.mark.parametrize("value", [np.float32(1), float("nan"), ["round"], Path("a")])
def test_values_that_are_not_plain_are_refused(place, monkeypatch, value):
    place.open()
    records = [*place.records[:1], replace(place.records[1], values={"class": value})]
    monkeypatch.setattr(place.project, "records", lambda folder: records)
    setup = SimpleNamespace(project=place.project, name="toy", source=place.data, config=RunConfig())
    with pytest.raises(BadInput, match=r"record 'b1' has the value 'class'.*float\(…\)"):
        read_records(setup, place.data, print)


def test_blosc2_is_made_from_the_memory_map_and_back(place):
    place.open(mode="memmap")
    place.decoded()
    assert_holds_what_the_pipeline_gives(place.open(mode="blosc2"), place.pipeline, place.records)
    place.decoded()
    shutil.rmtree(next(f for f in place.folders() if f.suffix == ".flat"))
    place.open(mode="memmap")
    assert place.decoded() == ["a0"]


def test_touched_or_moved_files_are_known_by_their_contents(place):
    place.open()
    place.decoded()
    for file in place.data.glob("*.npy"):
        os.utime(file, (1, 1))
    place.open()
    shutil.move(place.data, place.path / "elsewhere")
    place.data = place.path / "elsewhere"
    place.open()
    assert len(place.folders()) == 1
    assert set(place.decoded()) <= {"b1", "a0"}  # at most the one that a plan samples; never all


def test_changed_contents_settings_or_crop_are_prepared_anew(place):
    first = place.open()
    volume = np.load(place.data / "b1.npy")
    volume[0, 0, 0] ^= 1
    np.save(place.data / "b1.npy", volume)
    place.decoded()
    second = place.open()
    assert set(place.decoded()) == {"a0", "b1"}
    assert second.arrays["image"].read(1)[0, 0, 0] == first.arrays["image"].read(1)[0, 0, 0] ^ 1
    assert place.open(dtype="int16").arrays["image"].dtype == np.int16
    assert place.open(crop=CentreCrop((2, 2, 2))).arrays["image"].read(0).shape == (2, 2, 2)
    assert len(place.folders()) == 4


def unnamed(monkeypatch, name, make, own=RowsToy.prepare):
    """Array `name` as `make` makes it of a volume: a change of `prepare` that nobody named."""
    monkeypatch.setattr(RowsToy, "prepare", lambda self, d: own(self, d) | {name: make(d.arrays["image"])})


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory", "device"])
def test_a_cache_that_prepare_no_longer_makes_is_refused(place, monkeypatch, mode):
    place.open(mode=mode).close()
    unnamed(monkeypatch, "mask", lambda image: (image > 120).astype(np.uint8))
    with pytest.raises(
        BadInput, match=r"rowstoy makes now \('mask' of record a0\).*`prepare_version`.*prepare_settings"
    ):
        place.open(mode=mode)
    monkeypatch.setattr(RowsToy, "dataset", DataSet(prepare_version=2))
    assert_holds_what_the_pipeline_gives(place.open(mode=mode), place.pipeline, place.records)


def test_nothing_is_copied_from_a_cache_that_prepare_no_longer_makes(place, monkeypatch):
    place.open().close()
    (place.data / "b1.npy").unlink()
    unnamed(monkeypatch, "more", lambda image: image)
    with pytest.raises(BadInput, match="'more' of record a0"):
        place.open()
    assert not place.left_over()


def test_what_rounding_makes_of_an_array_is_the_same(place, monkeypatch):
    place.open().close()
    unnamed(monkeypatch, "image", lambda image: np.maximum(image, 1) - np.uint8(1))
    place.open().close()
    unnamed(monkeypatch, "image", lambda image: np.maximum(image, 2) - np.uint8(2))
    with pytest.raises(BadInput, match="'image' of record a0"):
        place.open()


def read_nothing():
    raise OSError("the disk is away")


def test_a_cache_is_opened_whose_source_cannot_be_read(place, monkeypatch):
    place.open().close()
    monkeypatch.setattr(np, "load", lambda *args, **options: read_nothing())
    assert len(place.open().keys) == 4


def test_all_faulty_records_are_listed_and_nothing_is_left(place):
    (place.data / "b1.npy").write_bytes(b"no volume")
    (place.data / "d3.npy").write_bytes(b"\x93NUMPY truncated")
    for mode in ("auto", "off"):
        for workers in (1, 2):
            with pytest.raises(DataErrors) as caught:
                place.open(mode=mode, workers=workers)
            assert len(caught.value.errors) == 2
            assert "b1.npy: not a volume" in caught.value.errors[0]
            assert "d3.npy: not a volume" in caught.value.errors[1]
    assert not place.folders()
    assert not place.left_over()


def test_opening_what_was_planned_looks_at_no_file_again(place, monkeypatch):
    place.open().close()
    looked = []
    stat = identity._stat
    monkeypatch.setattr(identity, "_stat", lambda path: looked.append(path) or stat(path))
    capability = place.capability()
    capability.plan(place.pipeline, place.records)
    assert len(looked) == len(place.records)
    capability.open(place.pipeline, place.records, place.said.append).close()
    assert len(looked) == len(place.records)
    np.save(place.data / "a0.npy", np.ones((5, 16, 16), np.uint8))  # a plan serves once
    store = capability.open(place.pipeline, place.records, place.said.append)
    assert store.arrays["image"].read(0).all()
    capability.plan(place.pipeline, place.records)
    assert len(capability.open(place.pipeline, place.records[:2], place.said.append).keys) == 2


@pytest.mark.parametrize("mode", ["memmap", "off"])
def test_a_remembered_file_that_changes_before_it_is_decoded(place, monkeypatch, mode):
    """Else a cache would hold the new contents under the identity of the old ones."""
    place.open().close()
    capability = place.capability(mode=mode, crop=CentreCrop((4, 4, 4)))
    decode = place.project.decode

    def overwritten(record):
        if capability.planned:
            np.save(record.files["image"], np.ones((3, 16, 16), np.uint8))
        return decode(record)

    monkeypatch.setattr(place.project, "decode", overwritten)
    capability.planned = False
    capability.plan(place.pipeline, place.records)
    capability.planned = True
    with pytest.raises(DataErrors, match=r"a0: its files changed while they were read"):
        capability.open(place.pipeline, place.records, place.said.append)


def test_missing_file_and_other_faults_of_a_record(place):
    capability = place.capability()
    records = [*place.records, Record("gone", "g", {"image": place.data / "gone.npy"})]
    with pytest.raises(DataErrors, match=r"gone: .*gone.npy cannot be read: No such file"):
        capability.open(place.pipeline, records, place.said.append)


@pytest.mark.parametrize(
    "second, message",
    [
        ({"image": np.zeros((2, 3), np.float32)}, "b1: 'image' has dtype float32, records before it have uint8"),
        ({"scan": np.zeros((2, 3), np.uint8)}, "b1: prepare.. returned .'scan'., for records before it .'image'."),
    ],
)
def test_records_must_agree(place, monkeypatch, second, message):
    capability = place.capability()
    given = iter([{"image": np.zeros((2, 3), np.uint8)}] * 2 + [second] * 9)  # the first is the plan's sample
    monkeypatch.setattr(place.project, "prepare", lambda decoded: next(given))
    with pytest.raises(BadInput, match=message):
        capability.open(place.pipeline, place.records, place.said.append)
    assert not place.left_over()


def test_meta_must_be_json(place, monkeypatch):
    capability = place.capability()
    decode = place.project.decode

    def with_array(record):
        decoded = decode(record)
        decoded.meta["affine"] = np.eye(4)
        return decoded

    monkeypatch.setattr(place.project, "decode", with_array)
    with pytest.raises(DataErrors, match=r"a0: what decode.. returned as meta is not JSON"):
        capability.open(place.pipeline, place.records, place.said.append)


def test_a_folder_of_files_is_one_record(place):
    series = place.path / "series" / "p1"
    series.mkdir(parents=True)
    (series / "1.txt").write_text("one")
    record = Record("p1", "p1", {"image": place.data / "a0.npy", "series": series})
    capability = place.capability()
    capability.open(place.pipeline, [record], place.said.append)
    place.decoded()
    folders = place.folders()
    capability.open(place.pipeline, [record], place.said.append)
    assert place.folders() == folders
    (series / "2.txt").write_text("two")
    capability.open(place.pipeline, [record], place.said.append)
    assert len(place.folders()) == 2


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("mode", ["memmap", "blosc2"])
def test_verify_finds_a_flipped_byte_and_says_what_to_do(place, mode):
    place.open(mode=mode).close()
    (cache,) = place.folders()
    assert manage.verify(place.cache) == []
    flip_byte(cache / "array-1.bin")
    ((entry, message),) = manage.verify(place.cache)
    assert entry.folder == cache
    assert "array-1.bin has changed" in message
    assert "delete it (`runner cache prune` does), and the next run builds it again" in message
    assert_holds_what_the_pipeline_gives(place.open(mode=mode), place.pipeline, place.records)  # found, so built anew
    assert manage.verify(place.cache) == []
    flip_byte(cache / "array-0.bin")
    assert manage.prune(place.cache).removed == []  # nobody has read it yet
    manage.verify(place.cache)
    assert [e.folder for e in manage.prune(place.cache).removed] == [cache]


def test_a_file_that_was_changed_is_noticed_when_the_cache_is_opened(place):
    place.open().close()
    (cache,) = place.folders()
    file = cache / "array-0.bin"
    flip_byte(file)
    later = (cache / "meta.json").stat().st_mtime_ns + 1_000_000
    os.utime(file, ns=(later, later))  # as any program leaves it that writes
    assert_holds_what_the_pipeline_gives(place.open(), place.pipeline, place.records)


def test_nothing_is_copied_from_a_damaged_cache(place):
    place.open(mode="memmap").close()
    flip_byte(place.folders()[0] / "array-0.bin")
    store = place.open(mode="blosc2")
    assert any("Nothing is copied from it" in s for s in place.said)
    assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)


def test_a_record_in_two_caches_is_copied_from_the_one_that_is_sound(place):
    capability = place.capability()
    for count in (3, 4):
        capability.open(place.pipeline, place.records[:count], place.said.append).close()
    both = [e.folder for e in manage.entries(place.cache)]
    sizes = [(folder / "array-0.bin").stat().st_size for folder in both]
    flip_byte(both[sizes.index(max(sizes))] / "array-0.bin")
    place.said.clear()
    place.decoded()
    store = place.open(mode="blosc2")
    assert any("Nothing is copied from it" in line for line in place.said)
    assert "3 of 4 records are copied from a cache with the same settings" in place.said
    assert place.decoded().count("d3") == 1
    assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)


def _resealed(**changes):
    """Edits meta.json and gives it the checksum that belongs to it."""

    def edit(cache):
        body = json.loads((cache / "meta.json").read_text())
        del body["checksum"]
        array = next(iter(body["arrays"].values()))
        for name, value in changes.items():
            (array if name in array else body)[name] = value
        (cache / "meta.json").write_text(json.dumps(body | {"checksum": identity.digest_json(body)}))

    return edit


def _replaced(name, make):
    def replace(cache):
        (cache / name).unlink()
        make(cache / name)

    return replace


DAMAGES = {
    "truncated": lambda cache: os.truncate(cache / "array-0.bin", 100),
    "meta": lambda cache: flip_byte(cache / "meta.json"),
    "missing": lambda cache: (cache / "array-0.bin").unlink(),
    "no meta": lambda cache: (cache / "meta.json").unlink(),
    "a pipe": _replaced("meta.json", os.mkfifo),
    "a folder": _replaced("meta.json", os.mkdir),
    "a link to nowhere": _replaced("meta.json", lambda path: path.symlink_to("/nowhere")),
    "nested": lambda cache: (cache / "meta.json").write_text("[" * 100_000),
    "a list": lambda cache: (cache / "meta.json").write_text("[]"),
    "an array that is a pipe": _replaced("array-0.bin", os.mkfifo),
    "an endless array": _replaced("array-0.bin", lambda path: path.symlink_to("/dev/zero")),
    "a mark that is a folder": lambda cache: (cache / "damaged").mkdir(),
    "a mark that is a pipe": lambda cache: os.mkfifo(cache / "damaged"),
    "no keys": _resealed(keys=[]),
    "objects": _resealed(dtype="O"),
    "no type": _resealed(dtype="nonsense"),
    "other shapes": _resealed(shapes=[[10**9]] * 4),
    "negative shapes": _resealed(shapes=[[-1]] * 4),
    "other blocks": _resealed(checksums="00"),
    "no checksums": _resealed(checksums=5),
    "a file elsewhere": _resealed(file="../../a"),
    "no version": _resealed(version=None),
    "no settings": _resealed(settings=None),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_cache_damaged_at_sight_is_built_anew(place, how):
    place.open().close()
    (cache,) = place.folders()
    DAMAGES[how](cache)
    if "blocks" not in how and "elsewhere" not in how:
        (entry,) = manage.entries(place.cache)
        assert "is damaged" in entry.problem
    assert_holds_what_the_pipeline_gives(place.open(), place.pipeline, place.records)
    assert any("is built again" in s for s in place.said)
    assert manage.verify(place.cache) == []


def test_a_file_where_a_cache_belongs_is_named(place):
    place.open().close()
    (cache,) = place.folders()
    shutil.rmtree(cache)
    cache.touch()
    with pytest.raises(BadInput, match=r"cannot be written: Not a directory; set cache\.dir"):
        place.open()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_place_of_verification_that_is_no_file_is_passed_over(place, make):
    place.open().close()
    (cache,) = place.folders()
    (cache / "verified").unlink(missing_ok=True)
    make(cache / "verified")
    assert_holds_what_the_pipeline_gives(place.open(), place.pipeline, place.records)


def test_what_reads_back_differently_is_never_kept(place, monkeypatch):
    sound = build.FlatFile.append
    monkeypatch.setattr(build.FlatFile, "append", lambda file, array: sound(file, array ^ 1))
    with pytest.raises(Damaged, match="reads back differently"):
        place.open()
    assert not place.folders()
    assert not place.left_over()


# ---------------------------------------------------------------- an extension's storage


def test_an_extension_keeps_the_arrays_in_its_own_storage(place):
    place.open(mode="memmap").close()
    place.decoded()
    place.capability(workers=2)
    cache = PreparedCache(CacheConfig(dir=place.cache), storage=Folders())
    plan = cache.plan(place.pipeline, place.records)
    assert (plan.mode, plan.ready) == ("folders", 4)
    store = cache.open(place.pipeline, place.records, place.said.append)
    assert place.decoded() == ["a0"], "copied from the core's own cache"
    assert store.identity == place.open(mode="memmap").identity
    assert_holds_what_the_pipeline_gives(
        ForkingPickler.loads(ForkingPickler.dumps(store)), place.pipeline, place.records
    )
    out = np.empty((3, 16, 16), np.uint8)
    store.arrays["image"].take(np.array([21, 0, 6]), out)
    assert np.array_equal(out[1], store.arrays["image"].read(0)[0])
    store.close()
    (own,) = [e for e in manage.entries(place.cache) if e.form == "folders"]
    assert plan.disk_bytes == pytest.approx(own.bytes, rel=0.5)
    assert manage.verify(place.cache) == []
    file = own.folder / "array-0.bin" / "2.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    ((damaged, _),) = manage.verify(place.cache)
    assert damaged.folder == own.folder
    place.capability().open(place.pipeline, place.records, place.said.append)  # the core leaves it alone
    cache.open(place.pipeline, place.records, place.said.append)
    assert any("is built again" in said for said in place.said)
    assert manage.verify(place.cache) == []


@pytest.mark.parametrize("name", ["memory", "My Own"])
def test_a_storage_with_an_impossible_name_is_refused(name):
    with pytest.raises(RunnerError, match="small letters"):
        PreparedCache(CacheConfig(), storage=SimpleNamespace(name=name))


# ---------------------------------------------------------------- space


def test_plan_announces_what_is_taken(place):
    total = 2 * sum(LENGTHS) * 16 * 16
    plan = place.capability(mode="memory").plan(place.pipeline, place.records)
    assert plan.mode == "memory"
    assert plan.ram_bytes == plan.disk_bytes == pytest.approx(total, rel=0.2)  # judged by one record
    assert (plan.records, plan.ready, plan.device_bytes) == (4, 0, 0)
    assert place.capability(mode="device").plan(place.pipeline, place.records).device_bytes == plan.disk_bytes
    assert not place.folders()
    place.open(mode="memory")
    assert place.capability(mode="memory").plan(place.pipeline, place.records).disk_bytes == total


def free(monkeypatch, count):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=count, total=count, used=0))


def compressible(place):
    for file in place.data.glob("*.npy"):
        np.save(file, np.full((4, 200, 200), 3, np.uint8))


def test_a_set_must_fit_on_the_device(place):
    plan = place.capability(mode="device").plan(place.pipeline, place.records)
    refuse_what_no_device_holds(plan, Device("cuda", memory_bytes=plan.device_bytes))
    assert "11.5 kB device memory" in describe_plan(plan)
    with pytest.raises(OutOfSpace, match=r"device takes 11\.5 kB, small GPU has 11\.0 kB: set cache\.mode memmap"):
        refuse_what_no_device_holds(plan, Device("cuda", name="small GPU", memory_bytes=11_000))
    with pytest.raises(BadInput, match=r"computes on the CPU: use memory"):
        refuse_what_no_device_holds(plan, Device("cpu", memory_bytes=10**12))


def test_auto_takes_blosc2_where_the_disk_is_short(place, monkeypatch):
    compressible(place)
    free(monkeypatch, 1_000_000)
    assert place.capability().plan(place.pipeline, place.records).mode == "blosc2"
    free(monkeypatch, 10_000_000)
    assert place.capability().plan(place.pipeline, place.records).mode == "memmap"
    free(monkeypatch, 1_000_000)
    plan = place.capability().plan(place.pipeline, place.records)
    assert "since a memory map takes about 1.3 MB and the disk of" in plan.notes[0]
    place.open()
    assert place.folders()[0].suffix == ".blosc2"


def test_refused_before_anything_is_written(place, monkeypatch):
    compressible(place)
    with pytest.raises(OutOfSpace, match=r"1\.3 MB of disk, cache\.max_gb allows 1\.0 MB: set cache\.mode to blosc2"):
        place.open(mode="memmap", max_gb=0.001)
    with pytest.raises(OutOfSpace, match=r"max_gb allows 100 B: set cache\.max_gb to 0\.01"):
        place.open(max_gb=1e-7)
    free(monkeypatch, 100)
    with pytest.raises(
        OutOfSpace,
        match=r"has \(less 5 %\) .*: set cache\.dir to a disk with .* free, or .* with `--cache\.mode blosc2`, or use",
    ):
        place.open()
    monkeypatch.undo()
    monkeypatch.setattr("runner_core.data.cache.choose.available_ram", lambda: 1000)
    with pytest.raises(OutOfSpace, match=r"1\.3 MB of RAM, 1\.0 kB are available: set cache.mode to memmap"):
        place.open(mode="memory")
    assert not place.folders()
    assert not place.left_over()


def test_growing_beyond_what_was_planned_stops(place, monkeypatch):
    monkeypatch.setattr(choose.Estimator, "of_records", lambda *args: choose.Size(10))
    with pytest.raises(OutOfSpace, match=r"grew beyond .* \(expected: .*\); raise cache.max_gb"):
        place.open(max_gb=3e-6)
    assert not place.left_over()


@pytest.mark.parametrize("mode", ["memmap", "blosc2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_leaves_nothing(place, tiny_disk, monkeypatch, mode, workers):
    """A real file system of 1 MB, and an estimate too low."""
    write_volumes(place.data, [40] * 6, side=100)
    place.cache = tiny_disk / "cache"
    monkeypatch.setattr(choose.Estimator, "of_records", lambda *args: choose.Size(10))
    with pytest.raises(OutOfSpace, match=r"disk of .* is full: .*set cache\.dir to a larger disk"):
        place.open(mode=mode, workers=workers)
    assert not place.left_over()
    assert not place.folders()


def test_a_disk_that_is_full_before_the_first_byte(tiny_disk):
    """Another worker's hand-over can take the last byte; blosc2 then says only that it could not create the file."""
    with pytest.raises(OSError, match="No space left"):
        (tiny_disk / "filler").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="Could not create") as caught:
        build.BLOSC2.create(tiny_disk / "array", np.zeros((4, 100, 100), np.float32))
    assert caught.value.errno == errno.ENOSPC


def test_nobody_writes_any_more_when_what_was_written_is_removed(place, monkeypatch):
    """Else a worker's new file keeps the folder that is being removed."""
    write_volumes(place.data, [40] * 6, side=100)
    alive = []
    remove = build.shutil.rmtree

    def rmtree(path, **options):
        alive.append(multiprocessing.active_children())
        remove(path, **options)

    def full(self, outcome):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build.shutil, "rmtree", rmtree)
    monkeypatch.setattr(build.Builder, "_result", full)
    with pytest.raises(OutOfSpace, match="is full"):
        place.open(mode="memmap", workers=2)
    assert alive == [[]]


@pytest.fixture
def tiny_disk(tmp_path):
    disk = tmp_path / "tiny"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_where_nothing_can_be_mounted(place, monkeypatch, code):
    def full(self, content):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(build.FlatFile, "append", full)
    with pytest.raises(OutOfSpace, match=r"is full: the cache takes about \d+\.\d kB, .* GB are free now"):
        place.open()
    assert not place.left_over()


def test_a_folder_that_cannot_be_written(place):
    (place.path / "file").touch()
    place.cache = place.path / "file" / "cache"  # not even root can
    with pytest.raises(BadInput, match=r"file/cache.* cannot be written: Not a directory; set cache\.dir to"):
        place.open()


def test_a_store_that_outlives_the_modules_goes_quietly(place, monkeypatch, capsys):
    """Python sets a module's names to None at exit, before the last objects are gone."""
    store = place.open()
    monkeypatch.setattr("runner_core.data.cache.storage.os", None)
    store.__del__()
    store._lock = None


# ---------------------------------------------------------------- list and prune


def test_entries_and_prune(place):
    stores = [place.open(), place.open(dtype="int16"), place.open(dtype="int32")]
    for number, store in enumerate(stores):
        os.utime(store.folder / "meta.json", (1e9 + number, 1e9 + number))
    entries = manage.entries(place.cache)
    assert [e.folder for e in entries] == [s.folder for s in stores[::-1]]  # the last used first
    assert {(e.project, e.records, e.form, e.in_use, e.problem) for e in entries} == {("rowstoy", 4, "flat", True, "")}
    assert entries[0].bytes == sum(f.stat().st_size for f in entries[0].folder.iterdir())
    pruned = manage.prune(place.cache, everything=True)
    assert (pruned.removed, len(pruned.kept)) == ([], 3)  # all are in use
    for store in stores[1:]:
        store.close()
    pruned = manage.prune(place.cache, max_gb=entries[0].bytes / 1e9)
    assert [e.folder for e in pruned.removed] == [stores[1].folder]
    assert [(e.folder, why) for e, why in pruned.kept] == [(stores[0].folder, "a process has it open")]
    assert manage.prune(place.cache, older_than_days=1e6).removed == []
    assert [e.folder for e in manage.prune(place.cache, older_than_days=1).removed] == [stores[2].folder]
    assert_holds_what_the_pipeline_gives(stores[0], RecordPipeline(RowsToy(RunConfig()), NoCrop()), place.records)
    assert manage.prune(place.cache, project="other", everything=True).removed == []


def test_what_is_not_ours_is_never_touched(place):
    store = place.open()  # in use
    ours = store.folder
    place.open(dtype="int16").close()
    parent, name = ours.parent, "0123456789abcdef01234567.flat"
    elsewhere = place.cache / "photos" / "0123456789abcdef"  # our name, but no build.lock
    for kept in (elsewhere / name, place.cache / "photos" / "2024" / name, parent / "results.flat"):
        kept.mkdir(parents=True)
        (kept / "array-0.bin").touch()
    (parent / ".building-site").mkdir()
    (parent / name).write_text("a plain file")
    (parent / "fedcba9876543210fedcba98.blosc2").symlink_to(elsewhere / name)
    mixed = next(f for f in place.folders() if f.parent != parent)
    (mixed / "thesis.txt").touch()
    (mixed / "meta.json").write_text("{")
    files = set(place.cache.rglob("*"))
    assert {e.folder for e in manage.entries(place.cache)} == {ours, mixed}
    ((damaged, message),) = manage.verify(place.cache)
    assert damaged.folder == mixed
    assert "meta.json cannot be read" in message
    pruned = manage.prune(place.cache, everything=True)
    assert pruned.removed == []
    assert {e.folder: why for e, why in pruned.kept}[mixed].startswith("it also holds thesis.txt")
    assert set(place.cache.rglob("*")) == files
    with pytest.raises(BadInput, match=r"not deleted: it also holds thesis\.txt.*delete the folder by hand"):
        place.open(dtype="int16")


def test_a_file_outside_the_folder_is_refused(place):
    place.open().close()
    (cache,) = place.folders()
    meta = folder.read_meta(cache)
    folder.write_meta(cache, replace(meta, arrays={"image": replace(meta.arrays["image"], file="../secret")}))
    with pytest.raises(Damaged, match=r"'\.\./secret' is no name of a file"):
        folder.read_meta(cache)


def test_a_lock_is_of_the_cache_that_is_there(place, monkeypatch):
    """While a reader waits for the lock, the cache is pruned and another one built at the same place."""
    place.open().close()
    (cache,) = place.folders()
    flock, waits = fcntl.flock, []

    def wait(descriptor, how):
        if not waits:
            waits.append(how)
            (cache / "meta.json").rename(cache / "old")
            shutil.copy(cache / "old", cache / "meta.json")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", wait)
    descriptor = folder.open_shared(cache)
    assert os.fstat(descriptor).st_ino == (cache / "meta.json").stat().st_ino
    os.close(descriptor)


def test_an_opened_cache_counts_as_used(place):
    store = place.open()
    os.utime(store.folder / "meta.json", (1e9, 1e9))
    place.open()
    assert manage.entries(place.cache)[0].last_used > 1.5e9


def test_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder.cache_root(None) == tmp_path / "runner"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder.cache_root(None) == tmp_path / ".cache" / "runner"
    assert manage.entries(tmp_path / "absent") == []


def test_files_whose_names_are_no_text_are_remembered_too(tmp_path: Path) -> None:
    """Latin-1 names; and, in a locale without UTF-8, all that are not ASCII."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/Gr\xf6\xdfe"))
    folder.mkdir()
    (folder / "a.npy").write_bytes(b"content")
    record = Record("a", "a", {"image": folder / "a.npy"})
    index = identity.Identities(folder)
    known = identity.identify(record)
    index.remember(known.marks)
    (found,) = index.lookup([record])
    assert found == known
