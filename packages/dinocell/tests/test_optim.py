"""Which parameters learn how fast, and what changes of them in training."""

from __future__ import annotations

import pytest
import torch
from runner_core import Progress
from runner_dinocell import schedules
from runner_dinocell.config import CellConfig, OptimConfig, demo
from runner_dinocell.network import DinoNet
from runner_dinocell.optim import adjust, parameter_groups


def small() -> CellConfig:
    config = demo()
    config.optim = OptimConfig()
    config.model.registers, config.model.ibot_head = 2, "own"
    config.model.prototypes, config.model.hidden, config.model.bottleneck = 16, 8, 4
    return config


def by_name(network: DinoNet, groups) -> dict[str, dict]:
    names = {parameter: name for name, parameter in network.student.named_parameters()}
    return {names[parameter]: group for group in groups for parameter in group["params"]}


def test_every_parameter_of_the_student_is_in_one_group() -> None:
    network, config = DinoNet(small(), 5), small()
    groups = parameter_groups(network.student, config)
    listed = [p for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed)) == len(list(network.student.parameters()))
    assert len(groups) == len({(g["scale"], g["decays"], g["prototypes"]) for g in groups})


def test_deeper_blocks_learn_faster_and_the_patch_embedding_slowly() -> None:
    config = small()
    network = DinoNet(config, 5)
    group = by_name(network, parameter_groups(network.student, config))
    expected = {
        "backbone.patch_embed.proj.weight": 0.9**5 * 0.2,
        "backbone.pos_embed": 0.9**5,
        "backbone.cls_token": 0.9**5,
        "backbone.reg_token": 0.9**5,
        "backbone.mask_token": 0.9**5,
        "backbone.blocks.0.attn.qkv.weight": 0.9**4,
        "backbone.blocks.3.mlp.fc1.weight": 0.9,
        "backbone.norm.weight": 1.0,
        "head.mlp.0.weight": 1.0,
        "ibot_head.prototypes": 1.0,
    }
    for name, scale in expected.items():
        assert group[name]["scale"] == pytest.approx(scale), name
        assert group[name]["lr"] == pytest.approx(scale * config.train.learning_rate)


def test_matrices_decay_and_nothing_else() -> None:
    config = small()
    network = DinoNet(config, 5)
    group = by_name(network, parameter_groups(network.student, config))
    decaying = {name for name, found in group.items() if found["decays"]}
    tokens = ("backbone.pos_embed", "backbone.cls_token", "backbone.reg_token", "backbone.mask_token")
    assert decaying == {n for n, p in network.student.named_parameters() if p.ndim > 1 and n not in tokens}
    assert {"backbone.blocks.0.attn.qkv.weight", "head.prototypes", "backbone.patch_embed.proj.weight"} <= decaying
    assert {name for name, found in group.items() if found["prototypes"]} == {"head.prototypes", "ibot_head.prototypes"}


def test_weight_decay_follows_its_cosine_and_prototypes_wait() -> None:
    config = small()
    config.optim.freeze_prototypes = 0.1
    network = DinoNet(config, 5)
    optimizer = torch.optim.AdamW(parameter_groups(network.student, config))
    prototypes = network.student.head.prototypes
    for step in range(4):
        progress = Progress(step, 20, 0)
        for group in optimizer.param_groups:
            group["lr"] = config.train.learning_rate * group["scale"] * schedules.learning_rate(config, progress)
        adjust(optimizer.param_groups, config, progress)
        for group in optimizer.param_groups:
            expected = schedules.weight_decay(config, progress) if group["decays"] else 0.0
            assert group["weight_decay"] == expected
        before, other = prototypes.clone(), network.student.head.mlp[0].weight.clone()
        for parameter in network.student.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert torch.equal(prototypes, before) == (step < 2)
        assert not torch.equal(network.student.head.mlp[0].weight, other)


def test_adjusting_twice_changes_nothing() -> None:
    config = small()
    groups = parameter_groups(DinoNet(config, 5).student, config)
    adjust(groups, config, Progress(15, 20, 0))
    once = [(group["lr"], group["weight_decay"]) for group in groups]
    adjust(groups, config, Progress(0, 20, 0))
    adjust(groups, config, Progress(15, 20, 0))
    frozen_first = [group["lr"] for group in groups if group["prototypes"]]
    assert once == [(group["lr"], group["weight_decay"]) for group in groups]
    assert min(frozen_first) > 0
