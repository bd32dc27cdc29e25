"""The network: its size, the shapes it takes, and that nothing of a sample's answer comes from another."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from runner_vesuvius import network as networks
from runner_vesuvius.config import PRESETS, ModelConfig, demo, large
from runner_vesuvius.network import ResEncUNet, SurfaceUNet, halved
from torch import nn
from torch.nn import functional


def small(**settings: bool) -> SurfaceUNet:
    torch.manual_seed(0)
    return SurfaceUNet(8, (1, 2, 4), 1, **settings)


def resenc(**settings: bool) -> ResEncUNet:
    """Halved twice in depth, once in height and width; its blocks do not begin as their input, so that all learns."""
    torch.manual_seed(0)
    network = ResEncUNet((4, 6, 8), (1, 2, 1), (2, 1, 1), **settings)
    for module in network.modules():
        if isinstance(module, nn.InstanceNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return network


def built(config: ModelConfig) -> nn.Module:
    name, arguments = config.arguments()
    return getattr(networks, name)(**arguments)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.fixture(scope="module")
def default() -> SurfaceUNet:
    """On no memory."""
    with torch.device("meta"):
        return built(large().model)


def test_the_default_has_the_published_size(default: SurfaceUNet) -> None:
    """33.67 M, with heads for deep supervision or without."""
    assert parameters(default) == 33_670_284
    assert parameters(default) - parameters(default.heads[1:]) == 33_669_961


def test_the_default_on_the_default_patch(default: SurfaceUNet) -> None:
    """Sides that are halved three times and once more with a remainder."""
    with torch.device("meta"), torch.no_grad():
        logits = default(torch.empty(2, 1, 72, 136, 136))
    assert [tuple(level.shape) for level in logits] == [
        (2, 1, 72, 136, 136), (2, 1, 36, 68, 68), (2, 1, 18, 34, 34), (2, 1, 9, 17, 17),
    ]  # fmt: skip


def test_the_networks_of_the_presets_have_the_size_that_is_said() -> None:
    with torch.device("meta"):
        sizes = {name: parameters(built(make().model)) for name, make in PRESETS.items()}
    ours = {**dict.fromkeys(("default", "large", "nnunet"), 33_670_284), "small": 2_278_642, "demo": 258_746}
    assert sizes == ours | dict.fromkeys(("resenc-m", "resenc-l", "resenc-xl"), 102_348_965)


@pytest.mark.parametrize("size", [(16, 16, 16), (48, 48, 48), (17, 23, 30), (20, 16, 41)])
def test_sides_of_any_length(size: tuple[int, int, int]) -> None:
    logits = SurfaceUNet(4, (1, 1, 2, 2, 2), 1)(torch.randn(1, 1, *size))
    expected = [tuple(-(-n // 2**level) for n in size) for level in range(4)]
    assert [tuple(level.shape[2:]) for level in logits] == expected
    assert all(level.isfinite().all() for level in logits)


def test_without_deep_supervision_only_the_finest_answers() -> None:
    (logits,) = small(deep_supervision=False)(torch.randn(1, 1, 16, 16, 16))
    assert logits.shape == (1, 1, 16, 16, 16)


def test_the_demo_has_levels_to_supervise() -> None:
    assert len(built(demo().model)(torch.randn(1, 1, 16, 16, 16))) == 2


@pytest.mark.parametrize("size", [(8, 8, 8), (9, 6, 7)])
def test_halved_takes_means(size: tuple[int, int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = functional.avg_pool3d(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(networks.halved_by_pairs(x), expected)
    assert torch.equal(halved(x), expected)


@pytest.mark.parametrize("make", [small, resenc])
def test_checkpointing_changes_neither_outputs_nor_gradients(make) -> None:
    image = torch.randn(2, 1, 17, 18, 16)
    networks = make(), make(checkpointing=True)
    outputs = [network(image) for network in networks]
    for levels in outputs:
        sum(level.square().mean() for level in levels).backward()
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
    for (name, one), other in zip(networks[0].named_parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def kept_bytes(network: nn.Module, image: torch.Tensor) -> int:
    """Return the bytes that autograd keeps between the passes, each piece of memory once."""
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = network(image)
        del held
    return sum(seen.values())


def test_checkpointing_keeps_less() -> None:
    image = torch.randn(1, 1, 32, 32, 32)
    settings = {"base": 8, "multipliers": (1, 2, 2), "blocks": 3}
    with_it = kept_bytes(SurfaceUNet(**settings, checkpointing=True), image)
    assert with_it < 0.3 * kept_bytes(SurfaceUNet(**settings), image)


def test_resenc_halves_each_axis_as_often_as_asked() -> None:
    logits = resenc()(torch.randn(1, 1, 17, 16, 10))
    assert [tuple(level.shape[2:]) for level in logits] == [(17, 16, 10), (9, 8, 5)]
    assert len(resenc(deep_supervision=False)(torch.randn(1, 1, 8, 8, 8))) == 1


@pytest.mark.parametrize("make", [small, resenc])
def test_samples_do_not_see_each_other(make) -> None:
    network, images = make().double(), torch.randn(3, 1, 16, 18, 20, dtype=torch.float64)
    together = network(images)
    for i in range(3):
        for one, all_of in zip(network(images[i : i + 1]), together, strict=True):
            torch.testing.assert_close(one[0], all_of[i])


def test_training_and_evaluation_are_one() -> None:
    network, image = small(), torch.randn(1, 1, 16, 16, 16)
    with torch.no_grad():
        assert torch.equal(network.train()(image)[0], network.eval()(image)[0])


def test_every_parameter_learns() -> None:
    network = small()
    sum(level.square().mean() for level in network(torch.randn(1, 1, 24, 24, 24))).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("module", [networks.InstanceNorm(5, True), networks.InstanceNorm(5, False), networks.Head(5)])
def test_kernels_for_channels_last_volumes_agree_with_pytorchs(module: nn.Module) -> None:
    """In float64: answers and all gradients."""
    module = module.double()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    image, results = torch.randn(2, 5, 3, 4, 6, dtype=torch.float64), []
    for layout in (torch.contiguous_format, torch.channels_last_3d):
        given = image.clone(memory_format=layout).requires_grad_()
        assert networks.channels_last_on_cpu(given, module.weight) == (layout is torch.channels_last_3d)
        module.zero_grad()
        found = module(given)
        (found - 0.3).pow(3).mean().backward()
        results.append([found.detach(), given.grad, *(parameter.grad.clone() for parameter in module.parameters())])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [small, resenc])
def test_a_network_with_channels_last_answers_and_learns_the_same(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, the only type whose convolutions keep the layout on a CPU."""
    plain = make()
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last_3d)
    taken, asked = [], networks.channels_last_on_cpu
    monkeypatch.setattr(networks, "channels_last_on_cpu", lambda *given: taken.append(asked(*given)) or taken[-1])
    image, results = torch.randn(2, 1, 16, 24, 20), []
    for network in (plain, other):
        taken.clear()
        logits = network(image)
        assert any(taken) == (network is other)
        sum(level.square().mean() for level in logits).backward()
        results.append([*logits, *(parameter.grad for parameter in network.parameters())])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
