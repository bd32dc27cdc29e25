"""The loss of one step: DINO, iBOT and KoLeo, with facts that show whether anything is learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from runner_core import Progress, Step, Tensors
from torch import Tensor

from runner_dinocell import gram, losses, schedules
from runner_dinocell.config import CellConfig
from runner_dinocell.facts import facts
from runner_dinocell.targets import Targets
from runner_dinocell.views import StudentOutputs, TeacherOutputs


def objective(network: Any, batch: Tensors, config: CellConfig, progress: Progress) -> Step:
    """Return Σ weight · term; the prediction is the teacher's embeddings (B, 2, D).

    Terms are dino, ibot and koleo, and those of other recipes that the settings switch on.

    Sinkhorn-Knopp, centres and KoLeo look at the crops of all processes that train together. In training the centres
    move.
    """
    loss = config.loss
    student: StudentOutputs = network(batch["globals"], batch["locals"], batch["mask"])
    teacher: TeacherOutputs = network.teach(batch["globals"], student.masked_index)
    temperature = schedules.teacher_temperature(config, progress)
    images = network.image_centring(teacher.global_logits, temperature)
    patches = network.patch_centring(teacher.masked_logits, temperature)
    mask = batch["mask"].transpose(0, 1).flatten(0, 1)
    terms: dict[str, tuple[float, Callable[[], Tensor]]] = {
        "dino": (loss.dino, partial(_dino, student, images, loss.student_temperature)),
        "ibot": (loss.ibot, partial(_ibot, student, patches, loss.student_temperature, mask)),
        "koleo": (loss.koleo, partial(_koleo, student)),
        **_further(network, student, batch, config, progress),
    }
    total = torch.zeros((), device=mask.device)
    values: dict[str, Tensor] = {}
    for name, (weight, compute) in terms.items():
        if weight == 0:
            continue
        values[name] = compute()
        total = total + weight * values[name]
    found = facts(values, images, teacher.features, mask, batch["grey"])
    prediction = teacher.features.unflatten(0, (2, -1)).transpose(0, 1)
    return Step(total, {**values, **found}, prediction, _learned(student, "gram" in values or "distil" in values))


def _further(
    network: Any, student: StudentOutputs, batch: Tensors, config: CellConfig, progress: Progress
) -> dict[str, tuple[float, Callable[[], Tensor]]]:
    """Return weights and computation of the terms that other recipes add."""
    settings, found = config.metadata, {}
    if gram.begun(config.gram, progress):
        found["gram"] = (config.gram.weight, lambda: gram.gram(student.patches, network.anchored(batch["globals"])))
    for name in settings.told:
        weight = settings.suppress_weight if name in settings.suppress else settings.guide_weight
        found[name] = (weight, partial(network.metadata, student.features, batch, name, progress))
    if config.distil.network and network.distil.ready:
        found["distil"] = (config.distil.weight, partial(network.distilled, student, batch["globals"]))
    return found


def _dino(student: StudentOutputs, targets: Targets, temperature: float) -> Tensor:
    return losses.dino(student.global_logits, student.local_logits, targets, temperature)


def _ibot(student: StudentOutputs, targets: Targets, temperature: float, mask: Tensor) -> Tensor:
    weights = losses.patch_weights(mask, student.masked_index)
    return losses.ibot(student.masked_logits, targets, temperature, weights, len(mask))


def _koleo(student: StudentOutputs) -> Tensor:
    """Sum KoLeo over the two global crops: crops of the same image are no neighbours."""
    first, second = student.features.chunk(2)
    return losses.koleo(first) + losses.koleo(second)


def _learned(student: StudentOutputs, patches: bool) -> list[Tensor]:
    """Return the tensors through which gradients reach the network; `patches`: patch tokens too."""
    own = [student.global_logits, student.local_logits, student.masked_logits, student.features]
    return [*own, student.patches] if patches else own
