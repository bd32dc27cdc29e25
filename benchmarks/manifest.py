"""What the records of five million images take on one machine with 8 training processes of 4 workers each.

Records of one image each, with long keys, an S3-like address, a size and an etag. The first process lists them, and
opens the data as `train` does; the others and all workers map what it wrote. The processes are real: they open the
data, make the order of each epoch, and workers read the records of their batches. Only the images are not there, and no
framework is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from runner_core import DataSet, Decoded, Project, Record, RunConfig, SampleSpec, Url, tabled
from runner_core.base.resources import own_peak
from runner_core.config import CacheConfig, RemoteConfig
from runner_core.contract.setup import Setup
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.loader import Loader
from runner_core.data.samples import RecordSamples
from runner_core.data.stream.client import remote_client
from runner_core.data.table import RecordTable
from runner_core.health.reads import leaked_records
from runner_core.plugins import defaults
from runner_core.plugins.manager import Plugins
from runner_core.training.data import open_data
from runner_core.training.keeping import fingerprint
from runner_core.training.manifest import manifest_place, read_manifest, release
from runner_core.training.seen import save_contents, save_split

from benchmarks.harness import Aim, Cell, Options, Result, Table, number

IMAGES, FEW, QUICK = 5_000_000, 20_000, 40_000
TOGETHER = 4_096
RANKS, WORKERS, BATCH, STEPS, EPOCHS = 8, 4, 256, 40, 3
SAMPLES = 10_000_000
MOST_GB, MOST_SECONDS = 1.5, 60


class Images(Project):
    """`count` records, of which the file of the first is there."""

    name = "images"
    framework = "torch"
    Config = RunConfig
    presets = {}  # noqa: RUF012
    dataset = DataSet(remote=True)
    count = 0
    listing = 0.0
    """Processor seconds that listing took."""

    def records(self, root: Any) -> Sequence[Record[Any]]:
        return tabled(self._listed(root))

    def _listed(self, root: Any) -> Iterator[Record[Any]]:
        (first,) = remote_client(self.config.remote).describe([root / "first.npy"])
        yield Record("first", "plate_00000", {"dna": first})
        for start in range(1, self.count, TOGETHER):
            begun = time.process_time()
            found = [made(n) for n in range(start, min(self.count, start + TOGETHER))]
            self.listing += time.process_time() - begun
            yield from found

    def decode(self, record: Any) -> Decoded:
        image = np.load(record.files["dna"], allow_pickle=False)
        return Decoded({"image": image}, (1.0,), "image", {})

    def prepare(self, decoded: Decoded) -> dict[str, Any]:
        return decoded.arrays


def made(n: int) -> Record[Any]:
    plate, digest = f"source_{n % 11}/batch_{n % 97}/plate_{n // 3456:05d}", hashlib.md5(str(n).encode()).hexdigest()
    well = f"{plate}/{chr(65 + n % 16)}{n % 24 + 1:02d}/{n % 9}-{n}"
    return Record(
        well, plate, {"dna": Url(f"s3://cellpainting-gallery/cpg0016-jump/{well}.tiff", 2_000_000 + n, digest)}
    )


class Touched(RecordSamples):
    """Samples whose records are looked up as training does, and whose images are not read."""

    spec = {"record": SampleSpec((), np.dtype(np.int64))}  # noqa: RUF012

    def __init__(self, store: Any, records: Any) -> None:
        super().__init__(store)
        self.store, self.record_of_sample = store, np.asarray(records, np.int64)

    def expect(self, indices: Any) -> None:
        source = self.store._source
        for record in self.record_of_sample[indices].tolist():
            assert not source.lru.touch(source.names[record])

    def fill(self, indices: Any, positions: Any, seed: int, epoch: int, out: Any) -> None:
        out["record"][...] = self.record_of_sample[indices]
        for record in out["record"].tolist():
            assert self.store.records[record].key == self.store.keys[record]


def setup(folder: Path, count: int) -> Setup:
    plugins = Plugins()
    plugins.register(defaults, "core")
    config = RunConfig(cache=CacheConfig("auto", folder / "cache", 0.1), remote=RemoteConfig())
    project = Images(config)
    project.count = count
    return Setup(project, config, "demo", Url(f"file://{folder}"), plugins)


def train(rank: int, ranks: int, workers: int, count: int, folder: Path, pipe: Connection) -> None:
    """Do what training does with records in one of the processes, in steps that the parent starts."""
    own = setup(folder, count)
    place = pipe.recv()
    begun = time.process_time(), time.perf_counter()
    known = read_manifest(place)
    assert (known is None) == (rank == 0)
    data = open_data(own, lambda text: None, manifest=folder / ".manifest", known=known)
    if rank == 0:
        save_split(folder, data.records, data.splits)
        index = Identities(cache_root(own.config.cache.dir))
        save_contents(folder, index, data.records, data.splits["train"])
        release(data.records)
    fingerprint(own.config, data, "float32")
    samples = {split: Touched(data.store, data.splits[split]) for split in ("train", "validation")}
    assert not any(leaked_records(samples, data.splits, data.store).values())
    assert isinstance(data.records, RecordTable)
    seconds = time.process_time() - begun[0] - own.project.listing  # type: ignore[attr-defined]
    pipe.send((manifest_place(data), seconds, own_peak()))
    pipe.recv()
    loader = Loader(
        samples["train"], batch_size=BATCH, seed=0, shuffle=True, workers=workers, drop_last=True, epochs=EPOCHS,
        rank=rank, ranks=ranks,
    )  # fmt: skip
    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader.batches(epoch)):
            batch.release()
            if step == min(STEPS, loader.steps_per_epoch) - 1:
                break
    pipe.send(None)
    pipe.recv()
    loader.close()
    data.store.close()


@contextlib.contextmanager
def processes(shape: tuple[int, int], count: int, folder: Path) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes, started = [], []
    for rank in range(shape[0]):
        ours, theirs = context.Pipe()
        started.append(context.Process(target=train, args=(rank, *shape, count, folder, theirs)))
        started[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for process in started:
            process.kill()  # its workers end with it
            process.join()


def taken() -> int:
    """Return the bytes of memory of all child processes; shared memory counts once, files in the page cache do not."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.Error):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return total


