"""brainunet's data path against the way its users came from: decompress a whole volume for every slice.

    uv run python benchmarks/brain_data_path.py --data ../shared/data/brainunet

Without --data: the built-in phantom. Two questions, each answered side by side in one process:

1. samples a second of the whole data path, without the model: files → image and mask as float32 tensors of the
   network's size. The seed's way loads a volume from .nii.gz, normalises it and resizes the wanted slice, for every
   slice anew. Ours is measured warm (every epoch but the first) and with the one-off preparation added to one epoch.
2. one epoch of preset small, both ways, with the same network, loss and optimizer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import nibabel
import numpy as np
import torch
from runner_core.cli.data import data_folder, open_data
from runner_core.config.resolve import from_preset
from runner_core.loader import Loader
from runner_core.plugins import Plugins
from runner_core.protocols import Progress
from runner_core.setup import Data, Setup
from torch.nn import functional

ROUNDS = 5


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


def our_epoch(setup: Setup, loader: Loader, epoch: int, train=None) -> int:
    """Samples of one epoch, each as the float tensors that the network reads."""
    seen = 0
    for batch in loader.batches(epoch):
        tensors = setup.project.on_device({n: torch.from_numpy(a) for n, a in batch.arrays.items()}, {}, None)
        if train:
            train(tensors)
        seen += batch.count
        batch.release()
    return seen


def seed_epoch(items: torch.utils.data.DataLoader, limit: int, neighbours: int, train=None) -> int:
    seen = 0
    for batch in items:
        if train:  # the same network: the slice stands in for its neighbours
            train({"image": batch["image"].expand(-1, neighbours, -1, -1).contiguous(), "mask": batch["mask"]})
        seen += len(batch["image"])
        if seen >= limit:
            break
    return seen


def trainer(setup: Setup):
    torch.manual_seed(0)
    network = setup.project.model(None)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def train(tensors: dict[str, torch.Tensor]) -> None:
        loss = setup.project.step(network, tensors, Progress(0, 1, 0)).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return train


def timed(work) -> tuple[float, int]:
    begun = time.perf_counter()
    samples = work()
    return time.perf_counter() - begun, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed-samples", type=int, default=64, help="slices measured of the seed's way, a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        setup = setup_for(options.data, Path(cache))
        folder = data_folder(setup, print)
        records = setup.project.records(folder)
        pairs = [(r.files["image"], r.files["mask"]) for r in records]
        begun = time.perf_counter()
        data = open_data(setup, lambda text: None)
        preparation = time.perf_counter() - begun
        loader = our_batches(setup, data)
        config = setup.config
        seed = EverySliceAnew(pairs, config.data.size)
        generator = torch.Generator().manual_seed(0)
        items = torch.utils.data.DataLoader(seed, config.train.batch_size, shuffle=True, generator=generator)

        rates: dict[str, list[float]] = {"seed": [], "ours": []}
        for turn in range(ROUNDS):
            seconds, samples = timed(lambda: seed_epoch(items, options.seed_samples, config.data.neighbours))
            rates["seed"].append(samples / seconds)
            seconds, samples = timed(lambda t=turn: our_epoch(setup, loader, t))
            rates["ours"].append(samples / seconds)
        warm, slow = statistics.median(rates["ours"]), statistics.median(rates["seed"])
        ours = len(loader.samples)
        first = ours / (ours / warm + preparation)
        print(f"{len(records)} scans ({folder.name}), slices of {config.data.size}², 2 cores or what there is\n")
        print("| data path, without the model | samples/s | ratio |\n|---|---|---|")
        print(f"| seed's way: whole .nii.gz for every slice | {slow:.1f} | 1 |")
        print(
            f"| runner, first epoch ({preparation:.1f} s of preparation included) | {first:.0f} | {first / slow:.0f} |"
        )
        print(f"| runner, every later epoch | {warm:.0f} | {warm / slow:.0f} |\n")

        train = trainer(setup)
        ours_seconds, ours_samples = timed(lambda: our_epoch(setup, loader, 0, train))
        seed_seconds, seed_samples = timed(
            lambda: seed_epoch(items, 4 * options.seed_samples, config.data.neighbours, train)
        )
        per_ours, per_seed = ours_seconds / ours_samples, seed_seconds / seed_samples
        print(f"| one epoch of preset small ({ours} slices), network included | seconds | ratio |\n|---|---|---|")
        print(f"| seed's way (from {seed_samples} slices) | {per_seed * ours:.1f} | {per_seed / per_ours:.1f} |")
        print(f"| runner | {ours_seconds:.1f} | 1 |")


if __name__ == "__main__":
    main()
