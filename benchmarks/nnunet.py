"""Training beside nnU-Net's own trainer: the same residual-encoder network, patch and batch on generated scrolls."""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from runner_core import Arrays, Infer, Precision, Progress
from runner_core.contract.setup import Setup
from runner_core.data.loader import Loader
from runner_core.engines.device import cpu
from runner_core.engines.torch.learning import build_optimizer
from runner_core.engines.torch.parallel import place
from runner_core.engines.torch.precision import autocast
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.training.data import open_data

from benchmarks.harness import ROOT, Aim, Cell, Options, Result, Table, Times, Turns, Way, number

BATCH, CLIP = 2, 12.0
THEIRS, PLAIN = "nnU-Net 2.8.1", "runner, float32, channels last off"
OURS, HALF = "runner, float32", "runner, bfloat16"
ALONE, DATA = ": network alone", ": data alone"
AIM = 2.0
AMX = cpu().matrix_bfloat16
Step = Callable[[Any], None]
REMARKS = [
    "`network alone` repeats the training step on one batch; `data alone` is loading and augmentation. The aims name "
    "the speed that data at no cost would give: more than that needs a faster network. (Where the network alone took "
    "longer than the whole, the difference is noise.) Its convolutions take four fifths of the forward and backward "
    "pass with 32 to 256 channels, and in float32 both sides call the same ones.",
    "Not the same: nnU-Net has two logits a voxel and leaves the coarsest level out of the loss, runner has one logit "
    "and uses all levels; the augmentations differ as `AugmentConfig` says. Samples a second on two threads and with "
    "worker processes were not measured, because the machine was shared.",
    "On a processor without AMX (avx512_bf16 alone), bfloat16 took 1.4 times as long as float32, with channels last "
    "1.5 times: there `precision.mode auto` is float32. nnU-Net has no autocast on a CPU. Channels last with PyTorch's "
    "own instance norm is 0.9 (32 to 256 channels) to 1.25 times (8 to 64 channels) as fast as channels first, because "
    "the norm copies each volume twice. torch.compile was not tried: it needs a compiler.",
]


class Size(NamedTuple):
    features: tuple[int, ...]
    blocks: tuple[int, ...]
    patch: int
    turns: int

    @property
    def text(self) -> str:
        return f"{self.features[0]} to {self.features[-1]} channels, patch {self.patch}³"


SIZES = (Size((8, 16, 32, 64), (1, 2, 3, 3), 48, 15), Size((32, 64, 128, 256), (1, 2, 3, 3), 32, 11))
QUICK = (Size((4, 8), (1, 1), 16, 1),)


class Side(NamedTuple):
    """One contender: batches without end, as the network takes them, and what trains on one."""

    batches: Iterator[Any]
    step: Step
    network: torch.nn.Module
    optimizer: torch.optim.Optimizer
    windows: Callable[[np.ndarray], Infer]
    """Return what gives the surface's probability in windows of this volume."""


def processor(work: Callable[[], object]) -> Way:
    """Return a way that counts its own processor seconds for one sample: other programs hardly change them."""

    def way(turn: int) -> float:
        begun = time.process_time()
        work()
        return (time.process_time() - begun) / BATCH

    return way


# ---------------------------------------------------------------- nnU-Net


def plans(size: Size) -> dict[str, Any]:
    """Return the plans that nnU-Net 2.8.1 wrote for the tests, with another size."""
    path = ROOT / "packages" / "vesuvius" / "tests" / "nnunet_model.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["plans"]
    levels = len(size.features)
    configuration = found["configurations"]["3d_fullres"]
    configuration |= {"patch_size": [size.patch] * 3, "batch_size": BATCH}
    configuration["architecture"]["arch_kwargs"] |= {
        "n_stages": levels,
        "features_per_stage": [*size.features],
        "kernel_sizes": [[3, 3, 3]] * levels,
        "strides": [[1, 1, 1], *[[2, 2, 2]] * (levels - 1)],
        "n_blocks_per_stage": [*size.blocks],
        "n_conv_per_stage_decoder": [1] * (levels - 1),
    }
    return found | {"continue_training": False}


