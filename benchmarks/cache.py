"""A batch from the cache: random slices, and random cubes of 64³, from volumes with labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Decoded, PatchSamples, Project, Record, RowSamples, RunConfig
from runner_core.config import CacheConfig
from runner_core.data.cache import default_cache
from runner_core.data.crop import NoCrop
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline

from benchmarks.harness import Aim, Options, Result, Table, Turns, Way, at_least, compared

SLICES, SIDE, CUBE, SEED = 192, 256, 64, 0
NAMES = ("image", "mask")
SHAPE = (SLICES, SIDE, SIDE)
RAW, RUNNER, MONAI = "raw memory map, into reused buffers", "runner, memmap (default)", "MONAI CacheDataset (default)"

Place = tuple[int, int, int, int]
"""A patch: volume, and first slice, row and column."""


class Heads(Project):
    """A folder of KEY-image.npy and KEY-mask.npy."""

    name, framework, Config, presets = "heads", "torch", RunConfig, {}

    def records(self, root: Path) -> list[Record]:
        keys = sorted(path.name.removesuffix("-image.npy") for path in root.glob("*-image.npy"))
        return [Record(key, key, {name: root / f"{key}-{name}.npy" for name in NAMES}) for key in keys]

    def decode(self, record: Record) -> Decoded:
        arrays = {name: np.load(path, allow_pickle=False) for name, path in record.files.items()}
        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        return decoded.arrays


def write_heads(folder: Path, count: int) -> None:
    """Noisy ellipsoids in the shape of NFBS."""
    z, y, x = np.ogrid[-1 : 1 : SLICES * 1j, -1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    for number, rng in enumerate(np.random.default_rng(SEED).spawn(count)):
        radius = (z**2 + y**2 / rng.uniform(0.5, 0.8) + x**2 / rng.uniform(0.3, 0.5)).astype(np.float32)
        noise = rng.integers(0, 12, SHAPE, dtype=np.uint8)
        image = np.where(radius < 1, (200 - 120 * radius).clip(0, 255).astype(np.uint8) + noise, 0).astype(np.uint8)
        np.save(folder / f"head{number}-image.npy", image)
        np.save(folder / f"head{number}-mask.npy", (radius < 0.6).astype(np.uint8))


class Volumes:
    """The volumes, as runner's cache keeps them and as others do. `patch`: what a sample is; `batch`: how many."""

    def __init__(self, folder: Path, patch: tuple[int, int, int], batch: int) -> None:
        self.folder, self.patch, self.batch = folder, patch, batch
        self.records = Heads(RunConfig()).records(folder)
        self.spaces = np.array(SHAPE) - np.array(patch) + 1

    def places(self, turn: int) -> list[Place]:
        """A batch of random patches, the same for all who let others choose."""
        rng = np.random.default_rng((SEED, turn))
        starts = rng.integers(0, self.spaces, (self.batch, 3))
        return [(volume, *start) for volume, start in zip(
            rng.integers(0, len(self.records), self.batch).tolist(), starts.tolist(), strict=True)]  # fmt: skip

    def region(self, place: Place) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(place[1:], self.patch, strict=True))

    # ------------------------------------------------------------ runner

    def runner(self, mode: str) -> Way:
        """The whole loader: order, ring of buffers, gather. It draws its own random samples."""
        config = RunConfig(cache=CacheConfig(mode=mode, dir=self.folder / "cache", workers=1))  # type: ignore[arg-type]
        project = Heads(config)
        store = default_cache(project, config).open(RecordPipeline(project, NoCrop()), self.records, lambda text: None)
        everyone = range(len(self.records))
        samples: Any = (
            RowSamples(store, dict.fromkeys(NAMES, (0,)), everyone)
            if self.patch == (1, SIDE, SIDE)
            else PatchSamples(store, NAMES, self.patch, everyone, 64)
        )
        batches = Loader(samples, batch_size=self.batch, seed=SEED, shuffle=True, steps_per_epoch=10**5).batches(0)
        for _ in range(len(samples) // self.batch):  # an epoch brings the files' pages into this process
            next(batches).release()
        return lambda places: next(batches).release()

    # ------------------------------------------------------------ memory maps, zarr, blosc2

    def raw(self, reused: bool) -> Way:
        """The very files of runner's cache. Slices by one np.take, cubes by slicing; into buffers that are reused, or
        into new arrays, as one writes it first."""
        files = sorted((self.folder / "cache").rglob("*.flat/array-*.bin"))
        maps = [np.memmap(f, np.uint8, "r").reshape(-1, *SHAPE) for f in files]
        for source in maps:
            source.max()  # brings its pages into this process
        buffers = [np.empty((self.batch, *self.patch), np.uint8) for _ in maps]
        if self.patch == (1, SIDE, SIDE):
            return _rows([m.reshape(-1, SIDE, SIDE) for m in maps], [b[:, 0] for b in buffers] if reused else None)
        if not reused:
            return lambda places: [np.stack([m[p[0]][self.region(p)] for p in places]) for m in maps]

        def read(places: Sequence[Place]) -> None:
            for i, place in enumerate(places):
                region = self.region(place)
                for source, out in zip(maps, buffers, strict=True):
                    out[i] = source[place[0]][region]

        return read

    def chunked(self, write: Callable[[Path, np.ndarray, tuple[int, ...]], Any]) -> Way:
        """A chunked array for each volume, in chunks of the samples' own shape."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        arrays = [
            [write(folder / f"{record.key}-{name}", np.load(record.files[name]), self.patch) for name in NAMES]
            for record in self.records
        ]
        return lambda places: [np.stack([arrays[p[0]][i][self.region(p)] for p in places]) for i in range(len(NAMES))]

    # ------------------------------------------------------------ MONAI

    def monai(self, kind: str, **settings: Any) -> Way:
        """Whole volumes in a data set of MONAI's, RandSpatialCropd, its own DataLoader; without metadata, which the
        others do not carry either."""
        import monai.data
        import torch
        from monai.transforms import Compose, RandSpatialCropd, Transform

        class Load(Transform):
            """Tensors, since PersistentDataset reads no arrays; with the channel that MONAI's transforms expect."""

            def __call__(self, record: Record) -> dict[str, torch.Tensor]:
                return {name: torch.from_numpy(np.load(path)[None]) for name, path in record.files.items()}

        monai.data.set_track_meta(False)
        torch.set_num_threads(1)  # as everyone here
        transform = Compose([Load(), RandSpatialCropd(NAMES, self.patch)])
        data = getattr(monai.data, kind)(self.records, transform, **settings)
        drawn = torch.utils.data.RandomSampler(data, replacement=True, num_samples=10**6)
        batches = iter(monai.data.DataLoader(data, batch_size=self.batch, sampler=drawn, num_workers=0))
        return lambda places: next(batches)


def _rows(maps: Sequence[np.ndarray], buffers: Sequence[np.ndarray] | None) -> Way:
    def read(places: Sequence[Place]) -> list[np.ndarray]:
        rows = [volume * SLICES + z for volume, z, _, _ in places]
        if buffers is None:
            return [source[rows] for source in maps]
        return [np.take(m, rows, axis=0, out=out, mode="clip") for m, out in zip(maps, buffers, strict=True)]

    return read


def _zarr(path: Path, array: np.ndarray, chunks: tuple[int, ...]) -> Any:
    import zarr

    return zarr.create_array(str(path), data=array, chunks=chunks)


def _blosc2(path: Path, array: np.ndarray, chunks: tuple[int, ...]) -> Any:
    import blosc2

    return blosc2.asarray(array, urlpath=f"{path}.b2nd", chunks=chunks, cparams={"codec": blosc2.Codec.LZ4})


def run(options: Options) -> Result:
    tables: list[Table] = []
    aims: list[Aim] = []
    left_out: dict[str, str] = {}
    volumes = 2 if options.quick else 8
    samples = ((f"slice pairs of {SIDE}²", (1, SIDE, SIDE), 32), (f"cube pairs of {CUBE}³", (CUBE, CUBE, CUBE), 16))
    with tempfile.TemporaryDirectory() as name:
        write_heads(Path(name), volumes)
        for what, patch, batch in samples:
            data = Volumes(Path(name), patch, batch)
            turns = contest(data, options.quick)
            times = turns.run(data.places)
            tables.append(compared(times, RAW, f"{batch} random {what}", (what.split(" of ")[0], batch)))
            found = [*at_least(times, RUNNER, RAW, 0.9), *at_least(times, RUNNER, MONAI, 8)]
            aims += [Aim(f"{what}: {aim.text}", aim.met) for aim in found]
            left_out |= turns.left_out
    return Result(
        title="A batch from the cache",
        what=f"{volumes} generated heads of {SLICES} × {SIDE} × {SIDE} (uint8, with a mask of that size), in memory or "
        "in warm files; a batch of random slices or of random cubes, each with its mask. Runner's and MONAI's whole "
        "loaders are measured (order, patches, collation; no workers), of the others only the reading.",
        tables=tables,
        aims=aims,
        remarks=[
            "MONAI's CacheDataset copies the whole volume for each sample, unless told not to; PersistentDataset reads "
            "it from its file again. Both are right where transforms change volumes in place, and both are what one "
            "gets first."
        ],
        left_out=left_out,
        packages=("numpy", "blosc2", "zarr", "monai", "torch"),
    )


def contest(data: Volumes, quick: bool) -> Turns:
    turns = Turns(6 if quick else 240, warmup=1 if quick else 10)
    turns.add(RUNNER, lambda: data.runner("memmap"))
    turns.add("runner, memory", lambda: data.runner("memory"))
    turns.add("runner, blosc2", lambda: data.runner("blosc2"))
    turns.add(RAW, lambda: data.raw(True))
    turns.add("raw memory map, new arrays", lambda: data.raw(False))
    turns.add("python-blosc2, chunks of a sample", lambda: data.chunked(_blosc2), every=4)
    turns.add("zarr, chunks of a sample", lambda: data.chunked(_zarr), every=8)
    plain = {"progress": False}
    turns.add("MONAI CacheDataset, copy_cache=False", lambda: data.monai("CacheDataset", copy_cache=False, **plain))
    turns.add(MONAI, lambda: data.monai("CacheDataset", **plain), every=24)
    cache = data.folder / f"persistent-{data.batch}"
    turns.add("MONAI PersistentDataset", lambda: data.monai("PersistentDataset", cache_dir=cache), every=24)
    return turns
