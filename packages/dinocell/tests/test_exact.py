"""train.recipe dinov2-exact: twenty steps equal those of DINOv2's algorithm, from equal weights and crops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from dinov2_oracle import Oracle
from runner_core import Progress
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.export import backbone_weights
from runner_dinocell.network import DinoNet, backbone
from runner_dinocell.objective import objective
from runner_dinocell.project import DinoCell
from runner_dinocell.vit import drawn
from runner_dinocell.weights import adapt, as_timm
from torch import Tensor, nn

STEPS, IMAGES, CHANNELS, LOCALS = 20, 4, 2, 3


def exact(registers: int = 0, centring: str = "centre", ibot_head: str = "shared") -> CellConfig:
    config = demo()
    config.train.recipe = "dinov2-exact"
    model, augment, optim = config.model, config.augment, config.optim
    model.registers, model.ibot_head, model.drop_path, model.patch = registers, ibot_head, 0.3, 8  # type: ignore[assignment]
    model.prototypes, model.hidden, model.bottleneck, model.layer_scale = 24, 16, 8, 0.5
    augment.global_size, augment.local_size, augment.locals = 32, 16, LOCALS
    config.loss.centring = centring  # type: ignore[assignment]
    config.loss.koleo, config.loss.warmup_teacher_temperature, config.loss.teacher_temperature = 0.1, 0.04, 0.07
    config.teacher.momentum, config.train.learning_rate, config.train.warmup = 0.9, 2e-3, 0.25
    config.train.weight_decay, optim.final_weight_decay, config.train.clip = 0.04, 0.4, 3.0
    optim.layer_decay, optim.patch_embed_factor, optim.freeze_prototypes = 0.9, 0.2, 0.1
    return config


def official_settings(config: CellConfig) -> dict[str, Any]:
    return {
        "steps": STEPS, "patch": 8, "heads": 3, "registers": config.model.registers, "drop_path": 0.3, "clip": 3.0,
        "centering": "centering" if config.loss.centring == "centre" else "sinkhorn_knopp",
        "lr": 2e-3, "min_lr": config.optim.final_learning_rate, "warmup": 5, "freeze": 2, "layerwise_decay": 0.9,
        "patch_embed_lr_mult": 0.2, "weight_decay": 0.04, "weight_decay_end": 0.4, "momentum": 0.9,
        "teacher_temp": 0.07, "warmup_teacher_temp": 0.04, "temp_warmup": 6,
    }  # fmt: skip


def official_weights(config: CellConfig) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Return random weights of the backbone and of the heads under DINOv2's names."""
    made, network = torch.Generator().manual_seed(0), DinoNet(config, CHANNELS)
    own = {n: 0.2 * torch.randn(p.shape, generator=made) for n, p in network.student.backbone.named_parameters()}
    own |= {n: 1 + 0.1 * v for n, v in own.items() if "norm" in n and n.endswith("weight")}
    own["pos_embed"] = torch.cat((own.pop("cls_pos"), own["pos_embed"]), 1)
    if "reg_token" in own:
        own["register_tokens"] = own.pop("reg_token")
    names = {"prototypes": "last_layer.weight_v", "gain": "last_layer.weight_g"}
    heads = {"dino_head": network.student.head}
    if network.student.ibot_head is not None:
        heads["ibot_head"] = network.student.ibot_head
    return own, {
        head: {
            names.get(n, n): 1 + 0.1 * torch.randn(p.shape, generator=made)
            if n == "gain"
            else 0.4 * torch.randn(p.shape, generator=made)
            for n, p in module.named_parameters()
        }
        for head, module in heads.items()
    }


