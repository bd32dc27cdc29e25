"""brainunet's data path against the way its users came from: decompress a whole volume for every slice.

Samples a second of the whole data path, without the model: files → image and mask as float32 tensors of the network's
size. The seed's way loads a volume from .nii.gz, normalises it and resizes the wanted slice, for every slice anew. Ours
is measured warm (every epoch but the first) and with the one-off preparation added to one epoch. Then training itself,
both ways, with the same network, loss and optimizer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import torch
from runner_core import Progress
from runner_core.contract.setup import Data, Setup
from runner_core.data.loader import Loader
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.training.data import data_folder, open_data
from torch.nn import functional

from benchmarks.harness import Options, Result, Table, Times, Turns, Way, at_least

SEED_WAY, OURS = "whole .nii.gz for every slice", "runner, every later epoch"
Train = Callable[[dict[str, torch.Tensor]], None]


class EverySliceAnew(torch.utils.data.Dataset):
    """The seed's data set: one slice an item, its volume decompressed, normalised and the slice resized each time."""

    def __init__(self, pairs: list[tuple[Path, Path]], size: int) -> None:
        self.pairs, self.size = pairs, size
        self.items = [(i, z) for i, (scan, _) in enumerate(pairs) for z in range(nibabel.load(scan).shape[2])]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number, z = self.items[index]
        scan, mask = (nibabel.load(path).get_fdata(dtype=np.float32) for path in self.pairs[number])
        scan = (scan - scan.mean()) / scan.std()
        image, truth = (torch.from_numpy(np.ascontiguousarray(v[None, None, :, :, z])) for v in (scan, mask))
        size = (self.size, self.size)
        return {
            "image": functional.interpolate(image, size, mode="bilinear")[0],
            "mask": functional.interpolate(truth, size, mode="nearest")[0],
        }


def setup_for(source: Path | None, cache: Path) -> Setup:
    plugins = Plugins.load("brainunet")
    kind = plugins.project()
    config = from_preset(kind, "small")
    config.cache.dir, config.data.split = cache, "none"
    return Setup(kind(config), config, "small", source, plugins)


def our_batches(setup: Setup, data: Data) -> Loader:
    samples = setup.project.samples(data.store, data.splits["train"], "train")
    return Loader(samples, batch_size=setup.config.train.batch_size, seed=0, shuffle=True)


def our_epoch(setup: Setup, loader: Loader, epoch: int, train: Train | None, limit: int) -> int:
    """Samples of one epoch (`limit` of them, about), each as the float tensors that the network reads."""
    seen = 0
    for batch in loader.batches(epoch):
        tensors = setup.project.on_device({n: torch.from_numpy(a) for n, a in batch.arrays.items()}, {}, None)
        if train:
            train(tensors)
        seen += batch.count
        batch.release()
        if seen >= limit:
            break
    return seen


def seed_epoch(items: torch.utils.data.DataLoader, limit: int, neighbours: int, train: Train | None) -> int:
    seen = 0
    for batch in items:
        if train:  # the same network: the slice stands in for its neighbours
            train({"image": batch["image"].expand(-1, neighbours, -1, -1).contiguous(), "mask": batch["mask"]})
        seen += len(batch["image"])
        if seen >= limit:
            break
    return seen


def trainer(setup: Setup) -> Train:
    torch.manual_seed(0)
    network = setup.project.model(None)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def train(tensors: dict[str, torch.Tensor]) -> None:
        loss = setup.project.step(network, tensors, Progress(0, 1, 0)).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return train


def rounds(samples: Callable[[int], int]) -> Way:
    """A way with its own clock: seconds for one sample."""

    def way(turn: int) -> float:
        begun = time.perf_counter()
        count = samples(turn)
        return (time.perf_counter() - begun) / count

    return way


def run(options: Options) -> Result:
    source = options.folder("brainunet")
    limit = 16 if options.quick else 64
    with tempfile.TemporaryDirectory() as cache:
        setup = setup_for(None if options.quick else source, Path(cache))
        folder = data_folder(setup, lambda text: None)
        records = setup.project.records(folder)
        begun = time.perf_counter()
        data = open_data(setup, lambda text: None)
        preparation = time.perf_counter() - begun
        loader = our_batches(setup, data)
        config = setup.config
        seed = EverySliceAnew([(r.files["image"], r.files["mask"]) for r in records], config.data.size)
        generator = torch.Generator().manual_seed(0)
        items = torch.utils.data.DataLoader(seed, config.train.batch_size, shuffle=True, generator=generator)
        slices, neighbours = len(loader.samples), config.data.neighbours

        def ways(train: Train | None, most: int) -> dict[str, Times]:
            turns = Turns(1 if options.quick else 4)
            turns.add(
                SEED_WAY, lambda: rounds(lambda turn: seed_epoch(items, limit, neighbours, train)), own_clock=True
            )
            turns.add(OURS, lambda: rounds(lambda turn: our_epoch(setup, loader, turn, train, most)), own_clock=True)
            return turns.run()

        path, learning = ways(None, slices), ways(trainer(setup), limit)
    slow, warm = 1 / path[SEED_WAY].median, 1 / path[OURS].median
    first = slices / (slices / warm + preparation)
    tables = [
        Table(
            ["data path, without the model", "samples a second", "ratio"],
            [
                [SEED_WAY, slow, 1],
                [f"runner, first epoch ({preparation:.1f} s of preparation included)", first, first / slow],
                [OURS, warm, warm / slow],
            ],
        ),
        Table(
            [f"training, {limit} slices a turn", "samples a second", "ratio"],
            [[n, 1 / t.median, learning[SEED_WAY].median / t.median] for n, t in learning.items()],
        ),
    ]
    what = f"{len(records)} real scans" if source and not options.quick else f"a phantom of {len(records)} scans"
    return Result(
        title="brainunet's data path",
        what=f"{what}, from the files to the float tensors that the network reads, at preset `small` "
        f"({config.data.size}², {neighbours} slices at once). The way its users came from loads a volume, normalises "
        "it and resizes one slice, for every slice.",
        tables=tables,
        aims=at_least(path, OURS, SEED_WAY, 14),
        remarks=["On a CPU the network is the limit: the second table says what is left of the gain."],
        packages=("torch", "nibabel", "numpy"),
    )
