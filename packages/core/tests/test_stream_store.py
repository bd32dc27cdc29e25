"""Streamed records: what samples read is what the files hold, whatever breaks; bad ones are replaced, always alike."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput, OutOfSpace
from runner_core.base.errors import DataErrors
from runner_core.base.location import Url
from runner_core.base.workers import Workers
from runner_core.contract import is_streamed
from runner_core.data.stream import store as sources
from runner_core.data.stream.bad import BadRecord, BadSamples, stand_ins

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from stream_toy import SIDE, Fields, Reads, fields, image, npy, open_fields, write_fields

pytest.importorskip("obstore")
pytest.importorskip("moto")
from s3server import S3

COUNT = 200
ROOT = Url("s3://bucket/plate")
ALL = np.arange(COUNT)


@pytest.fixture(scope="module")
def server():
    with S3() as s3:
        write_fields(lambda name, data: s3.put("bucket", f"plate/{name}", data), COUNT)
        yield s3


@pytest.fixture
def make(s3, tmp_path):
    """Opens stores of the server's records; they are closed with the test."""
    made = []

    def make(cache="cache", records=None, **settings):
        settings = {"endpoint": s3.endpoint, "retries": 1, "timeout": 5} | settings
        made.append(open_fields(fields(ROOT, COUNT) if records is None else records, tmp_path / cache, **settings))
        return made[-1]

    yield make
    for store in made:
        store.close()


def usable(store, records, epoch=0, among=ALL, first=0):
    records = np.asarray(records)
    return store.usable(records, np.arange(first, first + len(records)), epoch, among).tolist()


def right(store, record, truth=None):
    """Is what is read of a record what its files hold?"""
    expected = np.stack([image(record if truth is None else truth, channel) for channel in (0, 1)])
    np.testing.assert_array_equal(store.arrays["image"].read(record), expected)
    region = (slice(0, 1), slice(3, 9), slice(None))
    np.testing.assert_array_equal(store.arrays["image"].read(record, region), expected[region])
    np.testing.assert_allclose(store.arrays["mean"].read(record), expected.mean(axis=(1, 2)), rtol=1e-6)
    assert store.arrays["none"].read(record).shape == (0, SIDE, SIDE)


def lines(folder):
    return [json.loads(line) for line in (folder / "bad_samples.jsonl").read_text().splitlines()]


# ------------------------------------------------------------ what is read


def test_opening_reads_one_record_and_says_what_all_are_like(make, s3):
    store = make()
    assert is_streamed(store)
    assert s3.count("GET") == 0
    assert len(s3.requests) == 2
    assert store.keys[:2] == ["f000", "f001"]
    assert len(store.arrays["image"].shapes) == COUNT
    assert store.arrays["image"].shapes[7] == (2, SIDE, SIDE)
    assert (store.arrays["image"].dtype, store.arrays["mean"].dtype) == (np.uint16, np.float32)
    assert not store.device
    assert store.block > 100


def test_what_is_expected_is_fetched_meanwhile_all_files_at_once(make, s3):
    store = make(connections=6)
    s3.latency = 0.02
    store.expect(np.arange(40))
    assert usable(store, range(40)) == list(range(40))
    for record in range(40):
        right(store, record)
    assert s3.most_at_once == 6
    assert s3.count("f017-red") == 1


def test_without_look_ahead_a_batch_waits_for_its_own_and_reads_the_same(make, s3):
    """`cache.ahead`: what is only expected is not asked for, and there are no more requests than those of a batch."""
    store = make(ahead=False, connections=1)
    s3.requests.clear()
    store.expect(np.arange(1, 40))
    assert usable(store, range(30, 36)) == list(range(30, 36))
    for record in range(30, 36):
        right(store, record)
    asked = [path for method, path in s3.requests if method == "GET"]
    assert len(asked) == 2 * 6  # two files a record
    assert s3.most_at_once == 1


