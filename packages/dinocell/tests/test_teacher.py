"""The teacher is the moving average of its student."""

from __future__ import annotations

import copy

import torch
from runner_dinocell.config import demo
from runner_dinocell.network import DinoNet
from runner_dinocell.teacher import follow
from torch import nn


def test_it_is_the_average_that_a_loop_computes() -> None:
    student = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    teacher = copy.deepcopy(student).requires_grad_(False)
    expected = [p.clone() for p in teacher.parameters()]
    for step, momentum in enumerate((0.9, 0.5, 0.99)):
        with torch.no_grad():
            for p in student.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step), dtype=p.dtype))
        follow(teacher, student, momentum)
        expected = [momentum * t + (1 - momentum) * s for t, s in zip(expected, student.parameters(), strict=True)]
        for one, other in zip(teacher.parameters(), expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-14, atol=1e-15)
    assert all(p.grad_fn is None and not p.requires_grad for p in teacher.parameters())


def test_momentum_1_leaves_it_alone_and_0_makes_it_the_student() -> None:
    network = DinoNet(demo(), 2)
    with torch.no_grad():
        for p in network.student.parameters():
            p.add_(torch.randn(p.shape))
    before = [p.clone() for p in network.teacher.parameters()]
    follow(network.teacher, network.student, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, network.teacher.parameters(), strict=True))
    follow(network.teacher, network.student, 0.0)
    pairs = zip(network.teacher.named_parameters(), network.student.named_parameters(), strict=True)
    assert all(one == other and torch.equal(a, b) for (one, a), (other, b) in pairs)
