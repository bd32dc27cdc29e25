"""One sequence of samples, whatever the workers, the ranks and the step of the resume; never a hang."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, OutOfSpace, RunnerError, SampleSpec
from runner_core.base import resources
from runner_core.base.workers import Packed, Workers
from runner_core.data.loader import Loader, Sequences
from runner_core.data.sampling import order

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from rows_toy import Doubles, Failing, add_noise

TOY = str(Path(__file__).parent / "data_toy")


class Numbers:
    """Samples that are their own numbers."""

    def __init__(self, length):
        self.length = length
        self.spec = {"image": SampleSpec((3,), np.dtype(np.int32)), "record": SampleSpec((), np.dtype(np.int64))}

    def __len__(self):
        return self.length

    def fill(self, indices, positions, seed, epoch, out):
        out["image"][...] = indices[:, None]
        out["record"][...] = indices


def read(loader, epoch=0, first_step=0):
    """Copies of the batches, released one by one."""
    got = []
    for batch in loader.batches(epoch, first_step):
        assert batch.count in (len(batch.arrays["record"]), 0)
        got.append({name: a[: batch.count].copy() for name, a in batch.arrays.items()})
        batch.release()
    return got


def release_all(batches):
    """Number of batches."""
    return len([batch.release() for batch in batches])


def numbers(batches):
    return [n for b in batches for n in b["record"].tolist()]


def same(one, two):
    return len(one) == len(two) and all(np.array_equal(a[n], b[n]) for a, b in zip(one, two, strict=True) for n in a)


@settings(deadline=None)  # the machine is shared
@given(
    length=st.integers(1, 50),
    batch_size=st.integers(1, 9),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    steps=st.none() | st.integers(1, 12),
    first=st.integers(0, 12),
)
def test_an_epoch_is_the_pure_order_and_resumes_anywhere(length, batch_size, epoch, shuffle, steps, first):
    loader = Loader(Numbers(length), batch_size=batch_size, seed=4, shuffle=shuffle, steps_per_epoch=steps)
    whole = read(loader, epoch)
    count = length if steps is None else steps * batch_size
    assert numbers(whole) == order(4, epoch, length, count, shuffle).tolist()
    assert len(whole) == loader.steps_per_epoch
    assert same(read(loader, epoch, first), whole[first:])


@settings(deadline=None)  # the machine is shared
@given(
    length=st.integers(1, 60),
    share=st.integers(1, 4),
    ranks=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_ranks_share_each_global_batch_in_order(length, share, ranks, drop_last):
    if drop_last and length < share * ranks:
        return
    options = {"seed": 1, "shuffle": True, "drop_last": drop_last}
    one = Loader(Numbers(length), batch_size=share * ranks, **options)
    per_rank = []
    for rank in range(ranks):
        loader = Loader(Numbers(length), batch_size=share, rank=rank, ranks=ranks, **options)
        assert loader.steps_per_epoch == one.steps_per_epoch
        per_rank.append(read(loader))
    whole = numbers(read(one))
    full = length // (share * ranks)
    joined = [n for step in range(full) for batches in per_rank for n in batches[step]["record"].tolist()]
    rest = [n for batches in per_rank for n in numbers(batches[full:])]
    assert joined + rest == whole
    assert {len(batches) for batches in per_rank} == {one.steps_per_epoch}


def test_ranks_see_the_batches_of_one_process_in_turn():
    """So a validation's losses over whole batches do not depend on the number of processes."""

    def batches(**share):
        loader = Loader(Numbers(19), batch_size=3, seed=1, shuffle=False, **share)
        return [numbers([batch]) for batch in read(loader)]

    for ranks in (2, 3, 4, 9):
        turns = zip(*(batches(rank=rank, ranks=ranks) for rank in range(ranks)), strict=True)
        assert [batch for turn in turns for batch in turn if batch] == batches()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches_and_augmentation(workers):
    options = {"batch_size": 4, "seed": 9, "shuffle": True, "steps_per_epoch": 8, "augment": add_noise}
    here = Loader(Pictures(), **options)
    there = Loader(Pictures(), workers=workers, **options)
    try:
        for epoch, first in ((0, 0), (1, 0), (1, 5)):
            assert same(read(here, epoch, first), read(there, epoch, first))
        iterator = there.batches(2)
        next(iterator).release()
        iterator.close()  # left in the middle: what workers still write must not meet the next epoch's batches
        assert same(read(there, 3), read(here, 3))
        assert there.ring_bytes == here.ring_bytes == 4 * 4 * (3 * 4 + 8)
    finally:
        there.close()
    assert not any(psutil.pid_exists(pid) for pid in there.worker_pids)