def machine_with(shape: tuple[int, int], count: int) -> dict[str, float]:
    """Return seconds and bytes of a machine that trains on so many records, in ranks with workers (`shape`)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "first.npy", np.zeros(16, np.uint8))
        with processes(shape, count, folder) as pipes:
            pipes[0].send(None)
            place, first, listed = pipes[0].recv()
            files = sum(file.stat().st_size for file in (folder / ".manifest").rglob("*.npy"))
            for pipe in pipes[1:]:
                pipe.send(place)
            others = [pipe.recv()[1] for pipe in pipes[1:]]
            opened = taken()
            for pipe in pipes:
                pipe.send(None)
            most = 0
            while not all(pipe.poll() for pipe in pipes):
                most = max(most, taken())
                time.sleep(0.1)
            after = taken()
            for pipe in pipes:
                pipe.send(None)
    return {
        "first": first, "other": float(np.median(others)), "listed": listed, "files": files, "opened": opened,
        "most": most, "after": after,
    }  # fmt: skip


def waiting(count: int) -> tuple[float, float]:
    """Return the processor seconds of an epoch's order, and the wait (ms) for the next where an epoch takes longer."""
    from runner_core.data.loader import Sequences
    from runner_core.data.sampling import near_order_of

    def compute(epoch: int) -> Any:
        return near_order_of(0, epoch, range(count), count, 1_000)

    begun = time.process_time()
    compute(0)
    seconds = time.process_time() - begun
    sequences = Sequences(compute, 3)
    sequences.of(0)
    while sequences._coming is not None and not sequences._coming[2]:
        time.sleep(0.1)  # the epoch is trained
    begun = time.perf_counter()
    sequences.of(1)
    return seconds, (time.perf_counter() - begun) * 1e3


def run(options: Options) -> Result:
    count, shape = (QUICK, (2, 1)) if options.quick else (IMAGES, (RANKS, WORKERS))
    few, many = machine_with(shape, FEW), machine_with(shape, count)
    seconds, wait = waiting(SAMPLES // 100 if options.quick else SAMPLES)

    def added(moment: str) -> float:
        return (many[moment] - few[moment] + many["files"]) / 1e9

    rows: list[list[Cell]] = [
        [f"runner, {count:,} records", added("opened"), added("most"), added("after"), many["first"], many["other"]],
        [f"of this, {FEW:,} records and all else", *(few[m] / 1e9 for m in ("opened", "most", "after")),
         few["first"], few["other"]],
    ]  # fmt: skip
    heads = ["", "opened (GB)", "most while training (GB)", "after (GB)", "first process (s)", "each other (s)"]
    return Result(
        "The records of five million images",
        __doc__ or "",
        [Table(heads, rows)],
        [
            Aim(f"at most {MOST_GB} GB on the machine: {number(added('most'))}", added("most") <= MOST_GB),
            Aim(
                f"training begins within {MOST_SECONDS} s after the listing: {number(many['first'] + many['other'])}",
                many["first"] + many["other"] <= MOST_SECONDS,
            ),
            Aim(f"no wait for the next epoch's order of {SAMPLES:,} samples: {number(wait)} ms", wait < 1),
        ],
        [
            f"Memory is what {shape[0]} × {1 + shape[1]} processes take with these records above what they take with "
            f"{FEW:,} (anonymous and shared memory, each byte counted once), and all of the manifest's files "
            f"({number(many['files'] / 1e9)} GB, {number(many['files'] / count)} bytes a record), which lie once in "
            "the page cache. Seconds are processor time.",
            "While the first process lists and writes, it holds the compressed columns that become the manifest: "
            f"{number(many['listed'] / 1e9)} GB at most, given back before training.",
            f"The order of {SAMPLES:,} samples takes {number(seconds)} s of processor time in a thread, while the "
            "epoch before is trained.",
        ],
    )
