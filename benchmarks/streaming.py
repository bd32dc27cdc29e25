"""Images of five channels out of an S3 bucket that takes 100 ms to answer, as dinocell reads them: wait, or do not."""

from __future__ import annotations

import io
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from runner_core import Decoded, Location, PatchSamples, Project, Record, RemoteConfig, RunConfig, Url
from runner_core.config import CacheConfig
from runner_core.data.cache import default_cache
from runner_core.data.crop import NoCrop
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline

from benchmarks.bucket import BUCKET, LATENCY, served
from benchmarks.harness import Aim, Cell, Options, Result, Table, Turns, Way, compared

if TYPE_CHECKING:
    from s3server import S3

SIDE, CHANNELS, CONNECTIONS = 1080, 5, 16
A_TURN, KEEPS = 8, 16
"""Fields that a turn reads, and that the bounded store keeps: fewer than there are, so that all are fetched anew."""
BATCH, CROP, COMPUTE, WARMUP = 4, 224, 0.5, 3
"""Fields of a batch (20 images), side of the windows, seconds that a step computes, steps that do not count."""
NARROW = 40
"""Images a second that the narrow link lets through."""
OURS, KEPT = "runner, 16 connections", "runner, decoded and kept"
S3FS, BOTO3, THREADS = "s3fs, one after another", "boto3, one after another", "boto3, 32 threads"
SIGNED = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}


class Fields(Project):
    """One tif a channel."""

    name, framework, Config, presets, remote = "fields", "torch", RunConfig, {}, True

    def decode(self, record: Record) -> Decoded:
        import tifffile

        image = np.stack([tifffile.imread(path) for path in record.files.values()])
        return Decoded({"image": image}, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        return decoded.arrays


def key(field: int, channel: int) -> str:
    return f"f{field:03}-ch{channel}.tif"


def fill(s3: S3, count: int, side: int, rate: float | None = None) -> None:
    """`count` fields; `rate`: bytes a second that the link lets through."""
    import tifffile

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.random.default_rng(0).integers(0, 2**16, (side, side), dtype=np.uint16))
    for field in range(count):
        for channel in range(CHANNELS):
            s3.put(BUCKET, key(field, channel), buffer.getvalue())
    for field in range(count):  # from now on the server has the answers
        for channel in range(CHANNELS):
            for headers in ({}, {"Authorization": "AWS4-HMAC-SHA256 Credential=x/x/us-east-1/s3/aws4_request"}):
                url = f"{s3.endpoint}/{BUCKET}/{key(field, channel)}"
                urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read()
    s3.rate = rate


