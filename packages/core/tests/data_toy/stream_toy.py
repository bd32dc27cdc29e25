"""Streamed records small enough for tests; spawned processes import it by name."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from runner_core import BadInput, DataSet, Decoded, Project, Record, RunConfig
from runner_core.base.location import Url
from runner_core.config import CacheConfig, RemoteConfig
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.stream.cache import StreamCache

SIDE = 16


class Fields(Project):
    """Records of two .npy images each, of SIDE × SIDE uint16: KEY-red.npy, KEY-green.npy."""

    name = "fields"
    framework = "torch"
    Config = RunConfig
    presets = {}  # noqa: RUF012
    dataset = DataSet(remote=True)

    def decode(self, record):
        images = []
        for path in record.files.values():
            try:
                images.append(np.load(path, allow_pickle=False))
            except (ValueError, EOFError) as error:
                raise BadInput(f"{record.key}: {path} is no image ({error})") from error
        return Decoded({"image": np.stack(images)}, (1.0, 1.0, 1.0), "image", {"key": record.key})

    def prepare(self, decoded):
        image = decoded.arrays["image"]
        return {"image": image, "mean": image.mean(axis=(1, 2), dtype=np.float32), "none": image[:0]}


def image(number: int, channel: int, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng((number, channel)).integers(0, 60000, (side, side), dtype=np.uint16)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_fields(put, count: int, side: int = SIDE) -> None:
    """`put(name, data)` for every file of `count` records."""
    for number in range(count):
        for channel, colour in enumerate(("red", "green")):
            put(f"f{number:03}-{colour}.npy", npy(image(number, channel, side)))


def fields(root: Path | Url, count: int) -> list[Record]:
    files = [{c: root / f"f{n:03}-{c}.npy" for c in ("red", "green")} for n in range(count)]
    return [Record(f"f{n:03}", f"g{n % 4}", own) for n, own in enumerate(files)]


def open_fields(records, cache: Path, max_gb: float | None = 0.1, ahead: bool = True, **remote):
    """A store of these records."""
    config = RunConfig(cache=CacheConfig("stream", cache, max_gb, ahead=ahead), remote=RemoteConfig(**remote))
    pipeline = RecordPipeline(Fields(config), NoCrop())
    return StreamCache(config.cache, config.remote).open(pipeline, records, lambda text: None)


class Reads:
    """Reads a record in a worker process: its number, its sum, the process, files that were fetched for it."""

    def __init__(self, store) -> None:
        self.store = store

    def __call__(self, record):
        self.store.usable(np.array([record]), np.array([record]), 0, np.array([record]))
        total = int(self.store.arrays["image"].read(record).sum())
        return record, total, os.getpid(), self.store.counters()["files"]


class Mapped:
    """Returns a record of a table, the large files of columns that its process has mapped, and the sum of numbers."""

    def __init__(self, held) -> None:
        self.held = held

    def __call__(self, number):
        table, numbers = self.held
        lines = Path("/proc/self/maps").read_text().splitlines()
        files = sorted({line.split(maxsplit=5)[5] for line in lines if "/records" in line and ".packed" in line})
        return table[number], files, int(numbers.sum())
