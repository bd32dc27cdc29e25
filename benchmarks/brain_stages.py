"""What each optimisation of brainunet's training is worth, added one after the other, at equally many samples.

Every stage trains the same network from equal weights on slices of the same scans. The first is the way its users came
from: a volume read for every slice, and metrics in NumPy after each batch. Each further one adds one optimisation. All
is done once more without the network, which shows what is left where a device makes it cost nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from runner_core import Progress
from runner_core.contract.setup import Setup
from runner_core.training.data import data_folder, open_data

from benchmarks.brain import EverySliceAnew, our_batches, our_epoch, seed_epoch, setup_for
from benchmarks.harness import Options, Result, Table, Turns, Way, at_least

Batch = dict[str, torch.Tensor]
Use = Callable[[Batch], None]


@dataclass(frozen=True)
class Stage:
    """What is added to the stage before, and all that is on."""

    name: str
    prepared: bool = False
    counted: bool = False
    channels_last: bool = False
    half: bool = False


STAGES = (
    Stage("a volume for every slice, metrics in NumPy"),
    Stage("+ scans prepared once, batches from a memory map", True),
    Stage("+ metrics as counts on the device", True, True),
    Stage("+ channels last", True, True, True),
    Stage("runner: + bfloat16", True, True, True, True),
)


def measured(logits: torch.Tensor, batch: Batch) -> float:
    """Return the Dice of a batch as users took it: everything goes through NumPy."""
    found, true = torch.sigmoid(logits.float()).numpy() > 0.5, batch["mask"].numpy() > 0.5
    both = (found & true).sum((1, 2, 3))
    return float(np.mean(2 * both / np.maximum(found.sum((1, 2, 3)) + true.sum((1, 2, 3)), 1)))


def follower(setup: Setup, stage: Stage) -> Callable[[torch.Tensor, Batch], object]:
    """Return what takes the metrics of a batch."""
    if not stage.counted:
        return measured
    metric = setup.project.metrics()[0]
    numbers = torch.arange(setup.config.train.batch_size)
    return lambda logits, batch: metric.update(logits, {"record": numbers[: len(logits)], **batch})


def trainer(setup: Setup, stage: Stage) -> Use:
    torch.manual_seed(0)
    network = setup.project.model(None)  # type: ignore[arg-type]
    layout = torch.channels_last if stage.channels_last else torch.contiguous_format
    network = network.to(memory_format=layout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    follow = follower(setup, stage)

    def train(tensors: Batch) -> None:
        given = {**tensors, "image": tensors["image"].contiguous(memory_format=layout)}
        with torch.autocast("cpu", torch.bfloat16, enabled=stage.half):
            step = setup.project.step(network, given, Progress(0, 1, 0))
        optimizer.zero_grad(set_to_none=True)
        step.loss.backward()
        optimizer.step()
        follow(step.prediction.detach(), given)

    return train


def without_network(setup: Setup, stage: Stage) -> Use:
    follow = follower(setup, stage)
    return lambda tensors: follow(tensors["mask"].float() * 2 - 1, tensors) and None


def run(options: Options) -> Result:
    torch.set_num_threads(1)
    source = options.folder("brainunet")
    limit = 16 if options.quick else 64
    with tempfile.TemporaryDirectory() as cache:
        setup = setup_for(None if options.quick else source, Path(cache))
        records = setup.project.records(data_folder(setup, lambda text: None))
        data = open_data(setup, lambda text: None)
        loader, settings = our_batches(setup, data), setup.config
        pairs = [(record.files["image"], record.files["mask"]) for record in records]
        anew = EverySliceAnew(pairs, settings.data.size)
        generator = torch.Generator().manual_seed(0)
        items = torch.utils.data.DataLoader(anew, settings.train.batch_size, shuffle=True, generator=generator)

        def way(stage: Stage, use: Use) -> Way:
            """Return a turn that gives the processor's seconds for one sample."""

            def turn(number: int) -> float:
                begun = time.process_time()
                if stage.prepared:
                    count = our_epoch(setup, loader, number, use, limit)
                else:
                    count = seed_epoch(items, limit, settings.data.neighbours, use)
                return (time.process_time() - begun) / count

            return turn

        turns = {make: Turns(1 if options.quick else 5) for make in (trainer, without_network)}
        for make, each in turns.items():
            for stage in STAGES:
                each.add(
                    stage.name, partial(lambda stage, make: way(stage, make(setup, stage)), stage, make), own_clock=True
                )
        (training, bare) = (each.run() for each in turns.values())
    slow, first = training[STAGES[0].name].median, bare[STAGES[0].name].median
    rows = [
        [name, 1 / taken.median, slow / taken.median, 1 / bare[name].median, first / bare[name].median]
        for name, taken in training.items()
    ]
    heads = ["added one after the other", "samples a second, training", "ratio", "without the network", "ratio"]
    what = f"{len(records)} real scans" if source and not options.quick else f"a phantom of {len(records)} scans"
    return Result(
        title="brainunet's optimisations, one by one",
        what=f"{what}, preset `small` ({settings.data.size}², {settings.data.neighbours} slices at once), {limit} "
        "samples a turn for each, no augmentation; processor time, one thread. The first row is the way its users came "
        "from.",
        tables=[Table(heads, rows)],
        aims=at_least(training, STAGES[-1].name, STAGES[0].name, 8),
        remarks=[
            "8 times and more was expected of all of this together; on a CPU the network is the limit.",
            "Without the network: what a device would be waiting for on which the network costs nothing. A CPU cannot "
            "show what a GPU gains by 16 bits, by channels last, by torch.compile, by batches that are copied while "
            "it computes, and by metrics for which it need not wait.",
        ],
        packages=("torch", "nibabel", "numpy"),
    )
