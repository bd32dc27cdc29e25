"""Maps of what the CLS token looks at: against whole attention in float64, wrapped, sharded and compiled; and drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runner_dinocell import attention, snapshot
from runner_dinocell.attention import attention_maps, cls_row
from runner_dinocell.config import demo
from runner_dinocell.network import DinoNet, shard_units
from torch import Tensor, nn


def network(**model: Any) -> DinoNet:
    config = demo()
    config.model.prototypes, config.model.hidden, config.model.bottleneck = 64, 32, 16
    for name, value in model.items():
        setattr(config.model, name, value)
    torch.manual_seed(0)
    made = DinoNet(config, 3).eval()
    for name, parameter in made.named_parameters():
        if "gamma" in name or "qkv" in name:  # of 1e-5 and 0.02, with which all tokens attend to all alike
            nn.init.normal_(parameter, std=0.15)
    return made


def defined(backbone: nn.Module, images: Tensor) -> Tensor:
    """Every token's attention to every token in the last block, in float64: (M, heads, N, N)."""
    seen: list[Tensor] = []
    handle = backbone.blocks[-1].norm1.register_forward_hook(lambda *of: seen.append(of[2]))
    backbone(images)
    handle.remove()
    layer = backbone.blocks[-1].attn
    tokens, weight, bias = seen[0].double(), layer.qkv.weight.double(), layer.qkv.bias.double()
    q, k, _ = (tokens @ weight.T + bias).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)


@pytest.mark.parametrize("registers", [0, 2])
@torch.no_grad()
def test_it_is_the_last_blocks_first_row(registers) -> None:
    net, images = network(registers=registers), torch.randn(4, 3, 48, 32)
    maps = attention_maps(net, images)
    assert maps.shape == (4, 3, 6, 4)
    wanted = defined(net.teacher.backbone, images)[:, :, 0, 1 + registers :].unflatten(2, (6, 4))
    torch.testing.assert_close(maps.double(), wanted, rtol=1e-4, atol=1e-6)
    assert (maps.sum((2, 3)) < 1 + 1e-6).all()


@torch.no_grad()
def test_of_a_bag_it_is_the_mean_over_channels() -> None:
    net, images = network(channels="bag"), torch.randn(2, 3, 48, 48)
    each = [attention_maps(net, images[:, [channel]]) for channel in range(3)]
    torch.testing.assert_close(attention_maps(net, images), torch.stack(each).mean(0))


def test_one_row_is_kept_and_nothing_stays_behind(monkeypatch) -> None:
    """For 4 images B · heads · N numbers are kept, where whole attention has N times as many; no hook is left."""
    net, kept = network(), []
    monkeypatch.setattr(attention, "cls_row", lambda *of: kept.append(cls_row(*of)) or kept[-1])
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    attention_maps(net, torch.randn(4, 3, 48, 48))
    assert [row.numel() for row in kept] == [4 * 3 * 37]
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_the_default_network_keeps_a_thirteenth_of_a_megabyte() -> None:
    """Four crops of 224², patches of 8, six heads: 785 tokens."""
    layer = nn.Module()
    layer.qkv, layer.num_heads = nn.Linear(384, 3 * 384), 6
    row = cls_row(layer, torch.randn(4, 785, 384))
    assert row.numel() * row.itemsize == 75_360


def test_a_failing_pass_leaves_no_hook() -> None:
    net = network()
    with pytest.raises(RuntimeError):
        attention_maps(net, torch.randn(1, 4, 48, 48))
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_of_a_compiled_network() -> None:
    net, images = network(), torch.randn(2, 3, 48, 48)
    wanted, embedded = attention_maps(net, images), net.embed(images)
    net.compile(backend="eager")
    torch.testing.assert_close(net.embed(images), embedded)
    torch.testing.assert_close(attention_maps(net, images), wanted)
    torch.testing.assert_close(net.embed(images), embedded)


def test_in_bfloat16() -> None:
    net, images = network(), torch.randn(2, 3, 48, 48)
    with torch.autocast("cpu", torch.bfloat16):
        low = attention_maps(net, images)
    assert low.dtype is torch.float32
    torch.testing.assert_close(low, attention_maps(net, images), rtol=0.2, atol=0.01)


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_under_ddp(group) -> None:
    net, images = network(), torch.randn(2, 3, 48, 48)
    wanted = attention_maps(net, images)
    wrapped = nn.parallel.DistributedDataParallel(net)
    torch.testing.assert_close(attention_maps(wrapped.module, images), wanted)


@pytest.mark.parametrize("apart", [False, True])
def test_sharded(group, apart: bool) -> None:
    """Before the first step, between a step's passes, and after it; weights are shards again afterwards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    net, images = network(), torch.randn(2, 3, 48, 48)
    wanted, embedded = attention_maps(net, images), net.embed(images)
    mesh = init_device_mesh("cpu", (1,))
    layers = [module.qkv for module in net.modules() if hasattr(module, "qkv")] if apart else []
    for unit in (*layers, *shard_units(net), net):
        fully_shard(unit, mesh=mesh)
    torch.testing.assert_close(attention_maps(net, images), wanted)
    globals_, mask = torch.randn(2, 2, 3, 48, 48), torch.rand(2, 2, 36) < 0.3
    student = net(globals_, torch.randn(2, 2, 3, 24, 24), mask)
    teacher = net.teach(globals_, student.masked_index)
    torch.testing.assert_close(attention_maps(net, images), wanted)
    (student.global_logits.sum() + student.local_logits.sum() + student.masked_logits.sum()).backward()
    assert all(p.grad is not None for p in net.student.parameters())
    torch.testing.assert_close(attention_maps(net, images), wanted)
    torch.testing.assert_close(net.embed(images), embedded)
    assert teacher.features.shape == (4, 96)
    assert all(isinstance(tensor, DTensor) for name, tensor in net.state_dict().items() if "centring" not in name)


def test_the_picture() -> None:
    """Fields in their channels' colours above; below, each map from 0 to its own highest, patch by patch."""
    images = np.full((4, 2, 48, 48), -1.0, np.float32)  # black
    images[1, 0, :, :24] = (1 - 0.15) / 0.15  # the first channel at its upper percentile, on the left
    maps = np.zeros((4, 3, 6, 6), np.float32)
    maps[2, 1, 1, 3] = 0.5
    picture = snapshot.snapshot(images, maps, ["DNA", "ER"])
    assert picture.dtype == np.uint8
    side = 4 * 48
    assert picture.shape == (18 + side + 4 + 18 + 4 + side + 4, 4 * (side + 4) - 4, 3)
    assert (picture[18 + 10, side + 4 + 10] == snapshot.COLOURS[0]).all()
    assert (picture[18 + 10, side + 4 + side - 10] == 0).all()
    below = picture[18 + side + 4 + 18 + 4 :][:side, 2 * (side + 4) :][:, :side]
    brightest = (below == snapshot.HEAT[-1]).all(-1)
    assert brightest.sum() == 32**2
    assert brightest[32:64, 96:128].all()
    assert (below[~brightest] == snapshot.HEAT[0]).all()


def test_colours_differ_for_the_colour_blind() -> None:
    """Heat rises in brightness, so that it can be read without colour; a map of nothing is dark, not an error."""
    luma = np.array(snapshot.HEAT) @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(luma) > 20).all()
    assert (snapshot.heat(np.zeros((2, 2))) == snapshot.HEAT[0]).all()
