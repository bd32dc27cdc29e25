"""The vision transformer: parameters, masks, registers, drop path, and position embeddings on any grid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.network import backbone
from runner_dinocell.vit import interpolated
from torch import Tensor, nn
from torch.nn import functional


def small(channels: int = 5, **model: Any) -> nn.Module:
    config = demo()
    for name, value in model.items():
        setattr(config.model, name, value)
    torch.manual_seed(0)
    network = backbone(config, channels)
    for name, parameter in network.named_parameters():
        if "gamma" in name or "token" in name:
            nn.init.normal_(parameter)
    return network


def count(size: str, patch: int, channels: int, registers: int = 0) -> int:
    config = CellConfig()
    config.model.size, config.model.patch, config.model.registers = size, patch, registers  # type: ignore[assignment]
    config.augment.local_size = 98 if patch == 14 else 96
    return sum(p.numel() for p in backbone(config, channels).parameters())


def test_parameters() -> None:
    """Count by hand: a block has 12 D² + 13 D and two scales of D; patches C·p²·D + D, tokens and grid, the norm 2
    D."""
    width, depth = 384, 12
    blocks = depth * (12 * width**2 + 13 * width + 2 * width)
    assert count("small", 8, 5) == blocks + (5 * 64 + 1) * width + (2 + 28 * 28) * width + 2 * width == 21_728_640
    # ViT-S/14 with three channels is DINOv2's, but for the grid and for the CLS token's position, which is in the token
    assert count("small", 14, 3) == 22_056_576 - (1 + 37 * 37 - 16 * 16) * width
    assert count("small", 14, 3, registers=4) - count("small", 14, 3) == 4 * width


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("shape", [(48, 48), (24, 24), (16, 72), (96, 96)], ids=str)
def test_any_crop_of_whole_patches(shape, registers) -> None:
    network = small(registers=registers).eval()
    tokens = network(torch.randn(3, 5, *shape))
    assert tokens.image.shape == (3, 96)
    assert tokens.patches.shape == (3, shape[0] // 8 * (shape[1] // 8), 96)


def test_tokens_are_rows_of_patches() -> None:
    """A change of one patch's pixels changes that patch's token most, where blocks do next to nothing."""
    config = demo()
    config.model.layer_scale = 1e-5
    torch.manual_seed(0)
    network = backbone(config, 2).eval()
    image = torch.randn(1, 2, 32, 48)
    changed = image.clone()
    changed[:, :, 16:24, 8:16] += 1
    difference = (network(changed).patches - network(image).patches).abs().sum(-1)[0]
    assert difference.argmax() == 2 * 6 + 1
    assert difference.sort().values[-2] < 1e-2 * difference.max()


def test_nothing_of_a_masked_patch_is_seen() -> None:
    network = small(registers=2).eval()
    image, mask = torch.randn(2, 5, 48, 48), torch.zeros(2, 36, dtype=torch.bool)
    mask[0, 7] = mask[1, 35] = True
    hidden = image.clone()
    hidden[0, :, 8:16, 8:16] = 100.0
    hidden[1, :, 40:, 40:] = -3.0
    for one, other in zip(network(image, mask), network(hidden, mask), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not torch.allclose(network(image).image, network(image, mask).image)
    assert not torch.allclose(network(image).image, network(hidden).image)
    none = network(image, torch.zeros_like(mask))
    torch.testing.assert_close(none.patches, network(image).patches, rtol=0, atol=0)


def test_a_mask_of_everything_leaves_only_positions() -> None:
    network = small().eval()
    mask = torch.ones(1, 36, dtype=torch.bool)
    one, other = (network(torch.randn(1, 5, 48, 48), mask).patches[0] for _ in range(2))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(one.round(decimals=4).unique(dim=0)) == 36


def test_the_mask_token_learns() -> None:
    network = small()
    mask = torch.zeros(1, 36, dtype=torch.bool)
    mask[0, 3] = True
    network(torch.randn(1, 5, 48, 48), mask).patches.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_an_image_does_not_depend_on_the_others() -> None:
    network, images = small().eval().double(), torch.randn(4, 5, 48, 48, dtype=torch.float64)
    torch.testing.assert_close(network(images).image[2:3], network(images[2:3]).image)


def test_drop_path_is_of_training_alone() -> None:
    images = torch.randn(8, 5, 48, 48)
    network = small(drop_path=0.5)
    assert [block.drop_path1.drop_prob for block in network.blocks if hasattr(block.drop_path1, "drop_prob")][-1] == 0.5
    assert not torch.equal(network(images).image, network(images).image)
    network.eval()
    assert torch.equal(network(images).image, network(images).image)
    assert torch.equal(network(images).image, small().eval()(images).image)


def defined(grid: Tensor, height: int, width: int, registers: bool) -> Tensor:
    """DINOv2's definition: bicubic with a scale of (m + 0.1) / n, or to the size with anti-aliasing."""
    side = round(grid.shape[1] ** 0.5)
    if height == width == side:
        return grid
    picture = grid.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if registers:
        large = functional.interpolate(picture, size=(height, width), mode="bicubic", antialias=True)
    else:
        factors = (height + 0.1) / side, (width + 0.1) / side
        large = functional.interpolate(picture, scale_factor=factors, mode="bicubic")
    assert large.shape[2:] == (height, width)
    return large.permute(0, 2, 3, 1).reshape(1, height * width, -1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_positions_are_interpolated_as_in_dinov2(side, height, width, registers) -> None:
    grid = torch.randn(1, side * side, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(side))
    torch.testing.assert_close(interpolated(grid, height, width, registers), defined(grid, height, width, registers))


@pytest.mark.parametrize("registers", [False, True])
def test_gradients_of_positions(registers) -> None:
    grid = torch.randn(1, 16, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda of: interpolated(of, 3, 7, registers), grid)


def test_positions_stay_float32_where_the_network_does_not() -> None:
    grid = torch.randn(1, 36, 4)
    with torch.autocast("cpu", torch.bfloat16):
        low = interpolated(grid, 3, 4, False)
    assert low.dtype is torch.float32
    torch.testing.assert_close(low, interpolated(grid, 3, 4, False), rtol=0, atol=0)


def test_it_compiles_in_one_piece() -> None:
    network, images, mask = small(registers=1).eval(), torch.randn(2, 5, 24, 24), torch.rand(2, 9) < 0.5
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, mask), network(images, mask))