class Pictures(Numbers):
    """Importable by workers through the test toy."""

    def __init__(self):
        super().__init__(19)

    def __reduce__(self):
        from rows_toy import RemoteNumbers

        return RemoteNumbers, (19,)


class Places(Numbers):
    """Samples that tell their places in the epoch's sequence."""

    def fill(self, indices, positions, seed, epoch, out):
        out["image"][...] = positions[:, None]


def test_samples_are_told_their_positions():
    options = {"batch_size": 2, "seed": 0, "shuffle": True, "steps_per_epoch": 5}
    whole = [b["image"][:, 0].tolist() for b in read(Loader(Places(3), **options))]
    assert whole == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [b["image"][:, 0].tolist() for b in read(Loader(Places(3), **options), first_step=3)] == whole[3:]
    share = Loader(Places(3), rank=1, ranks=2, **options | {"batch_size": 1})
    assert [b["image"][0, 0] for b in read(share)] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_buffer_is_refilled_only_after_its_release(workers):
    loader = Loader(Pictures(), batch_size=2, seed=0, shuffle=True, prefetch=1, workers=workers)
    try:
        batches = loader.batches(0)
        held = [next(batches) for _ in range(3)]
        before = [b.arrays["image"].copy() for b in held]
        time.sleep(0.2 if workers else 0)  # workers would write now, if they could
        assert all(np.array_equal(b.arrays["image"], x) for b, x in zip(held, before, strict=True))
        with pytest.raises(RuntimeError, match="all 3 buffers are in use"):
            next(batches)
        held[0].release()
        held[0].release()  # twice is once
        batches = loader.batches(0, first_step=3)
        following = next(batches)
        assert np.shares_memory(following.arrays["image"], held[0].arrays["image"])
        held[0].release()  # too late: that buffer holds another batch now
        assert all(np.array_equal(b.arrays["image"], x) for b, x in zip(held[1:], before[1:], strict=True))
        with pytest.raises(RuntimeError, match="buffers are in use"):
            next(batches)
    finally:
        loader.close()


def test_the_ring_is_allocated_by_the_engine():
    asked = []

    def allocate(shape, dtype):
        asked.append((shape, np.dtype(dtype)))
        return np.empty(shape, dtype)

    Loader(Numbers(9), batch_size=5, seed=0, shuffle=False, prefetch=0, allocate=allocate)
    assert asked == [((5, 3), np.dtype(np.int32)), ((5,), np.dtype(np.int64))] * 2


def test_shared_buffers_are_pinned_once_and_a_block_of_batches_fits():
    pinned = []
    loader = Loader(Pictures(), batch_size=2, seed=0, shuffle=True, prefetch=1, block=3, workers=1, pin=pinned.append)
    try:
        held = [next(batches) for batches in [loader.batches(0)] for _ in range(5)]
        (memory,) = pinned
        assert memory.dtype == np.uint8
        assert all(np.shares_memory(memory, a) for b in held for a in b.arrays.values())
    finally:
        loader.close()
    Loader(Pictures(), batch_size=2, seed=0, shuffle=True, pin=pytest.fail)  # `allocate` pins those


