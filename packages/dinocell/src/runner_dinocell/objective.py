"""The loss of one step: DINO, iBOT and KoLeo, with facts that show whether anything is learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from runner_core import Progress, Step, Tensors
from torch import Tensor

from runner_dinocell import losses, schedules
from runner_dinocell.config import CellConfig
from runner_dinocell.facts import facts
from runner_dinocell.targets import Targets
from runner_dinocell.views import StudentOutputs, TeacherOutputs


def objective(network: Any, batch: Tensors, config: CellConfig, progress: Progress) -> Step:
    """Return Σ weight · term over dino, ibot and koleo; the prediction is the teacher's embeddings (B, 2, D).

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
    return Step(total, {**values, **found}, prediction, _learned(student))


def _dino(student: StudentOutputs, targets: Targets, temperature: float) -> Tensor:
    return losses.dino(student.global_logits, student.local_logits, targets, temperature)


def _ibot(student: StudentOutputs, targets: Targets, temperature: float, mask: Tensor) -> Tensor:
    weights = losses.patch_weights(mask, student.masked_index)
    return losses.ibot(student.masked_logits, targets, temperature, weights, len(mask))


def _koleo(student: StudentOutputs) -> Tensor:
    """Sum KoLeo over the two global crops: crops of the same image are no neighbours."""
    first, second = student.features.chunk(2)
    return losses.koleo(first) + losses.koleo(second)


def _learned(student: StudentOutputs) -> list[Tensor]:
    """Return the tensors through which gradients reach the network."""
    return [student.global_logits, student.local_logits, student.masked_logits, student.features]
