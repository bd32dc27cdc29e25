"""What nnU-Net's network learns from equally many samples: nnU-Net's trainer beside runner's."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import torch
from runner_core import Precision
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.metric import score
from runner_vesuvius.postprocess import surface
from runner_vesuvius.volumes import read_image, read_label
from runner_vesuvius.whole import predict

from benchmarks.harness import Aim, Cell, Options, Result, Table, number
from benchmarks.nnunet import BATCH, THEIRS, Side, Size, ours, theirs

OURS, HALF = "runner", "runner, bfloat16"
SEEDS = (0, 1, 2)
SIZE, STEPS = Size((8, 16, 32, 64), (1, 2, 3, 3), 32, 1), 400
QUICK, QUICK_STEPS = Size((4, 8), (1, 1), 16, 1), 4
RATE, POWER = 0.01, 0.9
PARTS = ("score", "topology", "surface_dice", "components")
COLUMNS = ["after equal samples", "score by seed", "score", "topology", "surface Dice", "components", "processor s"]
Make = Callable[[Size, Path, Path, int], Side]
SIDES: Mapping[str, Make] = {
    THEIRS: theirs,
    OURS: lambda size, scrolls, work, seed: ours(size, scrolls, work, Precision("float32"), seed=seed),
    HALF: lambda size, scrolls, work, seed: ours(size, scrolls, work, Precision("bfloat16"), seed=seed),
}


def trained(side: Side, steps: int) -> float:
    """Train with nnU-Net's decay, step by step, and return the processor's seconds."""
    begun = time.process_time()
    for number_, batch in zip(range(steps), side.batches, strict=False):
        for group in side.optimizer.param_groups:
            group["lr"] = RATE * (1 - number_ / steps) ** POWER
        side.step(batch)
    return time.process_time() - begun


def scored(side: Side, scrolls: Path, patch: int) -> list[float]:
    """Return the parts of the official score, means over the volumes of scrolls that were not trained on."""
    side.network.eval()
    found = []
    for path in sorted((scrolls / "train_images").glob("*.tif")):
        image = read_image(path)
        with torch.inference_mode():
            probability = predict(image, side.windows(image), (patch,) * 3, 0.5, BATCH)
        mask = surface(probability, ScrollPredictConfig())
        found.append(score(mask, read_label(scrolls / "train_labels" / path.name)))
    return [float(np.mean([getattr(each, part) for each in found])) for part in PARTS]


def run(options: Options) -> Result:
    from runner_vesuvius.phantom import write_phantom

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size, steps, seeds = (QUICK, QUICK_STEPS, SEEDS[:1]) if options.quick else (SIZE, STEPS, SEEDS)
    found: dict[str, list[list[float]]] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_phantom(folder / "scrolls", np.random.default_rng(0), (2, 1, 1, 1))
        write_phantom(folder / "unseen", np.random.default_rng(1), (1,) if options.quick else (1, 1, 1, 1))
        for seed, (who, make) in product(seeds, SIDES.items()):
            try:
                side = make(size, folder / "scrolls", folder / f"{who} {seed}", seed)
            except ImportError as error:
                left_out[who] = str(error)
                continue
            seconds = trained(side, steps)
            found.setdefault(who, []).append([*scored(side, folder / "unseen", size.patch), seconds])
            print(who, seed, found[who][-1], flush=True)
    scores = {who: [each[0] for each in runs] for who, runs in found.items()}
    rows: list[list[Cell]] = [
        [who, " ".join(f"{one:.3f}" for one in scores[who]), *np.mean(runs, 0).tolist()] for who, runs in found.items()
    ]
    aims = []
    if THEIRS in scores:
        gains = np.subtract(scores[OURS], scores[THEIRS])
        text = f"not worse than nnU-Net after equal samples: {gains.mean():+.3f} official score"
        aims = [Aim(f"{text} ({gains.min():+.3f} to {gains.max():+.3f} by seed)", float(gains.mean()) >= 0)]
    return Result(
        title="Equal samples beside nnU-Net",
        what=f"nnU-Net's residual-encoder network ({size.text}), trained for {steps * BATCH:,} patches in batches of "
        f"{BATCH}: SGD with momentum 0.99, learning rate {number(RATE)} with polynomial decay, Dice and cross-entropy, "
        f"five generated volumes, seeds {', '.join(map(str, seeds))}. The official score, means over four volumes of "
        "four scrolls from another phantom, windows and post-processing alike. nnU-Net normalises by volume, runner by "
        "set.",
        tables=[Table(COLUMNS, rows)],
        aims=aims,
        left_out=left_out,
        packages=("torch", "nnunetv2", "batchgeneratorsv2", "dynamic_network_architectures"),
    )
