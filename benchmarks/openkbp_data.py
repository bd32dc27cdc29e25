"""openkbp's data path against the ways its users came from: reading CSVs, packing, filling a batch of 2.

    uv run --group bench python benchmarks/openkbp_data.py --data ../shared/data/openkbp

Without --data: generated patients. In one process, the ways taking turns; medians, and ratios to the first row. pandas,
polars and TensorFlow are left out where they are not installed.

1. a patient's files → dense arrays: ours, pandas (as the challenge's loader does), polars, NumPy's text reader; one
   thread each (the cache is built by a process a core).
2. packing: the same and what a patient then takes.
3. a batch of 2 random patients on 128³, from warm memory. Ours is packed (25 MB; decoded on the device, whose cost on
   this CPU is the row below it). The others fill the dense tensors the challenge's network reads (ct, 10 ROIs, possible
   mask, dose: 201 MB as float32, 403 as the float64 that the challenge's loader makes) from arrays held in memory;
   the challenge's own loader parses the files again for every batch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from runner_core import Record, RowSamples
from runner_core.cache import default_cache
from runner_core.config.resolve import from_preset
from runner_core.crop import NoCrop
from runner_core.loader import Loader
from runner_core.pipeline import RecordPipeline
from runner_openkbp import packing
from runner_openkbp.csvfiles import VOXELS
from runner_openkbp.patients import find_patients, read_patient
from runner_openkbp.phantom import write_patient
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import GRID, POSSIBLE, ROIS, unpack

BATCH, SEED = 2, 0
FIELDS = ("ct", "masks", "dose", "dose_step")
Way = Callable[[list[int]], object]


# ---------------------------------------------------------------- reading


def readers() -> dict[str, tuple[Callable[[Record], object], int]]:
    """Way → (it, how often it is measured: every so many rounds). Each makes dense ct, dose and masks."""
    ways: dict[str, tuple[Callable[[Record], object], int]] = {"runner": (read_patient, 1)}
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    try:
        import polars

        ways["polars"] = (lambda r: dense_patient(r, _polars(polars)), 1)
    except ImportError:
        print("(polars is not installed)")
    try:
        import pandas

        ways["pandas"] = (lambda r: dense_patient(r, _pandas(pandas)), 1)
    except ImportError:
        print("(pandas is not installed)")
    ways["numpy.genfromtxt"] = (lambda r: dense_patient(r, _numpy), 8)
    return ways


def _pandas(pandas):
    def read(path: Path):
        frame = pandas.read_csv(path, index_col=0)
        return frame.index.to_numpy(), frame["data"].to_numpy()

    return read


def _polars(polars):
    def read(path: Path):
        frame = polars.read_csv(path, schema_overrides={"data": polars.Float64})
        return frame.to_series(0).to_numpy(), frame.to_series(1).to_numpy()

    return read


def _numpy(path: Path):
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    return table[:, 0].astype(int), table[:, 1]


def dense_patient(record: Record, read: Callable[[Path], tuple]) -> dict[str, np.ndarray]:
    """ct and dose (float64), masks (bool): what one makes of the files first."""
    dense = {}
    for role, path in record.files.items():
        if role == "voxels":
            continue
        index, values = read(path)
        volume = np.zeros(VOXELS, np.float64 if role in ("ct", "dose") else bool)
        volume[index] = values if role in ("ct", "dose") else True
        dense[role] = volume.reshape(GRID)
    return dense


# ---------------------------------------------------------------- batches


def runner_batches(records: list[Record], folder: Path, decoded: bool) -> Way:
    """The whole loader on the cache: order, ring of buffers, gather. It draws its own random patients."""
    config = from_preset(OpenKBP, "default")
    config.cache.dir, config.cache.mode, config.data.size = folder, "memmap", 128
    project = OpenKBP(config)
    store = default_cache(project, config).open(RecordPipeline(project, NoCrop()), records, lambda text: None)
    samples = RowSamples(store, dict.fromkeys(FIELDS, (0,)), range(len(records)))
    batches = Loader(samples, batch_size=BATCH, seed=SEED, shuffle=True, steps_per_epoch=10**5).batches(0)
    on_device = _decoder(project) if decoded else None

    def fill(pair: list[int]) -> None:
        batch = next(batches)
        if on_device:
            on_device(batch.arrays)
        batch.release()

    return fill


def _decoder(project: OpenKBP):
    import tensorflow as tf

    @tf.function
    def decode(batch):
        out = project.on_device(batch, {}, None)
        return {name: out[name] for name in ("image", "mask", "dose")}

    return lambda arrays: decode({n: tf.convert_to_tensor(a) for n, a in arrays.items()})["image"][
        0, 0, 0, 0, 0
    ].numpy()


def dense_set(records: list[Record], dtype: type) -> dict[str, np.ndarray]:
    """The challenge's tensors of every patient: ct, dose, possible mask (n, 128³, 1), ROIs (n, 128³, 10)."""
    channels = {"ct": 1, "structure_masks": len(ROIS), "possible_dose_mask": 1, "dose": 1}
    whole = {name: np.zeros((len(records), *GRID, count), dtype) for name, count in channels.items()}
    for i, record in enumerate(records):
        patient = read_patient(record)
        whole["ct"][i, ..., 0], whole["dose"][i, ..., 0] = patient.ct, patient.dose
        whole["possible_dose_mask"][i, ..., 0] = unpack(patient.masks, POSSIBLE)
        for c, roi in enumerate(ROIS):
            whole["structure_masks"][i, ..., c] = unpack(patient.masks, roi)
    return whole


