"""Scrolls of 512³ and 2,048³ voxels for vesuvius: `runner vesuvius predict` beside its network alone, and peak memory.

`python -m benchmarks.large_scrolls SCROLL OUT MIDDLE SIDE OVERLAP` predicts a scroll with a network that answers at
once: what is not the network's work, and the peak of every stage where a real network would take days on a CPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import runner_core
from runner_core import Arrays, BlockWork, Record

from benchmarks.ensemble import BIN
from benchmarks.harness import Aim, Cell, Options, Ran, Result, Table, command

CHUNK, SIDE, LARGE = 128, 512, 2048
TURNS, BATCHES = 4, 24
"""Turns of the network alone, and batches in each, from all over the scroll."""
SHARE, MOST = 0.9, 8.0
"""Least share of the network's own speed, and most GB of memory, that a prediction is to have."""
AT_ONCE = (sys.executable, "-m", "benchmarks.large_scrolls")
ONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
SHORT = "--epochs 2"
TINY = "--epochs 1 --train.steps-per-epoch 2 --data.patch 64 64 64 --model.base 2 --model.multipliers 1 2"


def write_scroll(path: Path, side: int, deep: int) -> float:
    """Write a scroll of side³ voxels: one generated piece, mirrored from chunk to chunk so that its sheets go on.

    Planes from `deep` on are zeros, which are not stored, and chunks that are equal are one file with many names.
    Returns the grey value that three quarters of the piece stay below.
    """
    import zarr
    from runner_vesuvius.papyrus import roll
    from runner_vesuvius.phantom import make_scrolls, scanned

    rng = np.random.default_rng(0)
    chunk = min(CHUNK, side // 4)
    ((rolling, scan),) = make_scrolls(1, rng)
    piece = scanned(roll(rolling, (chunk,) * 3, rng), scan, rng)
    array = zarr.create_array(path, shape=(side,) * 3, chunks=(chunk,) * 3, dtype="uint8")
    files: dict[tuple[int, ...], Path] = {}
    for place in product(range(deep // chunk), *(range(side // chunk),) * 2):
        odd, file = tuple(n % 2 for n in place), path / array.metadata.encode_chunk_key(place)
        if odd in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            os.link(files[odd], file)
        else:
            region = tuple(slice(n * chunk, (n + 1) * chunk) for n in place)
            array[region] = piece[tuple(slice(None, None, -1 if n else 1) for n in odd)]
            files[odd] = file
    return float(np.quantile(piece, 0.75))


def trained(folder: Path, words: str) -> Path:
    """Return a run of the preset demo on the phantom with these settings."""
    always = ("--train.device", "cpu", "--validate.records", "1")
    command(BIN / "runner", "vesuvius", "train", "--run-dir", folder, *always, *words.split(), variables=ONE)
    return folder


class Alone:
    """A run's network on windows of a scroll in memory, batches from all over it."""

    def __init__(self, run: Path, scroll: Path) -> None:
        import zarr
        from runner_vesuvius.whole import Axis

        network = runner_core.open(run).network()
        config: Any = network.project.config
        self._infer, self.batch = network.infer, config.train.batch_size
        volume: Any = zarr.open(scroll, mode="r")
        patch = config.data.patch
        axes = [Axis(n, side, config.predict.overlap) for n, side in zip(volume.shape, patch, strict=True)]
        corners = list(product(*(axis.starts for axis in axes)))
        self.windows = len(corners)
        rng = np.random.default_rng(0)
        self._batches = []
        places = len(corners) - self.batch
        for first in rng.choice(places, min(BATCHES, places), replace=False).tolist():
            some = corners[first : first + self.batch]
            cut = [volume[tuple(slice(a, a + n) for a, n in zip(c, patch, strict=True))] for c in some]
            self._batches.append(np.stack(cut))
        self._infer({"image": self._batches[0]})

    def seconds(self) -> float:
        """Return the processor's seconds for all windows of the scroll, from those of some batches."""
        begun = time.process_time()
        for images in self._batches:
            self._infer({"image": images})
        return (time.process_time() - begun) / (len(self._batches) * self.batch) * self.windows


def at_once(scroll: Path, out: Path, middle: float, side: int, overlap: float) -> None:
    """Predict a scroll with a network that answers at once: the more, the brighter; `middle` gets 0.5.

    Windows of side³ voxels share `overlap` of their side.
    """
    from runner_vesuvius.config import ScrollPredictOptions, demo
    from runner_vesuvius.scroll import Scroll

    def infer(arrays: Arrays) -> Arrays:
        return {"prediction": arrays["image"][:, None] * np.float32(0.5 / middle)}

    config = demo()
    config.data.patch, config.predict.overlap = (side,) * 3, overlap
    work = BlockWork(Record("a_0", "a", {"image": scroll}), (infer,), "benchmark", (), (1, 1), out)
    Scroll(work, config, ScrollPredictOptions(chunked=True), config.train.batch_size).predict()


def run(options: Options) -> Result:
    import torch

    torch.set_num_threads(1)
    side, large = (64, 128) if options.quick else (SIDE, LARGE)
    predict = (BIN / "runner", "vesuvius", "predict")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scroll, larger = folder / "a_0.zarr", folder / "b_0.zarr"
        middle = write_scroll(scroll, side, side)
        write_scroll(larger, large, large // 4)
        first, tiny = trained(folder / "run", SHORT), trained(folder / "tiny", TINY)
        alone = Alone(first, scroll)
        turns = [alone.seconds() for _ in range(TURNS // 2)]
        whole = command(*predict, first, scroll, "--out", folder / "whole", "--chunked", variables=ONE)
        turns += [alone.seconds() for _ in range(TURNS // 2)]
        rest = command(*AT_ONCE, scroll, folder / "rest", middle, 32, 0.5, variables=ONE)
        part = command(
            *predict, tiny, larger, "--out", folder / "part", "--chunked", "--part", f"1/{max(1, large // CHUNK)}",
            "--predict.overlap", "0", variables=ONE,
        )  # fmt: skip
        every = command(*AT_ONCE, larger, folder / "every", middle, 64, 0.0, variables=ONE)
        print(every, flush=True)
    return result(side, large, alone.windows, turns, whole, rest, part, every)


def result(
    side: int, large: int, windows: int, turns: list[float], whole: Ran, rest: Ran, part: Ran, every: Ran
) -> Result:
    network = float(np.median(turns))
    shares = network / whole.processor, 1 - rest.processor / whole.processor
    peak = max(each.peak for each in (whole, part, every)) / 1e9
    size, sizes = f"{side:,}³", f"{large:,}³"
    speeds: list[list[Cell]] = [
        [f"the network alone, {windows:,} windows", network, windows / network, 1.0],
        [
            f"runner vesuvius predict, {size} from zarr to OME-Zarr",
            whole.processor,
            windows / whole.processor,
            shares[0],
        ],
        ["the same, a network that answers at once", rest.processor, windows / rest.processor, None],
    ]
    peaks: list[list[Cell]] = [
        [f"runner vesuvius predict, {size}, preset demo, all stages", *_cells(whole)],
        [
            f"runner vesuvius predict, {sizes}, a layer of {CHUNK} planes (--part), a tiny network, windows of 64³",
            *_cells(part),
        ],
        [f"runner, {sizes}, a network that answers at once, windows of 64³, all stages", *_cells(every)],
    ]
    return Result(
        title="Large scrolls",
        what=f"Zarr volumes in chunks of {CHUNK}³, a generated piece mirrored from chunk to chunk, on one thread with "
        "the default --memory-gb 4. The first table has the processor's seconds of the whole command, from "
        "starting Python to the end of post-processing and levels; windows of 32³ overlap by half, the network is that "
        f"of preset demo after two epochs. The network alone: {BATCHES} batches of windows from all over, in "
        f"memory, {TURNS // 2} times before the command and {TURNS // 2} times after; the median, for as many windows. "
        "The second table has the most memory that all processes of a command had together, sampled five times a "
        "second, or the process's own peak where that is more. Windows over "
        f"{sizes} do not overlap; of its planes the first quarter holds papyrus, the others zeros. Where the network "
        "answers at once, a quarter of the voxels are surface, in specks and sheets, so that components and cavities "
        "have much to join.",
        tables=[
            Table(["a scroll predicted", "processor s", "windows a processor second", "speed"], speeds),
            Table(["memory", "peak, GB", "processor s", "clock s"], peaks),
        ],
        aims=[
            Aim(
                f"prediction at {SHARE:.0%} of the network's speed or more: {shares[0]:.1%} beside the network alone, "
                f"{shares[1]:.1%} by what is not the network's work",
                min(shares) >= SHARE,
            ),
            Aim(f"at most {MOST:g} GB for any size: {peak:.2f} GB", peak <= MOST),
        ],
        remarks=[
            "A speed above 1 beside the network alone is the machine's noise: its turns lie minutes apart. The second "
            "figure of the aim needs no such turns: it is the share of the command that a network which answers at "
            "once leaves over."
        ],
        packages=("numpy", "zarr", "torch"),
    )


def _cells(ran: Ran) -> list[Cell]:
    return [ran.peak / 1e9, ran.processor, ran.clock]


if __name__ == "__main__":
    where, into, *numbers = sys.argv[1:]
    at_once(Path(where), Path(into), float(numbers[0]), int(numbers[1]), float(numbers[2]))
