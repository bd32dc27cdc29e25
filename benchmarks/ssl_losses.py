"""The losses of dinocell beside lightly's: time and memory of a forward and backward pass, with values that agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Aim, Options, Result, Table, Turns, Way, at_least, peak_bytes

LIGHTLY = "lightly"
STUDENT, TEACHER = 0.1, 0.04


@dataclass(frozen=True)
class Size:
    images: int = 16
    local_crops: int = 8
    patches: int = 512
    """Masked ones of all global crops, as many in each."""
    prototypes: int = 65536
    features: tuple[int, int] = (256, 384)


QUICK = Size(4, 2, 16, 512, (32, 48))


@dataclass
class Case:
    """`ours`, `theirs`: student's output → loss; of Sinkhorn-Knopp, which learns nothing, teacher's → distributions."""

    given: torch.Tensor
    ours: Callable[[torch.Tensor], torch.Tensor]
    theirs: Callable[[], Callable[[torch.Tensor], torch.Tensor]]
    learns: bool = True


def logits(rows: int, prototypes: int, seed: int) -> torch.Tensor:
    """Cosines, as the heads give them."""
    return 0.1 * torch.randn(rows, prototypes, generator=torch.Generator().manual_seed(seed))


def cases(size: Size) -> dict[str, Case]:
    from runner_dinocell.losses import dino, ibot, koleo, patch_weights
    from runner_dinocell.targets import centred, sinkhorn

    images, crops, prototypes = size.images, 2 + size.local_crops, size.prototypes
    student, teacher = logits(crops * images, prototypes, 0), logits(2 * images, prototypes, 1)
    hidden, shown = logits(size.patches, prototypes, 2), logits(size.patches, prototypes, 3)
    each = size.patches // (2 * images)
    mask = torch.arange(4 * each).expand(2 * images, -1) < each
    centre = torch.zeros(prototypes)
    weights = patch_weights(mask, mask.flatten().nonzero()[:, 0])

    def other_dino() -> Any:
        from lightly.loss import DINOLoss

        loss = DINOLoss(prototypes, teacher_temp=TEACHER, student_temp=STUDENT, center_momentum=1.0)
        return lambda z: loss(list(teacher.chunk(2)), list(z.chunk(crops)))

    def other_ibot() -> Any:
        from lightly.loss import IBOTPatchLoss

        loss = IBOTPatchLoss(prototypes, teacher_temp=TEACHER, student_temp=STUDENT, center_momentum=1.0)
        return lambda z: loss(shown, z, mask[:, None])

    def other_koleo() -> Any:
        from lightly.loss import KoLeoLoss

        return KoLeoLoss()

    def other_sinkhorn() -> Any:
        from lightly.loss.swav_loss import sinkhorn as other

        return lambda z: other(z, iterations=3, epsilon=TEACHER)

    generator = torch.Generator().manual_seed(4)
    return {
        f"DINO, {images} images": Case(
            student,
            lambda z: dino(z[: 2 * images], z[2 * images :], centred(teacher, centre, TEACHER), STUDENT),
            other_dino,
        ),
        f"iBOT, {size.patches} patches": Case(
            hidden, lambda z: ibot(z, centred(shown, centre, TEACHER), STUDENT, weights, len(mask)), other_ibot
        ),
        f"KoLeo, {size.features[0]} × {size.features[1]}": Case(
            torch.randn(*size.features, generator=generator), koleo, other_koleo
        ),
        f"Sinkhorn-Knopp, {size.patches} patches": Case(
            shown, lambda z: sinkhorn(z, TEACHER).at(slice(None)), other_sinkhorn, learns=False
        ),
    }


def worked(case: Case, function: Callable[[torch.Tensor], torch.Tensor]) -> Way:
    def way(turn: int) -> None:
        given = case.given.detach().requires_grad_(case.learns)
        value = function(given)
        if case.learns:
            value.backward()

    return way


def agree(case: Case, theirs: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Values, and gradients where there are some."""
    results = []
    for function in (case.ours, theirs):
        given = case.given.detach().clone().requires_grad_(case.learns)
        value = function(given)
        results.append((value, torch.autograd.grad(value, given)[0] if case.learns else None))
    (one, gradient), (other, expected) = results
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)  # lightly sums 10⁶ products in one float32
    if expected is not None and gradient is not None:
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def run(options: Options) -> Result:
    torch.set_num_threads(1)  # a second one would wait for whatever else the machine does
    size = QUICK if options.quick else Size()
    turns = Turns(2 if options.quick else 10)
    made = cases(size)
    memory: dict[str, int | None] = {}
    for name, case in made.items():
        turns.add(name, partial(worked, case, case.ours))
        memory[name] = peak_bytes(partial(worked(case, case.ours), 0))

        def other(name: str = name, case: Case = case) -> Way:
            theirs = case.theirs()
            agree(case, theirs)
            memory[f"{name}, {LIGHTLY}"] = peak_bytes(partial(worked(case, theirs), 0))
            return worked(case, theirs)

        turns.add(f"{name}, {LIGHTLY}", other)
    times = turns.run()
    rows: list[list[Any]] = []
    aims: list[Aim] = []
    for name in made:
        peer = f"{name}, {LIGHTLY}"
        ms = [times[one].median * 1e3 if one in times else None for one in (name, peer)]
        megabytes = [taken and taken / 1e6 for taken in (memory.get(name), memory.get(peer))]
        rows.append([name, *ms, ms[1] and ms[1] / (ms[0] or 1), *megabytes])
        if name.startswith(("DINO", "iBOT")):
            aims += at_least(times, name, peer, 1.5)
        if name.startswith("KoLeo"):
            aims += at_least(times, name, peer, 1)
    heads = ["loss", "ms", f"ms, {LIGHTLY}", f"time of {LIGHTLY}, ours = 1", "MB", f"MB, {LIGHTLY}"]
    return Result(
        title="Losses of self-supervised learning",
        what=f"Forward and backward pass (Sinkhorn-Knopp: its three rounds) of dinocell's losses and lightly's, "
        f"{size.prototypes:,} prototypes, two global and {size.local_crops} local crops, float32, one thread. MB: "
        "what a pass takes at most above the logits that it is given, their gradient included. Values and gradients of "
        "both agree.",
        tables=[Table(heads, rows)],
        aims=aims,
        remarks=[
            "lightly has no Sinkhorn-Knopp for DINO; this is the one of its SwAV loss. Ours gives scalings of rows and "
            "columns, from which losses take the distributions part by part; here they are built whole.",
            "lightly's DINO sums 10⁶ products in one float32: the value is off by 2·10⁻⁴, ours by 10⁻⁸.",
        ],
        left_out=turns.left_out,
        packages=("torch", "lightly"),
    )