def write_cases(folder: Path, scrolls: Path, manager: Any, patch: int) -> None:
    """Write volumes as nnU-Net's preprocessing leaves them: normalised, with places of each label."""
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2
    from runner_vesuvius.volumes import read_image, read_label

    folder.mkdir(parents=True)
    classes = [*manager.foreground_labels, [-1, *manager.all_labels]]
    for path in sorted((scrolls / "train_images").glob("*.tif")):
        seg = read_label(scrolls / "train_labels" / path.name)[None].astype(np.int16)
        image = read_image(path)[None].astype(np.float32)
        properties = {"class_locations": DefaultPreprocessor._sample_foreground_locations(seg, classes)}
        blocks, chunks = comp_blosc2_params(image.shape, (patch,) * 3)
        nnUNetDatasetBlosc2.save_case(
            (image - image.mean()) / image.std(), seg, properties, str(folder / path.stem), chunks, blocks
        )


def theirs(size: Size, scrolls: Path, work: Path, seed: int = 0) -> Side:
    """Return nnU-Net's trainer with its own loader and augmentation, in this process: nothing waits or is idle."""
    places = {f"nnUNet_{name}": str(work / name) for name in ("raw", "preprocessed", "results")}
    os.environ |= places | {"nnUNet_n_proc_DA": "0"}
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    about = {
        "channel_names": {"0": "CT"}, "labels": {"background": 0, "surface": 1, "ignore": 2},
        "numTraining": 5, "file_ending": ".tif",
    }  # fmt: skip
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - its loader and augmentation draw from it
    with redirect_stdout(io.StringIO()):
        trainer = nnUNetTrainer(plans(size), "3d_fullres", "all", about, torch.device("cpu"))
        write_cases(Path(trainer.preprocessed_dataset_folder), scrolls, trainer.label_manager, size.patch)
        trainer.initialize()
        batches, _ = trainer.get_dataloaders()
    trainer.network.train()

    def windows(volume: np.ndarray) -> Infer:
        mean, std = float(volume.mean()), float(volume.std())

        def infer(arrays: Arrays) -> Arrays:
            logits = trainer.network((torch.from_numpy(arrays["image"])[:, None].float() - mean) / std)[0]
            return {"prediction": logits.softmax(1)[:, 1:].numpy()}

        return infer

    return Side(iter(batches), trainer.train_step, trainer.network, trainer.optimizer, windows)


# ---------------------------------------------------------------- runner


