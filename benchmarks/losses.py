"""The losses of vesuvius on a default patch of its phantom: forward and backward pass, with values that agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Aim, Options, Result, Table, Turns, Way, at_least, number

PATCH, QUICK = (72, 136, 136), (24, 32, 32)
DEFAULT = "default losses, deep supervision"
LIMIT = 0.5
"""Seconds that the default losses may take."""
PEERS = {"bce": "PyTorch", "dice": "MONAI", "cldice": "MONAI"}
Loss = Callable[[torch.Tensor], torch.Tensor]


def batch_of(size: tuple[int, int, int], known: bool) -> dict[str, Any]:
    """A patch of a phantom scroll as the losses see it; `known`: background where nobody annotated."""
    from runner_vesuvius.batches import decoded, signed
    from runner_vesuvius.phantom import make_scrolls, make_volume
    from runner_vesuvius.targets import prepare

    rng = np.random.default_rng(0)
    ((rolling, scan),) = make_scrolls(1, rng)
    whole = make_volume(rolling, scan, (size[0] + 48, size[1] + 48, size[2] + 48), rng)[1]
    label = whole[24:-24, 24:-24, 24:-24].copy()
    if known:
        label[label == 2] = 0
    made = prepare(label, 1)
    target, distance = (torch.from_numpy(made[name])[None, None] for name in ("target", "distance"))
    return decoded(target, {"tube", "medial"}) | {"distance": signed(distance, target)}


def logits_of(batch: dict[str, Any], levels: int = 1) -> list[torch.Tensor]:
    """Right about most voxels; coarser ones at half the sides each."""
    made = torch.Generator().manual_seed(0)
    finest = 4 * batch["surface"] - 2 + torch.randn(batch["surface"].shape, generator=made)
    return [finest[:, :, :: 2**i, :: 2**i, :: 2**i].contiguous() for i in range(levels)]


def ours(name: str, batch: dict[str, Any]) -> Loss:
    from runner_vesuvius.config import LossConfig
    from runner_vesuvius.losses import LOSSES

    return lambda logits: LOSSES[name].function(logits, batch, LossConfig())


def theirs(name: str, batch: dict[str, Any]) -> Loss:
    """Losses of other libraries, which mask nothing: for patches that are annotated everywhere."""
    from runner_vesuvius.config import LossConfig
    from runner_vesuvius.losses import EPSILON

    config, surface = LossConfig(), batch["surface"]
    if name == "bce":
        weight = torch.tensor(config.positive)
        cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return lambda logits: cross_entropy(logits, surface, pos_weight=weight)
    from monai.losses import DiceLoss, SoftclDiceLoss

    if name == "dice":
        dice = DiceLoss(sigmoid=True, smooth_nr=EPSILON, smooth_dr=EPSILON)
        return lambda logits: dice(logits, surface)
    cldice = SoftclDiceLoss(config.cldice_iterations, sigmoid=True, smooth=1e-9)
    return lambda logits: cldice(input=logits, target=surface)


def learned(loss: Loss, logits: torch.Tensor) -> Way:
    def way(turn: int) -> None:
        given = logits.detach().requires_grad_()
        loss(given).backward()

    return way


def looked(loss: Loss, logits: torch.Tensor) -> Way:
    def way(turn: int) -> None:
        with torch.no_grad():
            loss(logits)

    return way


def supervised_step(batch: dict[str, Any]) -> Way:
    """The default losses at four levels, as a training step has them."""
    from runner_vesuvius.config import LossConfig
    from runner_vesuvius.supervision import DENSE, over_levels, supervised, targets

    config, fixed = LossConfig(), logits_of(batch, 4)

    def way(turn: int) -> None:
        logits = [level.detach().requires_grad_() for level in fixed]
        levels = targets(batch, logits)
        sum(over_levels(supervised(name, logits, levels, config)) for name in DENSE).backward()  # type: ignore[union-attr]

    return way


def agree(name: str, batch: dict[str, Any], logits: torch.Tensor) -> None:
    """Values and gradients of both. clDice: where the skeleton of the truth is made of it, as MONAI does."""
    if name == "cldice":
        from monai.losses.cldice import soft_skel

        batch = batch | {"medial": soft_skel(batch["surface"], 3) > 0}
    wanted = logits.detach().requires_grad_()
    results = [make(name, batch)(wanted) for make in (ours, theirs)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    one, other = (torch.autograd.grad(result, wanted)[0] for result in results)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def run(options: Options) -> Result:
    from runner_vesuvius.losses import LOSSES

    size = QUICK if options.quick else PATCH
    masked, full = batch_of(size, known=False), batch_of(size, known=True)
    logits = logits_of(masked)[0]
    turns = Turns(2 if options.quick else 10)
    for name in LOSSES:
        turns.add(name, lambda name=name: learned(ours(name, masked), logits))
        turns.add(f"{name}, forward", lambda name=name: looked(ours(name, masked), logits))
    for name, peer in PEERS.items():

        def other(name: str = name) -> Way:
            way = learned(theirs(name, full), logits)
            agree(name, full, logits)
            return way

        turns.add(f"{name}, {peer}", other, every=5 if name == "cldice" else 1)
    turns.add(DEFAULT, lambda: supervised_step(masked))
    times = turns.run()
    rows: list[list[Any]] = []
    for name in LOSSES:
        peer = times.get(f"{name}, {PEERS.get(name)}")
        own = times[name].median
        rows.append([name, times[f"{name}, forward"].median * 1e3, own * 1e3, peer and peer.median * 1e3,
                     peer and peer.median / own])  # fmt: skip
    step = times[DEFAULT].median
    rows.append([DEFAULT, None, step * 1e3, None, None])
    columns = ["loss", "ms forward", "ms forward and backward", "ms, PyTorch (bce) or MONAI", "time of those, ours = 1"]
    share = float(masked["known"].float().mean())
    return Result(
        title="Losses on volumes",
        what=f"Forward and backward pass of vesuvius's losses on one patch of {' × '.join(map(str, size))} voxels of a "
        f"phantom scroll, {share:.0%} of it annotated, float32. The losses of others know no voxels that nobody "
        "annotated: they get the patch with background there; on it values and gradients of both agree.",
        tables=[Table(columns, rows)],
        aims=[
            Aim(f"the default losses in at most {LIMIT} s: {number(step)} s", step <= LIMIT),
            *at_least(times, "cldice", "cldice, MONAI", 3),
        ],
        remarks=[
            "clDice with three erosions. MONAI makes the skeleton of the truth at every step; here it is in the cache."
        ],
        left_out=turns.left_out,
        packages=("torch", "monai"),
    )
