"""The bound holds whatever is put, whoever reads, whoever is killed; and nothing torn is ever read."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import OutOfSpace
from runner_core.cli import main
from runner_core.data.cache import manage
from runner_core.data.stream.lru import Lru, PackedRecord

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from lru_toy import arrays, get, put, whole

TOY = Path(__file__).parent / "data_toy"
PAGE = 4096


def taken(folder: Path) -> int:
    """Bytes on the disk. Files may go while they are counted."""
    total = 0
    for name in os.listdir(folder):
        try:
            there = os.stat(folder / name)
        except FileNotFoundError:
            continue
        total += max(there.st_size, there.st_blocks * 512)
    return total


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "bool", "complex64", "S3"])
def test_arrays_come_back_as_they_were(tmp_path, dtype):
    lru = Lru(tmp_path, 10**7)
    rng = np.random.default_rng(0)
    given = {
        "cube": rng.integers(0, 100, (3, 5, 7)).astype(dtype),
        "scalar": np.array(7).astype(dtype),
        "empty": np.empty((0, 5), dtype),
    }
    key = f"{0xAB:032x}"
    made = lru.put(key, given, {"box": [1, None, "x"]})
    for entry in (made, lru.get(key), pickle.loads(pickle.dumps(lru)).get(key)):
        assert entry.meta == {"box": [1, None, "x"]}
        assert entry.layout == tuple((name, given[name].dtype.str, given[name].shape) for name in sorted(given))
        for name, array in given.items():
            np.testing.assert_array_equal(entry.arrays[name], array)
            assert not entry.arrays[name].flags.writeable
            assert entry.arrays[name].ctypes.data % 64 == 0
    assert lru.names() == {key}
    assert lru.get("cd") is None
    assert Lru(tmp_path / "nowhere", 10).names() == set()


@settings(max_examples=60, deadline=None)
@given(
    bound=st.integers(0, 40),
    steps=st.lists(st.tuples(st.sampled_from("pppgk"), st.integers(0, 12), st.integers(0, 9000)), max_size=40),
)
def test_never_above_the_bound_and_always_what_was_put(bound, steps):
    """Sizes of 1 to 10 pages; `k` keeps an entry in use until the end."""
    with tempfile.TemporaryDirectory() as name:
        lru = Lru(Path(name), bound * PAGE)
        kept = []
        for what, key, count in steps:
            entry = put(lru, key, count) if what == "p" else get(lru, key)
            assert entry is None or whole(entry, key)
            if what == "k" and entry is not None:
                kept.append((key, entry))
            del entry
            assert taken(Path(name)) <= max(bound, 1) * PAGE  # the file with the total is always there
        assert all(whole(entry, key) for key, entry in kept)


def test_the_eldest_goes_first_and_what_was_used_stays(tmp_path):
    lru = Lru(tmp_path, 12 * PAGE)
    for key in range(8):
        put(lru, key, 10)
    get(lru, 0)
    assert lru.touch(f"{1:032x}")
    for key in range(8, 14):
        put(lru, key, 10)
    assert {0, 1, 13} < {int(key, 16) for key in lru.names()}
    assert get(lru, 2) is None
    assert not lru.touch(f"{2:032x}")


def test_what_is_in_use_is_not_removed_but_counts(tmp_path):
    lru = Lru(tmp_path, 6 * PAGE)
    used = [put(lru, key, 10) for key in range(5)]
    more = [put(lru, key, 10) for key in range(5, 9)]  # no room: not kept, but given
    assert all(whole(entry, key) for key, entry in enumerate([*used, *more]))
    assert len(lru.names()) == 5
    view = used[0].arrays["a"][2:4]
    del used, more
    put(lru, 20, 4000)
    assert {int(key, 16) for key in lru.names()} == {0, 20}  # a view of one array is enough
    assert view.tolist() == [0, 0]
    del view
    put(lru, 21, 4000)
    assert {int(key, 16) for key in lru.names()} == {21}


def test_a_record_larger_than_all_is_given_but_not_kept(tmp_path):
    lru = Lru(tmp_path, 3 * PAGE)
    assert whole(put(lru, 1, 10**5), 1)
    assert lru.names() == set()


def test_a_record_that_is_there_is_not_written_again(tmp_path):
    lru = Lru(tmp_path, 10 * PAGE)
    first = put(lru, 1, 10)
    inode = (tmp_path / f"{1:032x}").stat().st_ino
    assert whole(put(lru, 1, 10), 1)
    assert (tmp_path / f"{1:032x}").stat().st_ino == inode
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    assert whole(first, 1)


@pytest.mark.parametrize("where", ["head", "header", "data", "short", "empty"])
def test_a_torn_file_is_never_read_and_goes(tmp_path, where):
    put(Lru(tmp_path, 10**6), 1, 5000)
    file = tmp_path / f"{1:032x}"
    if where in ("short", "empty"):
        os.truncate(file, 9000 if where == "short" else 0)
    else:
        with open(file, "r+b") as torn:
            torn.seek({"head": 3, "header": 40, "data": 12345}[where])
            torn.write(b"\xff\xfe")
    assert get(Lru(tmp_path, 10**6), 1) is None
    assert not file.exists()


def test_a_smaller_bound_holds_from_the_start(tmp_path):
    lru = Lru(tmp_path, 50 * PAGE)
    for key in range(40):
        put(lru, key, 10)
    assert Lru(tmp_path, 20 * PAGE).trim() == taken(tmp_path) <= 20 * PAGE
    assert get(lru, 39) is not None


def test_what_killed_writers_left_goes_and_a_lost_total_is_counted_anew(tmp_path):
    lru = Lru(tmp_path, 20 * PAGE)
    put(lru, 1, 10)
    left, written = (tmp_path / f".writing-{key:032x}-{key}-0" for key in (1, 2))
    left.write_bytes(bytes(5 * PAGE))
    with open(written, "wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        alive.truncate(3 * PAGE)
        assert Lru(tmp_path, 20 * PAGE).trim() == 5 * PAGE  # the total, a record, what is being written
    assert not left.exists()
    assert written.exists()
    os.truncate(tmp_path / "total", 0)
    for key in range(2, 60):
        put(lru, key, 10)
        assert taken(tmp_path) <= 20 * PAGE


def test_a_full_disk_makes_room_and_else_says_so(tmp_path, monkeypatch):
    lru = Lru(tmp_path, 100 * PAGE)
    for key in range(20):
        put(lru, key, 10)
    real, refused = os.posix_fallocate, []

    def once(descriptor, begin, size):
        if len(refused) < limit:
            refused.append(size)
            raise OSError(28, "No space left on device")
        real(descriptor, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", once)
    limit = 1
    put(lru, 50, 10)
    assert len(lru.names()) < 21
    assert get(lru, 50) is not None
    limit = 99
    with pytest.raises(OutOfSpace, match="the disk is full"):
        put(lru, 51, 10)
    assert not any(name.startswith(".") for name in os.listdir(tmp_path))


def test_files_that_are_not_of_it_are_left_alone(tmp_path):
    (tmp_path / "film.mp4").write_bytes(bytes(9 * PAGE))
    (tmp_path / "folder").mkdir()
    lru = Lru(tmp_path, 5 * PAGE)
    for key in range(9):
        assert whole(put(lru, key, 10), key)
    assert 2 <= len(lru.names()) <= 4
    assert Lru(tmp_path, 0).trim() == PAGE  # the total
    assert {p.name for p in tmp_path.iterdir()} == {"film.mp4", "folder", "total"}


def test_it_is_listed_and_pruned_as_one_cache(tmp_path, capsys):
    lru = Lru(tmp_path / "stream", 10**6)
    held = put(lru, 0, 10)
    for key in (1, 2, 3):
        put(lru, key, 10)
    (tmp_path / "stream" / f".writing-{9:032x}-9-0").write_bytes(bytes(PAGE))
    (entry,) = manage.entries(tmp_path)
    assert (entry.records, entry.form, entry.in_use, entry.bytes) == (4, "stream", True, lru.size())
    assert (manage.entries(tmp_path, "toy"), manage.verify(tmp_path)) == ([], [])
    assert manage.prune(tmp_path, project="toy", everything=True).kept == []
    assert manage.prune(tmp_path).removed == []
    assert len(os.listdir(lru.folder)) == 5  # what was left of a killed writer is gone
    ((_, why),) = manage.prune(tmp_path, everything=True).kept
    assert why.startswith("a process has 1 record of it open")
    assert whole(held, 0)
    del held
    assert main(["cache", "list", "--dir", str(tmp_path)]) == 0
    assert "(all)             1 record " in capsys.readouterr().out
    assert len(manage.prune(tmp_path, older_than_days=-1).removed) == 1
    assert manage.entries(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"file/stream cannot be written.*cache\.dir"):
        Lru(tmp_path / "file" / "stream", 10**6).trim()


def start(folder: Path, seed: int, bound: int) -> subprocess.Popen[str]:
    words = [sys.executable, TOY / "lru_toy.py", folder, seed, bound]
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    """A process that has done something, and nothing wrong."""
    assert process.stdout.readline() == "sound\n", process.communicate()[1]
    process.kill()
    assert process.communicate()[1] == ""


class Watch(threading.Thread):
    """Looks at the folder as fast as it can; `most`: the bytes that there were."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.most, self.over = folder, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.001):
            self.most = max(self.most, taken(self.folder))