class Images:
    def __init__(self, endpoint: str, folder: Path, count: int, side: int) -> None:
        self.endpoint, self.folder, self.count, self.side = endpoint, folder, count, side

    def fields(self, turn: int) -> list[int]:
        """Return the fields of a turn, one after the other, so that none is asked for again before all others were."""
        return [(turn * A_TURN + i) % self.count for i in range(A_TURN)]

    def store(self, name: str, kept: int) -> Any:
        """A store that keeps about `kept` fields."""
        size = kept * (CHANNELS * self.side**2 * 2 + 8192)
        config = RunConfig(
            cache=CacheConfig("stream", self.folder / name, size * 1.1 / 1e9),
            remote=RemoteConfig(endpoint=self.endpoint, credentials="anonymous", connections=CONNECTIONS),
        )
        root = Url(f"s3://{BUCKET}")
        files: list[dict[str, Location]] = [
            {str(c): root / key(field, c) for c in range(CHANNELS)} for field in range(self.count)
        ]
        records: list[Record[Any]] = [Record(f"f{n}", "plate", own) for n, own in enumerate(files)]
        project = Fields(config)
        return default_cache(project, config, records).open(
            RecordPipeline(project, NoCrop()), records, lambda text: None
        )

    def runner(self, kept: int) -> Way:
        """Fields that are fetched anew, since others took their place meanwhile; or none, if all are kept."""
        store = self.store(f"kept-{kept}", kept)
        if kept > self.count:
            for turn in range(self.count // A_TURN):
                read(store, self.fields(turn))
        return lambda fields: read(store, fields)

    def one_by_one(self, get: Callable[[str], bytes], threads: int = 1) -> Way:
        pool = ThreadPoolExecutor(threads)
        return lambda fields: list(
            pool.map(lambda name: decoded(get(name)), [key(f, c) for f in fields for c in range(CHANNELS)])
        )

    def s3fs(self) -> Way:
        import s3fs

        files = s3fs.S3FileSystem(endpoint_url=self.endpoint, key="x", secret="x")

        def get(name: str) -> bytes:
            with files.open(f"{BUCKET}/{name}", "rb") as file:
                return file.read()

        return self.one_by_one(get)

    def boto3(self, threads: int = 1) -> Way:
        import boto3
        from botocore.config import Config

        client = boto3.client("s3", endpoint_url=self.endpoint, config=Config(max_pool_connections=threads), **SIGNED)
        return self.one_by_one(lambda name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read(), threads)


def read(store: Any, fields: list[int]) -> int:
    records = np.array(fields)
    store.usable(records, np.arange(len(records)), 0, records)
    return sum(int(store.arrays["image"].read(field).max()) for field in fields)


def decoded(data: bytes) -> int:
    import tifffile

    return int(tifffile.imread(io.BytesIO(data)).max())


def trained(store: Any, steps: int, compute: float) -> tuple[float, float]:
    """(share of the time that steps wait for their batch, images a second) of a training whose steps compute so long,
    after warm-up; through runner's loader, at its usual look-ahead."""
    crop = min(CROP, store.arrays["image"].shapes[0][1])
    samples = PatchSamples(store, ("image",), (CHANNELS, crop, crop), range(len(store.keys)), 1)
    batches = Loader(samples, batch_size=BATCH, seed=0, shuffle=True, steps_per_epoch=10**6).batches(0)
    waited = begun = 0.0
    for step in range(WARMUP + steps):
        if step == WARMUP:
            waited, begun = 0.0, time.perf_counter()
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        time.sleep(compute)  # a GPU's work: the processor is free meanwhile
        batch.release()
    took = time.perf_counter() - begun
    store.close()
    return waited / took, steps * BATCH * CHANNELS / took


def run(options: Options) -> Result:
    count, side, turns, steps = (24, 128, 1, 3) if options.quick else (48, SIDE, 24, 30)
    with tempfile.TemporaryDirectory() as name:
        with served(partial(fill, count=count, side=side)) as endpoint:
            images = Images(endpoint, Path(name), count, side)
            contenders = Turns(turns)
            contenders.add(OURS, lambda: images.runner(KEEPS))
            contenders.add(KEPT, lambda: images.runner(count + 1))
            contenders.add(THREADS, lambda: images.boto3(32), every=2)
            contenders.add(BOTO3, images.boto3, every=8)
            contenders.add(S3FS, images.s3fs, every=8)
            times = contenders.run(images.fields)
            fetching = trained(images.store("fetching", KEEPS), 2 * steps, 0.0)
            wide = trained(images.store("wide", KEEPS), steps, COMPUTE)
        with served(partial(fill, count=count, side=side, rate=NARROW * 2 * side**2)) as endpoint:
            images = Images(endpoint, Path(name), count, side)
            alone = trained(images.store("alone", KEEPS), steps, 0.0)
            narrow = trained(images.store("narrow", KEEPS), steps, COMPUTE / 5)
    batch = BATCH * CHANNELS
    columns = ["a training, 20 images a step", "needs images/s", "gets images/s", "waits for data, % of the time"]
    rows: list[list[Cell]] = [
        ["link that suffices, nothing but fetching", None, fetching[1], 100 * fetching[0]],
        [f"link that suffices, {COMPUTE} s a step", batch / COMPUTE, wide[1], 100 * wide[0]],
        [f"link of {NARROW} images/s, {COMPUTE / 5} s a step", batch / COMPUTE * 5, narrow[1], 100 * narrow[0]],
        [f"link of {NARROW} images/s, nothing but fetching", None, alone[1], 100 * alone[0]],
    ]
    aims = [] if options.quick else [
        Aim("92 images/s or more with 16 connections, one batch after another", fetching[1] >= 92),
        Aim("556 images/s or more of what is kept", A_TURN * CHANNELS / times[KEPT].median >= 556),
        Aim("at most 5 % of the step waiting where the link suffices", wide[0] <= 0.05),
        Aim("0.9 or more of what the link gives where it does not", narrow[1] >= 0.9 * alone[1]),
    ]  # fmt: skip
    return Result(
        title="Images out of S3",
        what=f"Fields of {CHANNELS} channels, each a tif of {side}² pixels (uint16), out of an S3 server (moto) on "
        f"this machine, in a process of its own, that answers after {LATENCY * 1000:.0f} ms. Everybody reads and "
        f"decodes the same {A_TURN * CHANNELS} images a turn; runner fetches, decodes, keeps them on disk, {KEEPS} "
        "fields at most, and reads them back. Below, a training through runner's loader.",
        tables=[compared(times, OURS, f"{A_TURN} fields", ("images", A_TURN * CHANNELS)), Table(columns, rows)],
        aims=aims,
        left_out=contenders.left_out,
        packages=("obstore", "boto3", "s3fs", "tifffile", "moto"),
    )
