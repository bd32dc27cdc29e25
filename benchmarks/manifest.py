"""What the records of a streamed data set take on one machine: as objects in every process, and as compressed rows.

Records of one image each, with long keys, an S3 address, a size and an etag. Workers get them as the loader sends them.
Figures are for each record, and for 5 million of them on a machine with 8 training processes of 4 workers each.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Record, Url
from runner_core.base.workers import Workers
from runner_core.data.sampling import order
from runner_core.data.stream.table import Digests, RecordTable

from benchmarks.harness import Aim, Cell, Options, Result, Table, number

COUNT, QUICK = 300_000, 5_000
IMAGES, RANKS, WORKERS = 5_000_000, 8, 4
AIM = 1.5e9
SAMPLES = 10_000_000


def made(count: int) -> tuple[list[Record[Url]], list[str]]:
    """Return records, and the names that they are kept under."""
    records, names = [], []
    for n in range(count):
        plate, digest = (
            f"source_{n % 11}/batch_{n % 97}/plate_{n // 3456:05d}",
            hashlib.md5(str(n).encode()).hexdigest(),
        )
        well = f"{plate}/{chr(65 + n % 16)}{n % 24 + 1:02d}/{n % 9}"
        url = Url(f"s3://cellpainting-gallery/cpg0016-jump/{well}.tiff", 2_000_000 + n, f'"{digest}"')
        records.append(Record(well, plate, {"dna": url}))
        names.append(digest)
    return records, names


class Holds:
    """Work that holds something, and says what memory its process has of its own."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, task: Sequence[int]) -> int:
        records, names = self.held
        for place in task:  # as a worker that has read some
            assert records[place].key
            assert names[place]
        return own_bytes()


def own_bytes() -> int:
    """Return the bytes that this process alone has written: what it shares with others is not among them."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def taken_by(make: Callable[[], Any]) -> tuple[int, float, Any]:
    before, begun = own_bytes(), time.process_time()
    found = make()
    seconds = time.process_time() - begun
    return own_bytes() - before, seconds, found


def in_a_worker(held: Any, count: int) -> int:
    """Return the bytes that `held` takes in a worker, above one that holds a single record."""
    places = list(range(0, count, max(1, count // 100)))
    sizes = []
    for what, task in ((held, places), ((held[0][:1], held[1][:1]), [0])):
        workers = Workers(Holds(what), 1, "measure")
        try:
            workers.submit(task)
            sizes.append(workers.receive()[1])
        finally:
            workers.close()
    return sizes[0] - sizes[1]


def run(options: Options) -> Result:
    count = QUICK if options.quick else COUNT
    main, seconds, (records, names) = taken_by(lambda: made(count))
    worker = in_a_worker((records, names), count)
    pickled = len(pickle.dumps((records, names)))
    packed, packing, (table, digests) = taken_by(lambda: (RecordTable(records), Digests(names)))
    shared = sum(a.nbytes for t in (table, table.keys) for a in (t._bytes, t._ends)) + digests._bytes.nbytes
    table_worker = in_a_worker((table, digests), count)
    begun = time.perf_counter()
    for n in (several := np.random.default_rng(0).integers(0, count, 2_000).tolist()):
        assert table[n].key
    each = (time.perf_counter() - begun) / len(several)
    begun = time.process_time()
    order(0, 1, SAMPLES // (100 if options.quick else 1), 1, shuffle=True)
    drawing = time.process_time() - begun

    def node(main_bytes: float, worker_bytes: float, shared_bytes: float = 0.0) -> float:
        each_rank = main_bytes + shared_bytes + WORKERS * max(0.0, worker_bytes)
        return RANKS * each_rank / count * IMAGES

    rows: list[list[Cell]] = [
        ["objects, pickled", main / count, pickled / count, worker / count, node(main, worker) / 1e9],
        [
            "runner, compressed rows",
            packed / count,
            0,
            max(0, table_worker) / count,
            node(packed, table_worker, shared) / 1e9,
        ],
    ]
    heads = ["bytes a record", "training process", "sent to a worker", "worker, of its own", "machine, 5 million (GB)"]
    ours = float(rows[1][-1] or 0)
    return Result(
        "The records of five million images",
        __doc__ or "",
        [Table(heads, rows)],
        [Aim(f"at most {AIM / 1e9:g} GB on the machine: {number(ours)}", ours * 1e9 <= AIM)],
        [
            f"Measured with {count:,} records and multiplied. The memory that a process shares with its workers "
            f"({number(shared / count)} bytes a record) is counted once for each training process.",
            f"Compressing takes {number(packing / count * 1e6)} µs a record (making the objects: "
            f"{number(seconds / count * 1e6)} µs), reading any one record {number(each * 1e6)} µs.",
            f"The order of {SAMPLES:,} samples takes {number(drawing)} s of processor time. A thread computes it while "
            "the epoch before is trained: training waits for none of it.",
        ],
    )