def test_bad_settings():
    with pytest.raises(BadInput, match=r"7 samples do not fill one batch of 16: set train\.batch_size to 3 or less"):
        Loader(Numbers(7), batch_size=8, seed=0, shuffle=True, drop_last=True, ranks=2)
    with pytest.raises(BadInput, match="there are no samples"):
        Loader(Numbers(0), batch_size=1, seed=0, shuffle=True)
    with pytest.raises(BadInput, match="batch_size must be"):
        Loader(Numbers(1), batch_size=0, seed=0, shuffle=True)


def test_errors_in_a_worker_come_with_their_traceback():
    loader = Loader(Failing("bug"), batch_size=2, seed=0, shuffle=True, workers=1)
    with pytest.raises(RunnerError, match=r"(?s)fill batches.*rows_toy\.py.*ZeroDivisionError: a bug in the samples"):
        next(loader.batches(0))
    loader = Loader(Failing("bad"), batch_size=2, seed=0, shuffle=True, workers=1)
    with pytest.raises(BadInput, match=r"^scan\.nii: broken$"):
        next(loader.batches(0))


@pytest.mark.parametrize("busy", [True, False])
def test_a_killed_worker_is_noticed(busy):
    loader = Loader(Failing("sleep") if busy else Pictures(), batch_size=2, seed=0, shuffle=True, workers=2)
    batches = loader.batches(0)
    if not busy:
        next(batches).release()
    begun = time.monotonic()
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    with pytest.raises(RunnerError, match="killed by SIGKILL"):
        release_all(itertools.chain(batches, *(loader.batches(epoch) for epoch in range(1, 3))))
    assert time.monotonic() - begun < 30  # not the 60 s that the sleeping worker would take
    assert not any(psutil.pid_exists(pid) for pid in loader.worker_pids)


def test_workers_ignore_the_terminals_signals():
    loader = Loader(Pictures(), batch_size=2, seed=0, shuffle=True, workers=1)
    batches = loader.batches(0)
    next(batches).release()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(loader.worker_pids[0], number)
    assert release_all(batches) == 9
    loader.close()


PARENT = """
import sys, time
sys.path.insert(0, {toy!r})
from rows_toy import Failing
from runner_core.data.loader import Loader
if __name__ == "__main__":
    loader = Loader(Failing("sleep"), batch_size=2, seed=0, shuffle=True, workers=2)
    print(*loader.worker_pids, flush=True)
    next(loader.batches(0))
"""


@pytest.mark.parametrize("idle", [False, True])
def test_workers_end_when_their_parent_is_killed(tmp_path, idle):
    script = PARENT.format(toy=TOY)
    if idle:
        script = script.replace("next(loader.batches(0))", "time.sleep(60)")
    file = tmp_path / "parent.py"
    file.write_text(script)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(p) for p in parent.stdout.readline().split()]
        workers = [psutil.Process(p) for p in pids]
        time.sleep(1)  # let them get to work
        assert len(workers) == 2
        assert all(w.is_running() for w in workers)
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert not alive


FRAMEWORKS = """
import sys
sys.path.insert(0, {toy!r})
from rows_toy import Frameworks
from runner_core.data.loader import Loader
if __name__ == "__main__":
    loader = Loader(Frameworks(), batch_size=1, seed=0, shuffle=True, workers=1)
    print(next(loader.batches(0)).arrays["image"].tolist())
"""


def test_workers_import_no_framework_and_the_parent_ends_with_them_running(tmp_path):
    """At exit, nothing waits for workers that were never closed."""
    file = tmp_path / "parent.py"
    file.write_text(FRAMEWORKS.format(toy=TOY))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[[0]]"
    assert not done.stderr


