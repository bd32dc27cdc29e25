"""The norms that a GPU computes, on the CPU: PyTorch's own numbers, in any memory layout, and what they keep."""

from __future__ import annotations

import pytest
import torch
from runner_vesuvius import network
from torch import Tensor, nn
from torch.nn import functional

LAYOUTS = [torch.contiguous_format, torch.channels_last_3d]


def given(channels: int, dtype: torch.dtype) -> list[Tensor]:
    """Input (2, C, 3, 4, 5) whose mean is three times its deviation, weight and bias."""
    made = torch.Generator().manual_seed(channels)
    x = 3 + torch.randn(2, channels, 3, 4, 5, generator=made, dtype=torch.float64)
    weights = torch.randn(2, channels, generator=made, dtype=torch.float64)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return [x.to(dtype).requires_grad_(), *(part.to(wide).requires_grad_() for part in weights)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("groups", "channels", "at_once"), [(2, 8, 2), (1, 4, 1), (4, 4, 2)])
def test_it_is_pytorchs_group_norm(
    groups: int, channels: int, at_once: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_WIDE", at_once * channels * 3 * 4 * 5)
    x, weight, bias = given(channels, torch.float64)
    laid = x.detach().contiguous(memory_format=layout).requires_grad_()
    wanted = functional.group_norm(x, groups, weight, bias, 1e-5)
    found = network._GroupNorm.apply(laid, weight, bias, groups, 1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)
    assert found.is_contiguous(memory_format=layout)
    above = torch.randn_like(wanted)
    one = torch.autograd.grad(wanted, (x, weight, bias), above)
    other = torch.autograd.grad(found, (laid, weight, bias), above)
    torch.testing.assert_close(other, one, rtol=0, atol=1e-12)
    assert other[0].is_contiguous(memory_format=layout)
    assert torch.autograd.gradcheck(network._GroupNorm.apply, (laid, weight, bias, groups, 1e-5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_tensors_are_rounded_once_and_kept_as_they_came(dtype: torch.dtype) -> None:
    x, weight, bias = given(8, dtype)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = network._GroupNorm.apply(x, weight, bias, 2, 1e-5)
    assert found.dtype == dtype
    assert {tensor.dtype for tensor in kept if tensor.numel() == x.numel()} == {dtype}
    wide = x.detach().float().requires_grad_()
    wanted = functional.group_norm(wide, 2, weight, bias, 1e-5)
    torch.testing.assert_close(found, wanted.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    above = torch.randn_like(wanted).to(dtype)
    found = torch.autograd.grad(found, (x, weight, bias), above)
    wanted = torch.autograd.grad(wanted, (wide, weight, bias), above.float())
    torch.testing.assert_close(found[0], wanted[0].to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=1e-5)
    torch.testing.assert_close(found[1:], wanted[1:], rtol=1e-5, atol=1e-4)  # sums of 120 products of up to 6


@pytest.mark.parametrize(
    "norm", [network.GroupNorm(2, 8), network.InstanceNorm(8, False), network.InstanceNorm(8, True)]
)
def test_the_layers_of_a_gpu_are_those_of_a_cpu(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = given(8, torch.float64)
    norm.double().load_state_dict({"weight": weight, "bias": bias})
    wanted = norm(x)
    monkeypatch.setattr(network, "on_gpu", lambda x: True)
    found = norm(x)
    assert found.grad_fn is not None
    assert "_GroupNorm" in str([found.grad_fn, *(before for before, _ in found.grad_fn.next_functions)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)
