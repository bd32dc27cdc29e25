"""The loss of a step: what counts, what is told; and two processes that train as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from runner_core import Progress
from runner_dinocell import facts, losses
from runner_dinocell.config import CellConfig, LossConfig, demo
from runner_dinocell.network import DinoNet
from runner_dinocell.objective import objective
from runner_dinocell.targets import sinkhorn
from runner_dinocell.teacher import follow
from torch import Tensor, distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

IMAGES, CHANNELS, TOKENS = 4, 2, 4


def config(**loss: Any) -> CellConfig:
    made = demo()
    made.loss = LossConfig()
    made.model.prototypes, made.model.hidden, made.model.bottleneck = 24, 16, 8
    made.augment.global_size, made.augment.local_size, made.augment.locals = 16, 8, 3
    for name, value in loss.items():
        setattr(made.loss, name, value)
    return made


def network(made: CellConfig) -> DinoNet:
    torch.manual_seed(0)
    built = DinoNet(made, CHANNELS)
    with torch.no_grad():
        for p in built.parameters():
            p.add_(0.1 * torch.randn(p.shape))  # so that crops differ from the first step on
    return built.train()


def batch(images: int = IMAGES) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1)
    mask = torch.rand(images, 2, TOKENS, generator=made) < 0.6
    mask[:, 1] = False
    mask[:, 0, 0] = True
    return {
        "globals": torch.randn(images, 2, CHANNELS, 16, 16, generator=made),
        "locals": torch.randn(images, 3, CHANNELS, 8, 8, generator=made),
        "mask": mask,
        "grey": torch.tensor([[900, 300]] * (images // 2) + [[500, 800]] * (images // 2)),
    }


def at(step: int) -> Progress:
    return Progress(step, 100, 0)


def test_the_loss_is_the_weighted_sum_and_the_facts_are_beside_it() -> None:
    made = config(dino=0.5, ibot=2.0, koleo=0.3)
    step = objective(network(made), batch(), made, at(0))
    expected = 0.5 * step.terms["dino"] + 2.0 * step.terms["ibot"] + 0.3 * step.terms["koleo"]
    torch.testing.assert_close(step.loss, expected)
    assert step.prediction.shape == (IMAGES, 2, 96)
    assert not step.prediction.requires_grad
    told = {name for name in step.terms if name not in ("dino", "ibot", "koleo")}
    assert told == {
        "dino_margin", "feature_rank", "feature_spread", "grey_levels", "ibot_margin", "neighbour_distance",
        "teacher_entropy", "teacher_information",
    }  # fmt: skip
    assert not any(step.terms[name].requires_grad for name in told)


def test_terms_are_those_of_the_networks_outputs() -> None:
    made, net, given = config(), network(config()), batch()
    step = objective(net, given, made, at(0))
    student = net(given["globals"], given["locals"], given["mask"])
    teacher = net.teach(given["globals"], student.masked_index)
    images, patches = (sinkhorn(z, 0.04) for z in (teacher.global_logits, teacher.masked_logits))
    mask = given["mask"].transpose(0, 1).reshape(2 * IMAGES, TOKENS)
    weights = losses.patch_weights(mask, student.masked_index)
    first, second = student.features.chunk(2)
    expected = {
        "dino": losses.dino(student.global_logits, student.local_logits, images, 0.1),
        "ibot": losses.ibot(student.masked_logits, patches, 0.1, weights, 2 * IMAGES),
        "koleo": losses.koleo(first) + losses.koleo(second),
    }
    for name, value in expected.items():
        torch.testing.assert_close(step.terms[name], value)
    assert torch.equal(step.prediction[:, 1], teacher.features[IMAGES:])


def test_terms_without_weight_are_not_computed() -> None:
    made = config(ibot=0.0)
    step = objective(network(made), batch(), made, at(0))
    assert "ibot" not in step.terms
    assert "ibot_margin" not in step.terms


def test_gradients_reach_the_student_alone() -> None:
    made = config()
    net = network(made)
    objective(net, batch(), made, at(0)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.student.parameters())
    assert all(p.grad is None for p in net.teacher.parameters())


def test_the_teachers_temperature_is_that_of_the_progress() -> None:
    made = config()
    net = network(made).eval()
    entropies = [float(objective(net, batch(), made, at(step)).terms["teacher_entropy"]) for step in (0, 15, 50, 100)]
    assert entropies[0] < entropies[1] < entropies[2] == entropies[3]


def test_gradients_are_measured_at_the_students_outputs() -> None:
    made = config()
    step = objective(network(made), batch(), made, at(3))
    for name in ("dino", "ibot", "koleo"):
        found = torch.autograd.grad(step.terms[name], step.outputs, retain_graph=True, allow_unused=True)
        assert sum(float(gradient.norm()) for gradient in found if gradient is not None) > 0


def test_the_centre_moves_in_training_only() -> None:
    made = config(centring="centre")
    net = network(made)
    objective(net, batch(), made, at(0))
    moved = net.image_centring.centre.clone(), net.patch_centring.centre.clone()
    assert all(bool(centre.abs().sum() > 0) for centre in moved)
    objective(net.eval(), batch(), made, at(1))
    assert torch.equal(moved[0], net.image_centring.centre)
    assert torch.equal(moved[1], net.patch_centring.centre)


# ------------------------------------------------------------ facts


def test_facts_are_what_they_are_called() -> None:
    logits = torch.randn(8, 24, dtype=torch.float64)
    made = sinkhorn(logits, 0.5)
    p = made.at(slice(None)).numpy()
    entropy = np.mean([-sum(a * math.log(a) for a in row) for row in p])
    together = -sum(a * math.log(a) for a in p.mean(0))
    values = {"dino": torch.tensor(2.0), "ibot": torch.tensor(1.0), "koleo": torch.tensor(4.0)}
    mask = torch.tensor([[True, False]] * 2 + [[False, False]] * 6)
    features = torch.randn(8, 5, dtype=torch.float64)
    told = facts.facts(values, made, features, mask, torch.tensor([[300, 90], [20, 500]]))
    assert float(told["teacher_entropy"]) == pytest.approx(entropy)
    assert float(told["teacher_information"]) == pytest.approx(together - entropy)
    assert float(told["dino_margin"]) == pytest.approx(math.log(24) - 2)
    assert float(told["ibot_margin"]) == pytest.approx(math.log(24) - 4)  # a quarter of the crops is masked
    assert float(told["neighbour_distance"]) == pytest.approx(math.exp(-2))
    assert float(told["grey_levels"]) == 55
    eigenvalues = np.linalg.eigvalsh(np.cov(features.numpy().T))
    assert float(told["feature_rank"]) == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
    away = features - features.mean(0)
    assert float(told["feature_spread"]) == pytest.approx(float(away.norm() / features.norm()))


@pytest.mark.parametrize("width", [3, 20])
def test_features_of_few_directions_have_a_low_rank(width) -> None:
    rank, spread = facts.variety(torch.randn(8, 1) * torch.randn(1, width))
    assert float(rank) == pytest.approx(1)
    rank, spread = facts.variety(torch.ones(8, width))
    assert (float(rank), float(spread)) == (0, 0)
    rank, spread = facts.variety(torch.eye(8).repeat(10, 1) - 1 / 8)
    assert float(rank) == pytest.approx(7)
    assert float(spread) == pytest.approx(1)


# ------------------------------------------------------------ two processes


def half(whole: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    return {name: value[rank * 2 : rank * 2 + 2] for name, value in whole.items()}


def told_of(net: Any, given: Mapping[str, Tensor], made: CellConfig) -> dict[str, Tensor]:
    """Losses, gradients, centres and the teacher after its step."""
    step = objective(net, dict(given), made, at(0))
    step.loss.backward()
    plain = net.module if isinstance(net, DistributedDataParallel) else net
    with torch.no_grad():
        for p in plain.student.parameters():
            p.sub_(0.1 * p.grad)
    follow(plain.teacher, plain.student, 0.9)
    whole = {f"teacher.{n}": getattr(p, "full_tensor", lambda p=p: p)() for n, p in plain.teacher.named_parameters()}
    whole |= {f"student.{n}": getattr(p, "full_tensor", lambda p=p: p)() for n, p in plain.student.named_parameters()}
    whole |= {name: buffer for name, buffer in plain.named_buffers() if name.endswith("centre")}
    return {name: value.detach().clone() for name, value in whole.items()} | {
        name: step.terms[name].detach() for name in ("dino", "ibot", "koleo")
    }


WAYS = {"ddp": "sinkhorn", "fsdp": "centre"}
"""With which centring each is tried."""


def one_of_two(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    for way, centring in WAYS.items():
        made = config(centring=centring, koleo=1.0)
        net: Any = network(made)
        if way == "ddp":
            net = _Through(net)
        else:
            for unit in (*net.student.backbone.blocks, *net.teacher.backbone.blocks, net):
                fully_shard(unit)
        told = told_of(net, half(batch(), rank), made)
        for name in ("dino", "ibot", "koleo"):
            distributed.all_reduce(told[name])
            told[name] /= 2
        if rank == 0:
            torch.save(told, folder / way)
    distributed.destroy_process_group()


class _Through(DistributedDataParallel):
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def teach(self, *given: Tensor) -> Any:
        return self.module.teach(*given)


@pytest.mark.slow
def test_two_processes_learn_what_one_does_with_the_whole_batch(tmp_path) -> None:
    mp.spawn(one_of_two, (tmp_path,), nprocs=2)
    for way, centring in WAYS.items():
        made = config(centring=centring, koleo=1.0)
        alone = told_of(network(made), batch(), made)
        together = torch.load(tmp_path / way, weights_only=True)
        assert set(together) == set(alone)
        for name, value in alone.items():
            torch.testing.assert_close(
                together[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, what=f"{way}, {name}": f"{what}: {text}"
            )