def sound(folder: Path, bound: int, most: int) -> None:
    """Never more than `bound` was there; nothing is left over, and all can be read."""
    lru = Lru(folder, bound)
    assert 0 < most <= bound
    assert lru.trim() == taken(folder) <= bound
    assert not any(name.startswith(".writing") for name in os.listdir(folder))
    names = lru.names()
    assert names
    assert all(whole(lru.get(name), int(name, 16)) for name in names)


def killing(folder: Path, rounds: int, bound: int = 40 * PAGE) -> None:
    """Three processes at once, of which again and again one is killed and another begins."""
    watch, rng = Watch(folder), random.Random(0)
    running = [start(folder, seed, bound) for seed in range(3)]
    for seed in range(3, rounds):
        time.sleep(rng.uniform(0, 0.05))
        kill(running.pop(rng.randrange(3)))
        running.append(start(folder, seed, bound))
    for process in running:
        kill(process)
    watch.over.set()
    watch.join()
    sound(folder, bound, watch.most)


def test_processes_that_are_killed(tmp_path):
    killing(tmp_path, 7)


@pytest.mark.weekly
def test_processes_that_are_killed_for_long(tmp_path):
    killing(tmp_path, 100)


def test_a_sheaf_knows_its_size_before_it_is_written(tmp_path):
    lru = Lru(tmp_path, 10**6)
    put(lru, 7, 1234)
    assert (tmp_path / f"{7:032x}").stat().st_size == PackedRecord(arrays(7, 1234), {"key": 7}).size
    assert lru.fit(10 * PAGE) * 10 * PAGE <= 10**6 * 0.95
    assert Lru(tmp_path, lru.needed(25, 10 * PAGE)).fit(10 * PAGE) >= 25