def in_our_names(found: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return a branch's weights under our names."""
    whole = dict(found["backbone"])
    own = as_timm(whole) | {"mask_token": whole["mask_token"], "cls_token": whole["cls_token"]}
    own["cls_pos"] = whole["pos_embed"][:, :1]
    names = {"last_layer.weight_v": "prototypes", "last_layer.weight_g": "gain"}
    all_ = {f"backbone.{name}": tensor for name, tensor in own.items()}
    for head, ours in (("dino_head", "head"), ("ibot_head", "ibot_head")):
        all_ |= {f"{ours}.{names.get(n, n)}": tensor for n, tensor in found.get(head, {}).items()}
    return all_


def batches() -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        masks = torch.rand(2 * IMAGES, 16, generator=made) < 0.4
        masks[1::2] = False
        masks[0, 0] = True
        found.append(
            {
                "globals": torch.randn(2 * IMAGES, CHANNELS, 32, 32, generator=made),
                "locals": torch.randn(LOCALS * IMAGES, CHANNELS, 16, 16, generator=made),
                "masks": masks,
            }
        )
    return found


def ours(config: CellConfig, start: dict[str, Tensor], given: list[dict[str, Tensor]]) -> tuple[DinoNet, list[float]]:
    """Train as the engine does, by what the project declares."""
    network = DinoNet(config, CHANNELS).train()
    network.student.load_state_dict(start)
    network.teacher.load_state_dict(start)
    learning = DinoCell(config).learning()
    groups = learning.parameter_groups(network)
    bases, losses = [group["lr"] for group in groups], []
    optimizer = torch.optim.AdamW(groups, fused=True)
    for number, batch in enumerate(given):
        progress = Progress(number, STEPS, 0)
        for group, base in zip(optimizer.param_groups, bases, strict=True):
            group["lr"] = base * learning.schedule(progress)
        learning.adjust(optimizer.param_groups, progress)
        step = objective(network, by_image(batch), config, progress)
        step.loss.backward()
        for unit in learning.clip_units(network):
            nn.utils.clip_grad_norm_(unit.parameters(), config.train.clip)
        optimizer.step()
        optimizer.zero_grad()
        learning.after_step(network, progress)
        losses.append(float(step.loss.detach()))
    return network, losses


def by_image(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """(crops · B, …) → (B, crops, …)."""
    names = {"globals": "globals", "locals": "locals", "mask": "masks"}
    crops = {ours: batch[name].unflatten(0, (-1, IMAGES)).transpose(0, 1) for ours, name in names.items()}
    return crops | {"grey": torch.full((IMAGES, CHANNELS), 500)}


@pytest.fixture
def same_draws(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Make the n-th permutation of m samples the same, whatever is drawn between: the order of crops is free."""
    turns: Counter[int] = Counter()

    def randperm(count: int, **_: Any) -> Tensor:
        turns[count] += 1
        made = torch.Generator().manual_seed(1000 * count + turns[count])
        return permutation(count, generator=made)

    permutation = torch.randperm
    monkeypatch.setattr(torch, "randperm", randperm)
    return turns


@pytest.mark.parametrize(
    "options",
    [{}, {"centring": "sinkhorn", "ibot_head": "own", "registers": 2}],
    ids=["centre", "sinkhorn, own head, registers"],
)
def test_twenty_steps_are_dinov2s(options: dict[str, Any], same_draws: Counter[int]) -> None:
    config = exact(**options)
    whole, heads = official_weights(config)
    oracle, given = Oracle(whole, heads, official_settings(config)), batches()
    expected = [oracle.step(number, batch) for number, batch in enumerate(given)]
    same_draws.clear()
    network, losses = ours(config, in_our_names({"backbone": whole, **heads}), given)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-4
    for name, branch in (("student", oracle.student), ("teacher", oracle.teacher)):
        found = dict(getattr(network, name).named_parameters())
        wanted = in_our_names(branch)
        assert found.keys() == wanted.keys()
        for weight, value in wanted.items():
            apart = (found[weight] - value).detach().abs()
            if weight.endswith("qkv.bias"):  # softmax cancels the keys' bias: Adam makes steps of mere rounding
                apart.unflatten(0, (3, -1))[1] = 0
            assert float(apart.max()) < 1e-4, (name, weight)
    start = in_our_names({"backbone": whole, **heads})
    moved = {n: float((p.detach() - start[n]).abs().max()) for n, p in network.student.named_parameters()}
    assert min(moved.values()) > 1e-3, moved  # so that equality means something


def test_a_share_of_the_batch_keeps_its_residual() -> None:
    torch.manual_seed(0)
    network = backbone(exact(), CHANNELS).train()
    block, x = network.blocks[0], torch.randn(10, 5, 96)
    for part in (block.attn, block.mlp):  # each residual becomes 1
        part.register_forward_hook(lambda _, __, found: torch.ones_like(found))
    for scale in (block.ls1, block.ls2):
        nn.init.ones_(scale.gamma)
    added = (block(x) - x)[:, 0, 0]
    parts, counts = (10 / 7 * torch.arange(3.0)), torch.zeros(3)
    for value in added.detach():
        counts[int((value - parts).abs().argmin())] += 1
        assert float((value - parts).abs().min()) < 1e-5
    assert float(counts @ torch.arange(3.0)) == 14  # two residuals of seven samples each
    torch.testing.assert_close(block.eval()(x), x + 2)
    assert [len(drawn(n, 0.3, torch.device("cpu"))) for n in (1, 2, 10)] == [1, 1, 7]


def test_the_export_has_the_position_in_the_cls_token() -> None:
    config = exact(registers=2)
    network = DinoNet(config, CHANNELS)
    own = network.teacher.backbone
    with torch.no_grad():
        own.cls_pos.normal_()
    weights = backbone_weights(network)
    torch.testing.assert_close(weights["cls_token"], own.cls_token + own.cls_pos)
    assert weights.keys() & {"cls_pos", "mask_token"} == set()


def test_official_weights_keep_the_position_apart() -> None:
    config = exact(registers=2)
    whole, _ = official_weights(config)
    found = adapt(DinoNet(config, CHANNELS), whole)
    assert found is not None
    torch.testing.assert_close(found["student.backbone.cls_pos"], whole["pos_embed"][:, :1])
    torch.testing.assert_close(found["teacher.backbone.cls_token"], whole["cls_token"])


def test_tokens_decay_and_gains_wait_with_their_prototypes() -> None:
    config = exact(registers=2)
    network = DinoNet(config, CHANNELS)
    names = {p: n for n, p in network.student.named_parameters()}
    groups = {names[p]: g for g in DinoCell(config).learning().parameter_groups(network) for p in g["params"]}
    assert {n for n, g in groups.items() if not g["decays"]} == {
        n for n in groups if n.endswith(".bias") or "norm" in n or "gamma" in n
    }
    assert {n for n, g in groups.items() if g["prototypes"]} == {"head.prototypes", "head.gain"}
    assert groups["backbone.cls_pos"]["scale"] == groups["backbone.cls_token"]["scale"] == pytest.approx(0.9**5)