def test_records_can_be_read_without_being_announced(make):
    store = make()
    for record in (5, 3, 5):
        right(store, record)
    assert store.meta[9]["key"] == "f009"
    assert [meta["key"] for meta in store.meta[10:12]] == ["f010", "f011"]
    assert len(store.meta) == COUNT
    rows = np.array([8, 9, 3, 8])  # two rows a record
    out = np.empty((4, SIDE, SIDE), np.uint16)
    store.arrays["image"].take(rows, out)
    np.testing.assert_array_equal(out, [image(row // 2, row % 2) for row in rows])


def test_what_was_fetched_is_there_for_another_process(make, s3):
    assert usable(make(), range(10)) == list(range(10))
    s3.requests.clear()
    again = make()
    assert len(s3.requests) == 2  # one record, to see that the code still makes the same
    assert usable(again, range(10)) == list(range(10))
    assert len(s3.requests) == 2
    assert again.counters()["hits"] == 10


def test_counters_say_what_happened_since_they_were_asked(make, s3):
    store = make()
    store.counters()
    s3.fail("unavailable", "f004-red", times=1)
    usable(store, [1, 2, 4])
    told = store.counters()
    size = len(npy(image(0, 0)))
    assert (told["files"], told["bytes"], told["retries"]) == (6, 6 * size, 1)
    assert (told["hits"], told["misses"], told["bad"]) == (0, 3, 0)
    assert 0 < told["fetched_seconds"] <= told["waited_seconds"] + 1
    usable(store, [1, 2, 4, 4])
    told = store.counters()
    assert (told["files"], told["hits"], told["misses"], told["waited_seconds"]) == (0, 3, 0, 0)
    assert set(told) == {
        "files", "bytes", "retries", "fetched_seconds", "hits", "misses", "waited_seconds", "bad",
    }  # fmt: skip


def test_the_same_from_a_folder(make, tmp_path):
    (tmp_path / "data").mkdir()
    write_fields(lambda name, data: (tmp_path / "data" / name).write_bytes(data), 20)
    store = make(records=fields(tmp_path / "data", 20))
    assert usable(store, range(20), among=np.arange(20)) == list(range(20))
    for record in range(20):
        right(store, record)
    told = store.counters()
    assert (told["files"], told["bytes"]) == (40, 40 * len(npy(image(0, 0))))
    (tmp_path / "data" / "f003-red.npy").write_bytes(npy(image(99, 0)))  # another size or time: another record
    os.utime(tmp_path / "data" / "f003-red.npy", (1, 1))
    again = make(records=fields(tmp_path / "data", 20))
    assert again.identity != store.identity
    np.testing.assert_array_equal(again.arrays["image"].read(3)[0], image(99, 0))


def test_a_file_that_changes_at_its_url_is_another_one(make):
    def records(version):
        made = fields(ROOT, 20)
        changed = Url(made[3].files["red"].text, None, version)
        made[3] = type(made[3])(made[3].key, made[3].group, made[3].files | {"red": changed})
        return made

    one, other = make(records=records('"1"')), make(records=records('"2"'))
    assert one.identity != other.identity
    assert make(records=records('"1"')).identity == one.identity


def test_workers_have_clients_of_their_own_and_share_what_is_kept(make, s3, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "data_toy"))
    store = make()
    usable(store, [4])
    workers = Workers(Reads(store), 2, "read")
    try:
        for record in range(4, 8):
            workers.submit(record)
        found = [workers.receive()[1] for _ in range(4)]
    finally:
        workers.close()
    truth = {record: sum(int(image(record, channel).sum()) for channel in (0, 1)) for record in range(4, 8)}
    assert {record: total for record, total, _, _ in found} == truth
    assert sum(files for *_, files in found) == 6  # f004 was there
    assert os.getpid() not in {pid for _, _, pid, _ in found}


def test_a_store_that_is_sent_takes_no_threads_or_files_with_it(make):
    store = make()
    usable(store, range(5))
    sent = pickle.dumps(store)
    assert len(sent) < 400 * COUNT
    copy = pickle.loads(sent)
    right(copy, 2)
    copy.close()


def test_a_fault_of_python_s_in_threads_is_not_the_record_s(make, monkeypatch):
    decode, failed = Fields.decode, []

    def once(self, record):
        if record.key not in failed:
            failed.append(record.key)
            raise SystemError("AST constructor recursion depth mismatch")
        return decode(self, record)

    monkeypatch.setattr(Fields, "decode", once)
    assert usable(make(), range(4)) == [0, 1, 2, 3]
    assert sorted(failed) == ["f000", "f001", "f002", "f003"]


# ------------------------------------------------------------ room


def taken(folder: Path) -> int:
    """The bytes of disk that `folder`'s files take, while the store goes on adding and removing some."""
    sizes = []
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed since the folder was read
            sizes.append(os.stat(file).st_blocks * 512)
    return sum(sizes)


def test_a_small_lru_is_enough_but_not_too_small_a_one(make, tmp_path):
    page = 4096  # a record of the toy's takes one
    store = make(max_gb=20 * page / 1e9)
    for begin in range(0, 60, 12):
        batch = list(range(begin, begin + 12))
        store.expect(np.array([*batch, *range(begin + 12, begin + 24)]))
        assert usable(store, batch) == batch
        for record in batch:
            right(store, record)
        assert taken(tmp_path / "cache" / "stream") <= 20 * page
    assert 8 <= store.block <= 10
    with pytest.raises(OutOfSpace, match=r"hold 8 records of .*, 16 are needed: set cache\.max_gb to 0\.001 or more"):
        make("other", max_gb=10 * page / 1e9)


def test_more_than_there_is_room_for_may_be_wanted_at_once(make):
    store = make(max_gb=20 * 4096 / 1e9)
    assert usable(store, range(50)) == list(range(50))
    for record in range(50):
        right(store, record)


def test_a_lru_of_other_code_is_refused(make, monkeypatch):
    usable(make(), range(3))
    prepare = Fields.prepare
    monkeypatch.setattr(
        Fields, "prepare", lambda self, decoded: prepare(self, decoded) | {"mean": np.ones(2, np.float32)}
    )
    with pytest.raises(BadInput, match=r"stream: the cache holds other arrays than `prepare`.*'mean' of record f000"):
        make()


# ------------------------------------------------------------ bad records


def test_bad_records_are_replaced_by_others_of_their_split_and_listed(make, s3, tmp_path):
    s3.fail("missing", "f010-green")
    s3.fail("unavailable", "f011-red")
    s3.fail("short", "f012-red", times=2)
    store, among = make(), np.arange(0, 100)
    store.begin(tmp_path)
    usable(store, range(100, 200))  # three of a few would be too many
    chosen = usable(store, range(8, 14), epoch=3, among=among, first=50)
    assert [n for n, record in enumerate(range(8, 14)) if chosen[n] != record] == [2, 3, 4]
    assert all(record in among for record in chosen)
    for record in chosen:
        right(store, record)
    said = {line["record"]: line for line in lines(tmp_path)}
    assert {key: (line["kind"], line["epoch"], line["position"]) for key, line in said.items()} == {
        "f010": ("missing", 3, 52),
        "f011": ("transient", 3, 53),
        "f012": ("corrupt", 3, 54),
    }
    for key, colour, words in (
        ("f010", "green", "no such file"),
        ("f011", "red", "503"),
        ("f012", "red", "is no image"),
    ):
        assert said[key]["file"] == f"{ROOT}/{key}-{colour}.npy"
        assert words in said[key]["reason"]
        assert said[key]["replaced_by"] == store.keys[chosen[int(key[1:]) - 8]]
    assert store.counters()["bad"] == 3


def test_bad_records_of_a_folder(make, tmp_path):
    (tmp_path / "data").mkdir()
    write_fields(lambda name, data: (tmp_path / "data" / name).write_bytes(data), 100)
    (tmp_path / "data" / "f002-red.npy").write_bytes(b"no image")
    (tmp_path / "data" / "f003-red.npy").unlink()
    store = make(records=fields(tmp_path / "data", 100))
    store.begin(tmp_path)
    chosen = usable(store, range(5), among=np.arange(100))
    assert [chosen[n] == n for n in range(5)] == [True, True, False, False, True]
    assert [(line["record"], line["kind"]) for line in lines(tmp_path)] == [("f002", "corrupt"), ("f003", "missing")]


def test_the_same_replaces_it_at_the_same_place_in_every_process_and_batch(make, s3):
    s3.fail("missing", "f010-red")
    one, other = make(), make("other")
    alone = [usable(one, [10], epoch, first=7) for epoch in range(6)]
    together = [usable(other, [1, 2, 10], epoch, first=5)[2:] for epoch in range(6)]
    assert alone == together
    assert len({chosen[0] for chosen in alone}) > 2
    assert alone[0][0] == next(stand_ins(0, 7, ALL))


def test_a_resumed_run_replays_what_was_replaced(make, s3, tmp_path):
    s3.fail("unavailable", "f010-red")
    first = make()
    first.begin(tmp_path)
    before = usable(first, [9, 10, 11], 2, first=30)
    first.close()
    s3.heal()
    s3.fail("missing", f"f{next(stand_ins(5, 40, ALL)):03}-red")
    with open(tmp_path / "bad_samples.jsonl", "a") as file:
        file.write('{"record": "f0')  # killed as it wrote
    again = make("other")
    again.begin(tmp_path)
    assert usable(again, [9, 10, 11], 2, first=30) == before
    assert usable(again, [9, 10, 11], 2, first=31) == [9, 10, 11]  # the file is back: only that place is replayed
    assert len(lines(tmp_path)) == 1
    right(again, 10)


def test_a_record_with_other_shapes_is_bad(make, s3, tmp_path):
    for colour in ("red", "green"):
        s3.put("other", f"f005-{colour}.npy", npy(image(5, 0, SIDE + 1)))
    records = fields(ROOT, COUNT)
    odd = {colour: Url(f"s3://other/f005-{colour}.npy") for colour in ("red", "green")}
    records[5] = type(records[5])("f005", "g1", odd)
    store = make(records=records)
    store.begin(tmp_path)
    assert usable(store, [5]) != [5]
    assert lines(tmp_path)[0]["kind"] == "corrupt"
    assert "streamed records have one shape" in lines(tmp_path)[0]["reason"]
    with pytest.raises(BadRecord, match="f005: its prepared arrays are image <u2"):
        store.arrays["image"].read(5)


def test_one_percent_of_all_files_may_be_bad_and_no_more(make, s3, tmp_path):
    """4 of 400."""
    for record in (20, 60, 100, 140):
        s3.fail("missing", f"f{record:03}-red")
    store = make()
    store.begin(tmp_path)
    for begin in range(0, COUNT, 20):
        usable(store, range(begin, begin + 20), first=begin)
    assert len(lines(tmp_path)) == 4
    s3.fail("missing", "f180-green")
    other = make("other")
    other.begin(tmp_path / "none")
    (tmp_path / "none").mkdir()
    for begin in range(0, 180, 20):
        usable(other, range(begin, begin + 20), first=begin)
    with pytest.raises(BadInput, match=r"5 files of 400 cannot be used, \d+ were asked.*more than 1%") as caught:
        usable(other, range(180, 200), first=180)
    assert str(caught.value).count("no such file") == 5


def test_when_everything_breaks_it_is_said_soon(make, s3):
    store = make(retries=0)
    s3.fail("unavailable")
    with pytest.raises(BadInput, match="3 files of 400 cannot be used"):
        usable(store, range(10))


def test_what_other_processes_found_counts(make, s3, tmp_path):
    for record in range(20, 25):
        s3.fail("missing", f"f{record:03}-red")
    stores = [make(), make("other")]
    for store in stores:
        store.begin(tmp_path)
    usable(stores[0], range(30, 150))
    usable(stores[1], range(30, 150))
    usable(stores[0], [20, 21, 22])
    with pytest.raises(BadInput, match="5 files of 400"):
        usable(stores[1], [23, 24])


def test_many_workers_that_find_few_bad_files_each_do_not_stop(tmp_path):
    """0.5 % of each one's files, which is 4 % of what one of eight has asked for."""

    class Bad:
        def __init__(self, number):
            self.key, self.file, self.reason, self.kind = f"f{number}", f"f{number}.tif", "is broken", "corrupt"

    workers = [BadSamples(100_000, tmp_path / "bad_samples.jsonl") for _ in range(8)]
    for number in range(80):
        worker = workers[number % 8]
        worker.refuse_too_many(Bad(number), 200 * (1 + number // 8))
        worker.replaced(Bad(number), number, 0, "f1000")
    assert len(lines(tmp_path)) == 80


def test_a_file_that_is_back_after_a_while_is_used_again(make, s3, monkeypatch):
    store = make(retries=0)
    s3.fail("unavailable", "f010-red", times=1)
    assert usable(store, [10]) != [10]
    assert usable(store, [10]) != [10]  # not asked for at every batch
    monkeypatch.setattr(sources, "_AGAIN", 0.0)
    assert usable(store, [10], epoch=1) == [10]
    assert usable(store, [10]) != [10]  # where it was replaced it stays so


@pytest.mark.parametrize("bucket, words", [("nowhere", "no such bucket"), ("private", "denies access")])
def test_a_wrong_bucket_or_no_access_is_said_at_once(make, s3, bucket, words):
    for colour in ("red", "green"):
        s3.put("private", f"plate/f000-{colour}.npy", npy(image(0, 0)), public=False)
    with pytest.raises(BadInput, match=words):
        make(records=fields(Url(f"s3://{bucket}/plate"), COUNT))
    assert len(s3.requests) <= 2


def test_a_first_record_that_is_bad_does_not_speak_for_the_others(make, s3):
    s3.fail("missing", "f000-red")
    store = make()
    assert usable(store, [1, 2]) == [1, 2]
    assert usable(store, [0]) != [0]
    sent = pickle.loads(pickle.dumps(store))  # to a worker
    assert usable(sent, [0]) == usable(store, [0])
    sent.close()
    with pytest.raises(DataErrors, match="3 records cannot be used"):
        make(records=fields(ROOT / "none", 3))


def test_nobody_can_take_its_place(make, s3):
    s3.fail("missing", "f010-red")
    with pytest.raises(
        BadInput, match=r"f010-red\.npy: there is no such file; and no record that was tried in its place"
    ):
        usable(make(), [10], among=np.array([10]))


# ------------------------------------------------------------ the end of a process


@pytest.mark.parametrize("how", ["end", "raise", "interrupt"])
def test_a_process_ends_at_once_while_requests_are_under_way(s3, tmp_path, how):
    """A thread that comes back from a request while Python ends would abort it."""
    script = f"""
import sys, os, signal, threading, time
sys.path.insert(0, {str(Path(__file__).parent / "data_toy")!r})
import numpy as np
from pathlib import Path
from runner_core.base.location import Url
from stream_toy import fields, open_fields
store = open_fields(fields(Url("{ROOT}"), {COUNT}), Path({str(tmp_path)!r}), endpoint="{s3.endpoint}")
print("open", flush=True)
sys.stdin.readline()
store.expect(np.arange(1, 100))
if {how!r} == "raise":
    raise ZeroDivisionError
if {how!r} == "interrupt":
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    store.usable(np.arange(50), np.arange(50), 0, np.arange(50))
time.sleep(0.2)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "open\n"
    s3.fail("stalled")
    begun = time.monotonic()
    said = process.communicate("go\n", timeout=60)[1]
    assert time.monotonic() - begun < 25  # requests alone would take 30 s and more
    assert process.returncode == {"end": 0, "raise": 1, "interrupt": -2}[how], said
    assert "Fatal" not in said
    assert {"end": said == "", "raise": "ZeroDivisionError" in said, "interrupt": "KeyboardInterrupt" in said}[how]
