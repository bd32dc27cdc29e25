"""Patches for vesuvius: image and label of 72 × 136 × 136 out of volumes of 320³, from whatever they are kept in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Decoded, PatchSamples, Project, Record, RunConfig
from runner_core.config import CacheConfig
from runner_core.data.cache import default_cache
from runner_core.data.crop import NoCrop
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline

from benchmarks.harness import Aim, Options, Result, Table, Turns, Way, at_least, compared

PATCH, SIDE, SEED = (72, 136, 136), 320, 0
NAMES = ("image", "target")
MEMMAP, BLOSC2, TIF = "runner, memmap (default)", "runner, blosc2", "tifffile, the whole LZW tif"

Place = tuple[int, tuple[slice, ...]]
"""A patch: volume and region."""


class Scrolls(Project):
    """A folder of KEY-image.tif and KEY-target.tif."""

    name, framework, Config, presets = "scrolls", "torch", RunConfig, {}

    def records(self, root: Path) -> list[Record]:
        keys = sorted(path.name.removesuffix("-image.tif") for path in root.glob("*-image.tif"))
        return [Record(key, key, {name: root / f"{key}-{name}.tif" for name in NAMES}) for key in keys]

    def decode(self, record: Record) -> Decoded:
        import tifffile

        return Decoded({name: tifffile.imread(path) for name, path in record.files.items()}, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        return decoded.arrays


def write_scrolls(folder: Path, count: int, side: int) -> None:
    """Wavy sheets with a scanner's noise, and labels of which half is ignored: what compresses like the real ones."""
    import tifffile
    from scipy import ndimage

    for number, rng in enumerate(np.random.default_rng(SEED).spawn(count)):
        wave = ndimage.gaussian_filter(rng.standard_normal((side,) * 3).astype(np.float32), 24) * 1500
        depth = np.arange(side, dtype=np.float32)[:, None, None] + wave
        sheet = np.abs((depth % 12) - 6) < 2
        noise = ndimage.gaussian_filter(rng.standard_normal((side,) * 3).astype(np.float32), 1) * 60
        image = (100 + 60 * sheet + noise).clip(0, 255).astype(np.uint8)
        target = np.where(wave > 0, 2, sheet).astype(np.uint8)
        for name, volume in (("image", image), ("target", target)):
            kind = {"compression": "lzw", "photometric": "minisblack"}
            tifffile.imwrite(folder / f"s{number}-{name}.tif", volume, **kind)


class Volumes:
    def __init__(self, folder: Path, side: int) -> None:
        self.folder, self.side = folder, side
        self.records = Scrolls(RunConfig()).records(folder)

    def place(self, turn: int) -> Place:
        """A random patch, the same for all who let others choose."""
        rng = np.random.default_rng((SEED, turn))
        starts = rng.integers(0, self.side - np.array(PATCH) + 1)
        where = tuple(slice(start, start + size) for start, size in zip(starts.tolist(), PATCH, strict=True))
        return int(rng.integers(len(self.records))), where

    def runner(self, mode: str) -> Way:
        """The whole loader, one patch a batch: order, place, ring of buffers, copies."""
        config = RunConfig(cache=CacheConfig(mode=mode, dir=self.folder / "cache", workers=1))  # type: ignore[arg-type]
        project = Scrolls(config)
        store = default_cache(project, config).open(RecordPipeline(project, NoCrop()), self.records, lambda text: None)
        samples = PatchSamples(store, NAMES, PATCH, range(len(self.records)), 64)
        batches = Loader(samples, batch_size=1, seed=SEED, shuffle=True, steps_per_epoch=10**6).batches(0)
        for _ in range(64):  # brings the files' pages into this process
            next(batches).release()
        return lambda place: next(batches).release()

    def kept(self, keep: Callable[[Path, np.ndarray], Any]) -> Way:
        """Arrays that slice, one for each volume and name; `keep` writes and opens them."""
        arrays = [[keep(path, _read(path)) for path in record.files.values()] for record in self.records]
        return lambda place: [np.array(array[place[1]]) for array in arrays[place[0]]]

    def whole(self, place: Place) -> list[np.ndarray]:
        return [_read(path)[place[1]] for path in self.records[place[0]].files.values()]


def _read(path: Path) -> np.ndarray:
    import tifffile

    return tifffile.imread(path)


def _npy(path: Path, volume: np.ndarray) -> np.ndarray:
    np.save(path.with_suffix(".npy"), volume)
    return np.load(path.with_suffix(".npy"), mmap_mode="r")


def _tif(path: Path, volume: np.ndarray) -> np.ndarray:
    """Uncompressed, so that it can be mapped."""
    import tifffile

    plain = path.with_suffix(".plain.tif")
    tifffile.imwrite(plain, volume, photometric="minisblack")
    return tifffile.memmap(plain, mode="r")


def _zarr(path: Path, volume: np.ndarray) -> Any:
    import zarr

    return zarr.create_array(str(path.with_suffix(".zarr")), data=volume, chunks=(64, 64, 64))


def run(options: Options) -> Result:
    side, count = (160, 2) if options.quick else (SIDE, 4)
    with tempfile.TemporaryDirectory() as name:
        write_scrolls(Path(name), count, side)
        data = Volumes(Path(name), side)
        turns = Turns(10 if options.quick else 200, warmup=5)
        turns.add(MEMMAP, lambda: data.runner("memmap"))
        turns.add(BLOSC2, lambda: data.runner("blosc2"))
        turns.add("NumPy, .npy mapped", lambda: data.kept(_npy))
        turns.add("tifffile, plain tif mapped", lambda: data.kept(_tif))
        turns.add("zarr, chunks of 64³ (default codec)", lambda: data.kept(_zarr), every=4)
        turns.add(TIF, lambda: data.whole, every=20)
        times = turns.run(data.place)
        sizes = {mode: _bytes(data.folder / "cache", mode) for mode in ("flat", "blosc2")}
        whole = sum(path.stat().st_size for record in data.records for path in record.files.values())
    voxels = count * len(NAMES) * side**3
    columns = ["kept in", "bytes a voxel"]
    kept: list[list[Any]] = [
        ["memory map", round(sizes["flat"] / voxels, 2)],
        ["blosc2", round(sizes["blosc2"] / voxels, 2)],
        ["LZW tif", round(whole / voxels, 2)],
    ]
    aims = [] if options.quick else [
        Aim("memory map: 300 patches/s or more", 1 / times[MEMMAP].median >= 300),
        Aim("blosc2: 50 patches/s or more", 1 / times[BLOSC2].median >= 50),
    ]  # fmt: skip
    return Result(
        title="Patches out of scroll volumes",
        what=f"{count} generated volumes of {side}³ (uint8, with a target of that size), warm; one patch of "
        f"{' × '.join(map(str, PATCH))} of both at a random place, one thread. Runner's whole loader is measured "
        "(order, places, ring of buffers), of the others only the reading.",
        tables=[compared(times, MEMMAP, "a patch of image and target", ("patches", 1)), Table(columns, kept)],
        aims=[*aims, *at_least(times, MEMMAP, TIF, 100)],
        left_out=turns.left_out,
        packages=("numpy", "blosc2", "zarr", "tifffile", "imagecodecs"),
    )


def _bytes(cache: Path, ending: str) -> int:
    return sum(file.stat().st_size for file in cache.rglob(f"*.{ending}/array-*"))
