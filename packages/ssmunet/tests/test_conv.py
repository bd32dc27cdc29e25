"""The causal convolution in front of the scan, against PyTorch's in float64."""

from __future__ import annotations

import pytest
import torch
from runner_ssmunet.scan import causal_conv_silu
from torch.nn import functional


def arguments(pixels, length, channels, taps, dtype=torch.float32):
    made = torch.Generator().manual_seed(0)
    shapes = ((pixels, length, channels), (channels, taps), (channels,))
    return [torch.randn(shape, generator=made, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def definition(x, weight, bias):
    """Compute as mamba_ssm's block without its kernel: a depthwise convolution padded at both ends, cut, through
    silu."""
    length, taps = x.shape[1], weight.shape[1]
    y = functional.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=taps - 1, groups=len(weight))
    return functional.silu(y[..., :length]).transpose(1, 2)


def differentiated(function, of):
    y = function(*of)
    weights = torch.cos(torch.arange(y.numel())).bfloat16().view_as(y).to(y.dtype)  # the same in every dtype
    return y.detach(), *torch.autograd.grad(y, of, weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 20, 17, 4), (1, 1, 1, 4), (2, 2, 16, 4), (2, 65, 48, 4), (2, 9, 5, 2), (1, 6, 3, 1)], ids=str
)
def test_it_is_a_depthwise_convolution(shape, dtype) -> None:
    of = arguments(*shape, dtype)
    wanted = differentiated(definition, [each.detach().double().requires_grad_() for each in of])
    rounding = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    for found, exact in zip(differentiated(causal_conv_silu, of), wanted, strict=True):
        assert found.dtype is dtype
        assert (found.double() - exact).abs().max() <= rounding * exact.abs().max()


def test_of_nothing() -> None:
    found = differentiated(causal_conv_silu, arguments(0, 5, 4, 3))
    assert found[0].shape == (0, 5, 4)
    assert not any(each.any() for each in found)


def test_half_of_a_projection() -> None:
    """In the block, x is a view whose pixels and steps lie wide apart."""
    x, weight, bias = arguments(2, 12, 36, 4)
    half = x.detach()[..., :18].requires_grad_()
    wanted = definition(half.double(), weight[:18].double(), bias[:18].double())
    assert (causal_conv_silu(half, weight[:18], bias[:18]).double() - wanted).abs().max() < 1e-5


def test_sums_over_many_pixels() -> None:
    """Sum half a million equal terms, each less than the last bit of the sum so far if it is one float32."""
    pixels = 4096
    x, weight, bias = torch.ones(1, 128, 1), torch.ones(1, 4), torch.ones(1)

    def gradients(x, *of):
        return torch.cat([g.flatten() for g in torch.autograd.grad(causal_conv_silu(x, *of).sum(), of)]).double()

    wanted = pixels * gradients(x.double(), *(of.double().requires_grad_() for of in (weight, bias)))
    found = gradients(x.expand(pixels, -1, -1), *(of.requires_grad_() for of in (weight, bias)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)


def test_gradients_of_gradients_are_not_taken_for_zero() -> None:
    x, weight, bias = arguments(1, 3, 2, 2)
    (slope,) = torch.autograd.grad(causal_conv_silu(x, weight, bias).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