@pytest.mark.parametrize("setting", ["train.batch_size", "validate.batch_size"])
def test_batches_that_memory_cannot_hold_are_refused_before_it_is_taken(setting, monkeypatch):
    taken = []
    monkeypatch.setattr("runner_core.data.loader.available_ram", lambda: 10_000_000)
    samples = Numbers(10)
    size = sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in samples.spec.values())
    more = {"seed": 0, "shuffle": True, "setting": setting, "allocate": lambda *a: taken.append(a), "prefetch": 1}
    with pytest.raises(OutOfSpace, match=f"{setting} 1000000: 3 batches .* 10.0 MB are free: set {setting} to"):
        Loader(samples, batch_size=1_000_000, **more)
    assert not taken
    monkeypatch.setattr("runner_core.data.loader.available_ram", lambda: size)
    with pytest.raises(OutOfSpace, match=r"set train.prefetch to 0"):
        Loader(samples, batch_size=1, **more)


# ---------------------------------------------------------------- what workers are sent, and the next epoch's order


def test_workers_share_large_arrays_but_not_what_they_write():
    table = np.arange(1_000_000)
    workers = Workers(Doubles(table), 2, "test")
    try:
        for write in (True, False, True, False):
            tickets = [workers.submit((7, write)), workers.submit((8, write))]
            done = dict(workers.receive() for _ in tickets)
            assert {pid for pid, *_ in done.values()} == set(workers.pids)
            assert [done[ticket][2] for ticket in tickets] == [[0, 1, 2]] * 2
        assert [done[ticket][1] for ticket in tickets] == [-1, -1]
        _, value, _, writeable = next(iter([workers.submit((8, False)) and workers.receive()[1]]))
        assert (value, writeable) == (8, True), "worker 0 wrote 7, not 8"
    finally:
        workers.close()
    assert table[7:9].tolist() == [7, 8]


def test_the_peak_of_ended_workers_is_their_own_and_not_that_of_the_process_that_starts_them():
    held = b"1" * (256 << 20)
    workers = Workers(Doubles(np.arange(3)), 1, "test")
    workers.submit((1, False))
    workers.receive()
    peak = resources.own_peak(workers.pids[0])
    assert 0 < peak < len(held)
    with mock.patch.object(resources, "_ended_peaks", set()):
        workers.close()
        assert peak <= resources.peak_host_memory() - resources.own_peak() < len(held)


def test_nothing_large_is_pickled():
    packed = Packed({"numbers": np.arange(100_000), "turned": np.asfortranarray(np.eye(500)), "text": "x"})
    with mock.patch("multiprocessing.reduction.DupFd", lambda descriptor: Kept(os.dup(descriptor))):
        build, arguments = packed.__reduce__()
        again, others = packed.__reduce__()
    assert len(arguments[0]) < 2000
    assert arguments[3] is others[3], "one memory for all workers"
    for found in (build(*arguments), again(*others)):
        assert np.array_equal(found["numbers"], np.arange(100_000))
        assert np.array_equal(found["turned"], np.eye(500))
        assert found["turned"].flags.f_contiguous


class Kept:
    def __init__(self, descriptor):
        self._descriptor = descriptor

    def detach(self):
        return self._descriptor


def test_the_next_order_is_computed_while_an_epoch_is_trained():
    asked, may, threads = [], threading.Event(), []

    def compute(epoch):
        asked.append(epoch)
        threads.append(threading.current_thread() is threading.main_thread())
        if epoch == 1:
            assert may.wait(60)
        return np.full(3, epoch)

    sequences = Sequences(compute, epochs=3)
    assert sequences.of(0).tolist() == [0, 0, 0], "without waiting for epoch 1"
    assert sequences.of(0).tolist() == [0, 0, 0]
    may.set()
    assert sequences.of(1).tolist() == [1, 1, 1]
    assert sequences.of(2).tolist() == [2, 2, 2]
    assert sequences.of(2).tolist() == [2, 2, 2]
    assert asked == [0, 1, 2], "each once, none after the last"
    assert threads == [True, False, False]
    assert sequences.of(0).tolist() == [0, 0, 0], "any other epoch too"


def test_an_order_that_fails_fails_when_it_is_needed():
    sequences = Sequences(lambda epoch: np.empty(-1 if epoch else 3), epochs=2)
    assert len(sequences.of(0)) == 3
    with pytest.raises(ValueError, match="negative dimensions"):
        sequences.of(1)
