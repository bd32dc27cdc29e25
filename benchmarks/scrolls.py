"""Whole scrolls for vesuvius: prediction chunk by chunk beside the network alone; training from zarr beside memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Arrays, BlockWork, Infer, PatchSamples, Record
from runner_core.data.cache import default_cache
from runner_core.data.crop import NoCrop
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline

from benchmarks.harness import Aim, Cell, Options, Result, Table, Times, Turns, Way, compared, number

ALONE, CHUNKED = "the network alone, windows in memory", "runner, zarr to OME-Zarr with mask and levels"
MEMMAP, LAZY = "memory map (whole volumes prepared)", "zarr, chunk by chunk"
PATCH, OVERLAP, BATCH, CHUNK = 32, 0.5, 8, 64
SIDE = 128
"""Voxels along each axis of the volume that is predicted."""
SHARE = 0.9
"""Least share of the network's own speed that a whole prediction is to reach."""
FIELDS = ("image", "target")


def write_volumes(folder: Path, side: int) -> None:
    """Write image and label of two scrolls, sheets in noise, as zarr."""
    import zarr

    for seed, key in enumerate(("a_0", "b_0")):
        rng = np.random.default_rng(seed)
        z, y, x = np.indices((side,) * 3, np.float32)
        sheet = (z + 4 * np.sin((x + y) / 17)) % 14 < 3
        image = np.clip(70 + 80 * sheet + rng.normal(0, 25, sheet.shape), 1, 255).astype(np.uint8)
        label = np.where(x < side // 8, 2, sheet).astype(np.uint8)
        for name, volume in (("images", image), ("labels", label)):
            zarr.create_array(folder / name / f"{key}.zarr", data=volume, chunks=(CHUNK,) * 3)


def network(base: int) -> Infer:
    """Return a network of the preset demo's shape, untrained, on the CPU."""
    import torch
    from runner_vesuvius.network import SurfaceUNet

    torch.manual_seed(0)
    model = SurfaceUNet(base=base, multipliers=(1, 2, 4), blocks=1, deep_supervision=True, checkpointing=False)
    model = model.eval().to(memory_format=torch.channels_last_3d)

    def infer(arrays: Arrays) -> Arrays:
        with torch.inference_mode():
            windows = torch.from_numpy(arrays["image"])[:, None].float().sub_(90).div_(40)
            answer = model(windows.contiguous(memory_format=torch.channels_last_3d))
            first = answer[0] if isinstance(answer, (list, tuple)) else answer
            return {"prediction": first.sigmoid().numpy()}

    return infer


def predicted(volume: Path, out: Path, infer: Infer) -> None:
    """Predict a volume chunk by chunk into `out`, which is emptied first."""
    from runner_vesuvius.config import ScrollPredictOptions, demo
    from runner_vesuvius.scroll import Scroll

    shutil.rmtree(out, ignore_errors=True)
    config = demo()
    config.data.patch, config.predict.overlap = (PATCH,) * 3, OVERLAP
    work = BlockWork(Record("a_0", "a", {"image": volume}), (infer,), "benchmark", (), (1, 1), out)
    Scroll(work, config, ScrollPredictOptions(chunked=True), BATCH).predict()


def windows_of(volume: Path, out: Path) -> list[np.ndarray]:
    """Return the batches of windows that a prediction gives the network."""
    found: list[np.ndarray] = []

    def kept(arrays: Arrays) -> Arrays:
        found.append(arrays["image"].copy())
        return {"prediction": np.zeros((len(arrays["image"]), 1, *arrays["image"].shape[1:]), np.float32)}

    predicted(volume, out, kept)
    return found


def batches(folder: Path, lazily: bool) -> Way:
    """Return a way that fills one training batch of four patches, places and targets included."""
    from runner_vesuvius.config import demo
    from runner_vesuvius.lazy import VolumeCache
    from runner_vesuvius.project import Vesuvius

    config = demo()
    config.cache.dir, config.data.patch = folder / "cache", (2 * PATCH,) * 3
    project = Vesuvius(config)
    records = project.records(folder)
    cache: Any = VolumeCache(config) if lazily else default_cache(project, config)
    store = cache.open(RecordPipeline(project, NoCrop()), records, lambda text: None)
    samples = PatchSamples(store, FIELDS, config.data.patch, range(2), 64, around={"surface": 0.67, "valid": 0.33})
    loader = Loader(samples, batch_size=4, seed=0, shuffle=True, steps_per_epoch=10**6).batches(0)
    return lambda turn: next(loader).release()


def timed(turns: int, ways: Mapping[str, Way]) -> tuple[dict[str, Times], dict[str, Times]]:
    """Return the seconds of these ways, in turns: the processor's, and the clock's."""
    clock = {name: Times() for name in ways}

    def both(name: str, way: Way) -> Way:
        def measured(turn: int) -> float:
            begun, busy = time.perf_counter(), time.process_time()
            with redirect_stdout(StringIO()):
                way(turn)
            busy = time.process_time() - busy
            clock[name].by_turn[turn] = time.perf_counter() - begun
            return busy

        return measured

    course = Turns(turns, warmup=1)
    for name, way in ways.items():
        course.add(name, lambda name=name, way=way: both(name, way), own_clock=True)
    return course.run(), clock


def beside(busy: Mapping[str, Times], clock: Mapping[str, Times], windows: int) -> tuple[Table, tuple[float, float]]:
    """Return the table of both ways, and the speed of whole predictions, the network's being 1: processor, clock."""
    rows: list[list[Cell]] = []
    for name in (ALONE, CHUNKED):
        row: list[Cell] = [name]
        for times in (busy[name], clock[name]):
            low, high = times.quartiles
            row += [times.median, f"{number(low)} – {number(high)}"]
        shares = [ratio(times[ALONE], times[name]) for times in (busy, clock)]
        rows.append([*row, windows / busy[name].median, *shares])
    heads = ["processor s (median)", "quartiles", "clock s (median)", "quartiles", "windows a processor second"]
    table = Table(["a volume predicted", *heads, "speed, processor", "speed, clock"], rows)
    return table, (ratio(busy[ALONE], busy[CHUNKED]), ratio(clock[ALONE], clock[CHUNKED]))


def ratio(one: Times, other: Times) -> float:
    """Return the median of one's time divided by the other's, turn by turn."""
    return float(np.median([one.by_turn[turn] / other.by_turn[turn] for turn in other.by_turn]))


def run(options: Options) -> Result:
    import torch

    torch.set_num_threads(1)
    side = 64 if options.quick else SIDE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_volumes(folder, side)
        volume, infer = folder / "images" / "a_0.zarr", network(4 if options.quick else 8)
        windows = windows_of(volume, folder / "out")

        def alone(turn: Any) -> None:
            for images in windows:
                infer({"image": images})

        turns = 2 if options.quick else 4
        busy, clock = timed(turns, {ALONE: alone, CHUNKED: lambda turn: predicted(volume, folder / "out", infer)})
        filling = Turns(4 if options.quick else 16, warmup=2)
        filling.add(MEMMAP, lambda: batches(folder, lazily=False))
        filling.add(LAZY, lambda: batches(folder, lazily=True))
        filled = filling.run()
    count = sum(map(len, windows))
    table, shares = beside(busy, clock, count)
    how = ("processor time", "time on the clock")
    aims = [
        Aim(f"prediction at {SHARE:.0%} of the network's speed or more in {each}: {share:.0%}", share >= SHARE)
        for each, share in zip(how, shares, strict=True)
    ]
    return Result(
        title="Whole scrolls",
        what=f"A generated zarr volume of {side}³ in chunks of {CHUNK}³, warm. Prediction: {count:,} windows of "
        f"{PATCH}³ that overlap by half, {BATCH} at once, an untrained network of the preset demo's shape with 8 "
        "channels, and all that follows it (components, cavities, levels, flushed to the disk), on one thread. "
        "Speed is the median of the ratios, turn by turn. Other programs hardly change the "
        "processor's time. Training: one batch of "
        f"four patches of {2 * PATCH}³ with targets, filled in the calling process, without the step.",
        tables=[table, compared(filled, MEMMAP, "a training batch filled", ("patches", 4))],
        aims=[] if options.quick else aims,
        packages=("numpy", "zarr", "torch"),
    )