def per_key_loop(whole: dict[str, np.ndarray], dtype: type) -> Way:
    """A new array for each key, filled patient by patient."""

    def fill(pair: list[int]) -> object:
        batch = {}
        for name, array in whole.items():
            batch[name] = np.zeros((BATCH, *array.shape[1:]), dtype)
            for place, i in enumerate(pair):
                batch[name][place] = array[i]
        return batch

    return fill


def fancy_index(whole: dict[str, np.ndarray]) -> Way:
    return lambda pair: {name: array[pair] for name, array in whole.items()}


def tf_data(whole: dict[str, np.ndarray]) -> Way:
    """Slices of the dense arrays, shuffled and batched; nothing of it may run ahead in the others' turns."""
    import tensorflow as tf

    waits = tf.data.Options()
    waits.experimental_optimization.inject_prefetch = False
    with tf.device("CPU"):
        items = tf.data.Dataset.from_tensor_slices(whole).shuffle(len(whole["ct"]), seed=SEED).repeat().batch(BATCH)
        items = items.with_options(waits)
    batches = iter(items)
    return lambda pair: next(batches)


def challenge_loader(records: list[Record]) -> Way:
    """As the challenge's code: pandas parses every file for every batch, np.put into float64 zeros."""
    import pandas

    read = _pandas(pandas)

    def fill(pair: list[int]) -> object:
        shapes = {"ct": 1, "structure_masks": len(ROIS), "possible_dose_mask": 1, "dose": 1}
        batch = {name: np.zeros((BATCH, *GRID, count)) for name, count in shapes.items()}
        for place, i in enumerate(pair):
            files = records[i].files
            for name in ("ct", "dose"):
                volume = np.zeros((*GRID, 1))
                np.put(volume, *read(files[name]))
                batch[name][place] = volume
            volume = np.zeros((*GRID, 1))
            np.put(volume, read(files[POSSIBLE])[0], 1)
            batch["possible_dose_mask"][place] = volume
            volume = np.zeros((*GRID, len(ROIS)))
            for c, roi in enumerate(ROIS):
                if roi in files:
                    np.put(volume, len(ROIS) * read(files[roi])[0] + c, 1)
            batch["structure_masks"][place] = volume
        return batch

    return fill


def batch_ways(records: list[Record], folder: Path) -> dict[str, tuple[Way, int]]:
    ways: dict[str, tuple[Way, int]] = {
        "runner, packed (what goes to the device)": (runner_batches(records, folder, False), 1)
    }
    single = dense_set(records, np.float32)
    try:
        import tensorflow  # noqa: F401

        ways["runner, decoded on this CPU by TensorFlow"] = (runner_batches(records, folder, True), 1)
        ways["tf.data over float32 tensors"] = (tf_data(single), 1)
    except ImportError:
        print("(TensorFlow is not installed)")
    double = dense_set(records, np.float64)
    ways |= {
        "per-key loop, float32": (per_key_loop(single, np.float32), 1),
        "per-key loop, float64": (per_key_loop(double, np.float64), 1),
        "fancy index, float32": (fancy_index(single), 1),
        "fancy index, float64": (fancy_index(double), 1),
    }
    try:
        import pandas  # noqa: F401

        ways["the challenge's loader (pandas, every batch anew)"] = (challenge_loader(records), 5)
    except ImportError:
        pass
    return ways


# ---------------------------------------------------------------- measuring


def measure(ways: dict[str, tuple[Callable, int]], items: list, rounds: int) -> dict[str, float]:
    """Median seconds of each way on one item; the first rounds, which bring pages in, do not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds + 2):
        item = items[turn % len(items)]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # nobody always follows the same one
            way, every = ways[name]
            if turn % every:
                continue
            begun = time.perf_counter()
            result = way(item)
            seconds = time.perf_counter() - begun
            del result  # freeing memory is the next round's business
            if turn >= 2 or every > 2:
                times[name].append(seconds)
    return {name: statistics.median(t) for name, t in times.items() if t}


def table(title: str, medians: dict[str, float]) -> None:
    own = next(iter(medians.values()))
    print(f"\n| {title} | ms | runner's time as a share of it |\n|---|---|---|")
    for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
        print(f"| {name} | {seconds * 1e3:.1f} | {own / seconds:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the challenge's patients; default: generated ones")
    parser.add_argument("--patients", type=int, default=4, help="held in memory for the batches (0.65 GB each)")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = options.data or folder / "phantom"
        if options.data is None:
            for number, rng in enumerate(np.random.default_rng(SEED).spawn(options.patients)):
                write_patient(data / f"pt_{number + 1}", rng)
        records = find_patients(data)
        print(f"{len(records)} patients ({data.name}), one process")
        table("read a patient (files → dense arrays)", measure(readers(), records, options.rounds))

        packers = {
            "read": (read_patient, 1),
            "read and pack": (lambda r: packing.prepare(packing.pack(read_patient(r)), 128), 1),
            "read, pack, 64³": (lambda r: packing.prepare(packing.pack(read_patient(r)), 64), 1),
        }
        packed = packing.prepare(packing.pack(read_patient(records[0])), 128)
        packing_times = measure(packers, records, options.rounds)
        print("\n| pack a patient | ms |\n|---|---|")
        print("\n".join(f"| {way} | {seconds * 1e3:.1f} |" for way, seconds in packing_times.items()))
        print(f"\n200 patients packed: {200 * sum(a.nbytes for a in packed.values()) / 1e9:.2f} GB")

        chosen = records[: options.patients]
        rng = np.random.default_rng(SEED)
        pairs = [rng.choice(len(chosen), BATCH, replace=False).tolist() for _ in range(16)]
        table(f"a batch of {BATCH}", measure(batch_ways(chosen, folder / "cache"), pairs, options.rounds))


if __name__ == "__main__":
    main()