def ours(
    size: Size,
    scrolls: Path,
    work: Path,
    precision: Precision,
    channels_last: str = "on",
    seed: int = 0,
) -> Side:
    """Return preset nnunet with nnU-Net's network: loader, augmentation, losses and optimizer of a run."""
    plugins = Plugins.load("vesuvius")
    kind = plugins.project()
    config: Any = from_preset(kind, "nnunet")
    config.model.architecture = "resenc"
    config.model.resenc.features, config.model.resenc.blocks = size.features, size.blocks
    config.model.resenc.halvings = (len(size.features) - 1,) * 3
    config.data.patch, config.data.split, config.train.batch_size = (size.patch,) * 3, "none", BATCH
    config.cache.dir, config.train.channels_last = work / "cache", channels_last
    setup = Setup(kind(config), config, "nnunet", scrolls, plugins)
    data = open_data(setup, lambda text: None)
    project = setup.project
    torch.manual_seed(seed)
    device = torch.device("cpu")
    network, context = place(project.model(precision), project, device), autocast(precision, device)
    optimizer = build_optimizer(project, network, config.train)
    samples = project.samples(data.store, data.splits["train"], "train")
    loader = Loader(samples, batch_size=BATCH, seed=seed, shuffle=True)
    drawn = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[Any]:
        for epoch in count():
            for batch in loader.batches(epoch):
                arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
                yield project.on_device(arrays, data.statistics, drawn)
                batch.release()

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with context or nullcontext():
            loss = project.step(network, batch, Progress(0, 1, 0)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()

    def infer(arrays: Arrays) -> Arrays:
        batch = project.on_device({"image": torch.from_numpy(arrays["image"])}, data.statistics, None)
        with context or nullcontext():
            return {"prediction": project.infer(network, batch)["prediction"].float().numpy()}

    return Side(batches(), step, network, optimizer, lambda volume: infer)


# ---------------------------------------------------------------- both


def ways(name: str, side: Side) -> Iterator[tuple[str, Way]]:
    """Yield the whole training, and its two parts by themselves."""
    fixed = next(side.batches)
    yield name, processor(lambda: side.step(next(side.batches)))
    yield name + ALONE, processor(lambda: side.step(fixed))
    yield name + DATA, processor(lambda: next(side.batches))


def measured(size: Size, scrolls: Path, work: Path, left_out: dict[str, str]) -> dict[str, Times]:
    turns, sides = Turns(size.turns), {}
    try:
        sides[THEIRS] = theirs(size, scrolls, work / "nnunet")
    except ImportError as error:
        left_out[THEIRS] = str(error)
    sides |= {
        HALF: ours(size, scrolls, work, Precision("bfloat16")),
        OURS: ours(size, scrolls, work, Precision("float32")),
        PLAIN: ours(size, scrolls, work, Precision("float32"), "off"),
    }
    for name, side in sides.items():
        for each, way in ways(name, side):
            turns.add(each, lambda way=way: way, own_clock=True)
    return turns.run()


def run(options: Options) -> Result:
    from runner_vesuvius.phantom import write_phantom

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tables, aims, results = [], [], {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        scrolls = Path(folder) / "scrolls"
        write_phantom(scrolls, np.random.default_rng(0), (2, 1, 1, 1))
        for size in QUICK if options.quick else SIZES:
            results[size] = measured(size, scrolls, Path(folder) / size.text, left_out)
    for size, times in results.items():
        compared = THEIRS if THEIRS in times else PLAIN
        reference = times[compared]
        rows: list[list[Cell]] = []
        for name, taken in times.items():
            low, high = (number(seconds) for seconds in taken.quartiles)
            ratios = [reference.by_turn[turn] / taken.by_turn[turn] for turn in taken.by_turn]
            rows.append([name, taken.median, f"{low} – {high}", float(np.median(ratios))])
        tables.append(Table([size.text, "processor s a sample (median)", "quartiles", f"speed, {compared} = 1"], rows))
        if compared != THEIRS:
            continue
        default = HALF if AMX else OURS
        ratio = next(row[3] for row in rows if row[0] == default)
        ceiling = reference.median / times[default + ALONE].median
        text = f"{default}, {size.text}: at least {number(AIM)} times the samples a second of nnU-Net: {number(ratio)}"
        aims.append(Aim(f"{text} (with data at no cost: {number(ceiling)})", float(ratio or 0) >= AIM))
    return Result(
        title="Training beside nnU-Net",
        what="nnU-Net's residual-encoder network, batches of 2 patches, Dice and cross-entropy with deep supervision, "
        "SGD. nnU-Net: its trainer, loader (blosc2) and batchgeneratorsv2. runner: preset `nnunet` with "
        "`model.architecture resenc`, channels last unless it says off. On a processor with AMX bfloat16 is the "
        f"default, else float32; this one has {'it' if AMX else 'none'}. Both on one thread in one process, in turns "
        "of one batch. Measured is the processor's time for a sample: it bounds samples a second however many worker "
        "processes overlap. Other programs on the machine change it too: ratios of two runs differed by up to a fifth.",
        tables=tables,
        aims=aims,
        remarks=REMARKS,
        left_out=left_out,
        packages=("torch", "nnunetv2", "batchgeneratorsv2", "dynamic_network_architectures"),
    )
