"""openkbp's data path against the ways its users came from: reading CSVs, packing, filling a batch of 2.

1. a patient's files → dense arrays: ours, pandas (as the challenge's loader does), polars, NumPy's text reader; one
   thread each (the cache is built by a process a core).
2. packing, and what a patient then takes.
3. a batch of 2 random patients on 128³, from warm memory. Ours is packed (25 MB; decoded on the device). The others
   fill the dense tensors the challenge's network reads (ct, 10 ROIs, possible mask, dose: 201 MB as float32, 403 as the
   float64 that the challenge's loader makes) from arrays held in memory; the challenge's own loader parses the files
   again for every batch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Record, RowSamples
from runner_core.data.cache import default_cache
from runner_core.data.crop import NoCrop
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline
from runner_core.plugins.settings import from_preset
from runner_openkbp import packing
from runner_openkbp.csvfiles import VOXELS
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.phantom import write_patient
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import GRID, POSSIBLE, ROIS, unpack

from benchmarks.harness import Options, Result, Table, Turns, Way, compared

BATCH, SEED = 2, 0
FIELDS = ("ct", "masks", "dose", "dose_step")
READER, PACKED, TF_DATA = "runner (pyarrow)", "runner, packed: what goes to the device", "tf.data over float32 tensors"
Pair = list[int]
Read = Callable[[Path], tuple[np.ndarray, np.ndarray]]


# ---------------------------------------------------------------- reading


def reader(name: str) -> Way:
    """Files → dense ct, dose and masks."""
    if name == "polars":
        import polars

        return lambda record: dense_patient(record, _polars(polars))
    if name == "pandas":
        import pandas

        return lambda record: dense_patient(record, _pandas(pandas))
    return lambda record: dense_patient(record, _numpy)


def _pandas(pandas: Any) -> Read:
    def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
        frame = pandas.read_csv(path, index_col=0)
        return frame.index.to_numpy(), frame["data"].to_numpy()

    return read


def _polars(polars: Any) -> Read:
    def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
        frame = polars.read_csv(path, schema_overrides={"data": polars.Float64})
        return frame.to_series(0).to_numpy(), frame.to_series(1).to_numpy()

    return read


def _numpy(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    return table[:, 0].astype(int), table[:, 1]


def dense_patient(record: Record, read: Read) -> dict[str, np.ndarray]:
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

    def fill(pair: Pair) -> None:
        batch = next(batches)
        if on_device:
            on_device(batch.arrays)
        batch.release()

    return fill


def _decoder(project: OpenKBP) -> Callable[[Any], Any]:
    import tensorflow as tf

    @tf.function
    def decode(batch: Any) -> Any:
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

    def fill(pair: Pair) -> object:
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
    """Return a loader like the challenge's: pandas parses every file for every batch, np.put into float64 zeros."""
    import pandas

    read = _pandas(pandas)

    def fill(pair: Pair) -> object:
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


# ---------------------------------------------------------------- contests


def reading(records: list[Record], quick: bool) -> tuple[Table, dict[str, str]]:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    turns = Turns(2 if quick else 24)
    turns.add(READER, lambda: read_patient)
    for name in ("polars", "pandas"):
        turns.add(name, lambda name=name: reader(name))
    turns.add("numpy.genfromtxt", lambda: reader("numpy"), every=8)
    times = turns.run(lambda turn: records[turn % len(records)])
    return compared(times, READER, "read a patient (files → dense arrays)"), turns.left_out


def packing_up(records: list[Record], quick: bool) -> Table:
    turns = Turns(1 if quick else 12)
    turns.add("runner, read", lambda: read_patient)
    for size in (128, 64):
        turns.add(
            f"runner, read and pack for {size}³",
            lambda size=size: lambda record: packing.prepare(packing.pack(read_patient(record)), size),
        )
    times = turns.run(lambda turn: records[turn % len(records)])
    return compared(times, "runner, read", "prepare a patient")


def batches(records: list[Record], cache: Path, quick: bool) -> tuple[Table, dict[str, str]]:
    rng = np.random.default_rng(SEED)
    pairs = [rng.choice(len(records), BATCH, replace=False).tolist() for _ in range(16)]
    turns = Turns(2 if quick else 20)
    turns.add(PACKED, lambda: runner_batches(records, cache, False))
    turns.add("runner, decoded on this CPU by TensorFlow", lambda: runner_batches(records, cache, True), every=4)
    single = dense_set(records, np.float32)
    turns.add(TF_DATA, lambda: tf_data(single))
    double = {name: array.astype(np.float64) for name, array in single.items()}
    for name, whole, dtype in (("float32", single, np.float32), ("float64", double, np.float64)):
        turns.add(f"loop over keys, {name}", lambda whole=whole, dtype=dtype: per_key_loop(whole, dtype), every=2)
        turns.add(f"fancy index, {name}", lambda whole=whole: fancy_index(whole), every=2)
    turns.add("the challenge's loader (pandas, every batch anew)", lambda: challenge_loader(records), every=5)
    times = turns.run(lambda turn: pairs[turn % len(pairs)])
    return compared(times, PACKED, f"a batch of {BATCH} patients", ("patients", BATCH)), turns.left_out


def run(options: Options) -> Result:
    source = None if options.quick else options.folder("openkbp")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if source is None:
            for number, rng in enumerate(np.random.default_rng(SEED).spawn(2 if options.quick else 4)):
                write_patient(folder / "phantom" / f"pt_{number + 1}", rng)
        records = find_records(source or folder / "phantom")
        packed = packing.prepare(packing.pack(read_patient(records[0])), 128)
        size = sum(array.nbytes for array in packed.values())
        read, absent = reading(records, options.quick)
        filled, also_absent = batches(records[:4], folder / "cache", options.quick)
        tables = [read, packing_up(records, options.quick), filled]
    return Result(
        title="openkbp's data path",
        what=f"{len(records)} {'real' if source else 'generated'} patients of the challenge on 128³. Reading their CSV "
        "files, packing them, and filling batches from warm memory.",
        tables=tables,
        remarks=[
            f"Packed, 200 patients take {200 * size / 1e9:.2f} GB. Decoding (bits to masks, scaling) is the device's "
            "work, part of the compiled step; the row decoded by TensorFlow says what it costs where the device is "
            "this CPU."
        ],
        left_out=absent | also_absent,
        packages=("numpy", "pyarrow", "polars", "pandas", "tensorflow", "keras"),
    )
