"""A batch of slices from the cache, against a raw memory map and MONAI's CacheDataset.

    uv run python benchmarks/cache.py

Generated heads in the shape of NFBS (256 × 256 × 192, uint8 image and mask), a batch of 32 random slice pairs. All
ways read the same slices in turns, in one process, from warm memory; medians, and their ratio to the raw memory map:
`numpy.take` from two memory-mapped files into buffers that are reused, the fastest that NumPy can do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from runner_core import Decoded, Project, Record, RowSamples, RunConfig
from runner_core.cache import default_cache
from runner_core.config import CacheConfig
from runner_core.crop import NoCrop
from runner_core.loader import Loader
from runner_core.pipeline import RecordPipeline

SLICES, SIDE, BATCH, SEED = 192, 256, 32, 0
Read = Callable[[np.ndarray], None]


class Heads(Project):
    """Noisy ellipsoids; a record's file holds its seed."""

    name, framework, Config, presets = "heads", "torch", RunConfig, {}

    def records(self, root: Path) -> list[Record]:
        return [Record(p.stem, p.stem, {"seed": p}) for p in sorted(root.glob("*.seed"))]

    def decode(self, record: Record) -> Decoded:
        rng = np.random.default_rng(int(record.files["seed"].read_text()))
        z, y, x = np.ogrid[-1 : 1 : SLICES * 1j, -1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
        radius = z**2 + y**2 / rng.uniform(0.5, 0.8) + x**2 / rng.uniform(0.3, 0.5)
        noise = rng.integers(0, 12, (SLICES, SIDE, SIDE), dtype=np.uint8)
        image = np.where(radius < 1, (200 - 120 * radius).clip(0, 255).astype(np.uint8) + noise, 0).astype(np.uint8)
        mask = (radius < 0.6).astype(np.uint8)
        return Decoded({"image": image, "mask": mask}, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        return decoded.arrays


def runner(folder: Path, mode: str) -> Read:
    """The whole loader: order, ring of buffers, gather. It draws its own random slices."""
    config = RunConfig(cache=CacheConfig(mode=mode, dir=folder / "cache", workers=1))  # type: ignore[arg-type]
    project = Heads(config)
    pipeline, records = RecordPipeline(project, NoCrop()), project.records(folder)
    store = default_cache(project, config).open(pipeline, records, print)
    samples = RowSamples(store, {"image": (0,), "mask": (0,)}, range(len(records)))
    batches = Loader(samples, batch_size=BATCH, seed=SEED, shuffle=True, steps_per_epoch=10**5).batches(0)

    def read(rows: np.ndarray) -> None:
        next(batches).release()

    return read


def raw(folder: Path) -> Read:
    """np.take into reused buffers, on the very files of the cache."""
    files = sorted((folder / "cache").rglob("*.flat/array-*.bin"))
    maps = [np.memmap(f, np.uint8, "r").reshape(-1, SIDE, SIDE) for f in files]
    buffers = [np.empty((BATCH, SIDE, SIDE), np.uint8) for _ in maps]

    def read(rows: np.ndarray) -> None:
        for source, out in zip(maps, buffers, strict=True):
            np.take(source, rows, axis=0, out=out, mode="clip")

    return read


def raw_indexing(folder: Path) -> Read:
    """What one writes first: memmap[rows], a new array each time."""
    files = sorted((folder / "cache").rglob("*.flat/array-*.bin"))
    maps = [np.memmap(f, np.uint8, "r").reshape(-1, SIDE, SIDE) for f in files]

    def read(rows: np.ndarray) -> None:
        _batch = [source[rows] for source in maps]  # both are there at once, as a step needs them

    return read


def monai(folder: Path, copy_cache: bool) -> Read:
    """CacheDataset of whole volumes with a random slice as the transform, collated as its DataLoader does."""
    from monai.data import CacheDataset
    from monai.transforms import Compose, Randomizable, Transform

    project = Heads(RunConfig())

    class Load(Transform):
        def __call__(self, record: Record) -> dict[str, np.ndarray]:
            return project.decode(record).arrays

    class RandomSlice(Randomizable, Transform):
        def __call__(self, volume: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: array[self.wanted] for name, array in volume.items()}

    pick = RandomSlice()
    dataset = CacheDataset(project.records(folder), Compose([Load(), pick]), copy_cache=copy_cache, progress=False)

    def read(rows: np.ndarray) -> None:
        items = []
        for row in rows.tolist():
            record, pick.wanted = divmod(row, SLICES)
            items.append(dataset[record])
        for name in items[0]:
            np.stack([item[name] for item in items])

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--volumes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(arguments.volumes):
            (folder / f"head-{number:03d}.seed").write_text(str(number))
        ways: dict[str, tuple[Read, int]] = {  # and how often each is measured: every so many rounds
            "runner, memory map (default)": (runner(folder, "memmap"), 1),
            "raw memory map, np.take into a buffer": (raw(folder), 1),
            "raw memory map, memmap[rows]": (raw_indexing(folder), 1),
            "runner, memory": (runner(folder, "memory"), 1),
            "runner, blosc2": (runner(folder, "blosc2"), 1),
            "MONAI CacheDataset, copy_cache=False": (monai(folder, False), 1),
            "MONAI CacheDataset": (monai(folder, True), 60),
        }
        report(measure(ways, arguments.volumes * SLICES, arguments.rounds))


def measure(ways: dict[str, tuple[Read, int]], rows: int, rounds: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(SEED)
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds + 10):
        wanted = rng.integers(0, rows, BATCH)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # nobody always follows the same one
            read, every = ways[name]
            if turn % every == 0:
                begun = time.perf_counter()
                read(wanted)
                if turn >= 10 or every > 1:  # the first turns bring pages in
                    times[name].append(time.perf_counter() - begun)
    return times


def report(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(t) for name, t in times.items()}
    reference = medians["raw memory map, np.take into a buffer"]
    print(f"\n| batch of {BATCH} slice pairs | ms | pairs a second | speed, raw memory map = 1 |\n|---|---|---|---|")
    for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
        print(f"| {name} | {seconds * 1e3:.3f} | {BATCH / seconds:,.0f} | {reference / seconds:.3g} |")


if __name__ == "__main__":
    main()
