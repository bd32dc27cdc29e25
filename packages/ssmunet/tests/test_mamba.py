"""The Mamba block: its parameters, that it looks back only, and the whole of it against the definition."""

from __future__ import annotations

import math

import pytest
import torch
from runner_ssmunet.mamba import Mamba
from torch import Tensor
from torch.nn import functional


def test_parameters_are_named_and_shaped_as_in_mamba_ssm() -> None:
    shapes = {name: tuple(value.shape) for name, value in Mamba(24).state_dict().items()}
    assert shapes == {
        "A_log": (48, 16), "D": (48,), "in_proj.weight": (96, 24), "conv1d.weight": (48, 1, 4), "conv1d.bias": (48,),
        "x_proj.weight": (34, 48), "dt_proj.weight": (48, 2), "dt_proj.bias": (48,), "out_proj.weight": (24, 48),
    }  # fmt: skip
    assert tuple(Mamba(24, d_state=3, d_conv=2, expand=1, dt_rank=5).x_proj.weight.shape) == (11, 24)


def test_initial_values() -> None:
    block = Mamba(64, dt_min=0.01, dt_max=0.2)
    assert torch.allclose(block.A_log.exp(), torch.arange(1.0, 17).expand(128, 16))
    assert torch.equal(block.D, torch.ones(128))
    steps = functional.softplus(block.dt_proj.bias.detach())
    assert steps.min() >= 0.0099
    assert steps.max() <= 0.2001
    assert steps.log().std().item() == pytest.approx(math.log(20) / math.sqrt(12), rel=0.2)  # log-uniform
    assert block.dt_proj.weight.abs().max() <= 4**-0.5
    assert Mamba(8, dt_min=1e-9, dt_max=1e-8).dt_proj.bias.min().item() == pytest.approx(
        math.log(math.expm1(1e-4)), rel=1e-3
    )
    assert {name for name, value in block.named_parameters() if hasattr(value, "_no_weight_decay")} == {"A_log", "D"}


def definition(block: Mamba, z: Tensor) -> Tensor:
    """Gu & Dao 2023, algorithm 2 and figure 3, a step at a time."""
    x, gate = functional.linear(z, block.in_proj.weight).chunk(2, -1)
    x = functional.silu(block.conv1d(x.transpose(1, 2))[..., : z.shape[1]].transpose(1, 2))
    rank, states = block.dt_rank, block.d_state
    small = functional.linear(x, block.x_proj.weight)
    delta = functional.softplus(block.dt_proj(small[..., :rank]))
    B, C = small[..., rank : rank + states], small[..., rank + states :]
    h, y = x.new_zeros(len(x), block.d_inner, states), []
    for t in range(z.shape[1]):
        decay = torch.exp(delta[:, t, :, None] * -torch.exp(block.A_log))
        h = decay * h + (delta[:, t] * x[:, t])[..., None] * B[:, t, None]
        y.append((h * C[:, t, None]).sum(-1) + block.D * x[:, t])
    return functional.linear(torch.stack(y, 1) * functional.silu(gate), block.out_proj.weight)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("of", [{}, {"d_state": 5, "d_conv": 3, "expand": 3, "dt_rank": 4}], ids=str)
def test_the_whole_block_is_the_definition(of, dtype, rounding) -> None:
    torch.manual_seed(0)
    block = Mamba(10, **of).to(dtype)
    z = torch.randn(3, 33, 10, dtype=dtype, requires_grad=True)
    twin, wide = Mamba(10, **of).double(), z.detach().double().requires_grad_()
    twin.load_state_dict(block.state_dict())
    weights = torch.randn(3, 33, 10, dtype=torch.float64)
    found = block(z)
    found.backward(weights.to(dtype))
    wanted = definition(twin, wide)
    wanted.backward(weights)
    assert found.dtype is dtype
    pairs = {"y": (found, wanted), "z": (z.grad, wide.grad)}
    exact = dict(twin.named_parameters())
    pairs |= {name: (value.grad, exact[name].grad) for name, value in block.named_parameters()}
    for name, (a, b) in pairs.items():
        assert (a.double() - b).abs().max() <= rounding * b.abs().max(), name


def test_a_step_sees_itself_and_those_before_it() -> None:
    z = torch.randn(1, 12, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(Mamba(6)(z)[0, 7].sum(), z)
    assert gradient[0, :8].abs().sum(1).min() > 0
    assert not gradient[0, 8:].any()


def test_without_pixels_and_with_one_step() -> None:
    block = Mamba(6)
    assert block(torch.zeros(0, 5, 6)).shape == (0, 5, 6)
    assert block(torch.ones(2, 1, 6)).shape == (2, 1, 6)


@pytest.mark.filterwarnings("error:Dynamo detected a call")
def test_compiled_it_is_the_same_block() -> None:
    """torch.compile leaves the scan out; it would warn of the cached choice it looks into, and unroll the steps."""
    torch.manual_seed(0)
    block, z = Mamba(6), torch.randn(2, 20, 6)
    gradients = []
    for forward in (block, torch.compile(block, backend="eager")):
        block.zero_grad()
        y = forward(z)
        y.square().sum().backward()
        gradients.append([y.detach(), *(value.grad.clone() for value in block.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_under_autocast_it_is_close_and_short() -> None:
    torch.manual_seed(0)
    block, z = Mamba(16), torch.randn(2, 65, 16)
    wanted = block(z)
    with torch.autocast("cpu", torch.bfloat16):
        found = block(z)
    assert found.dtype is torch.bfloat16
    assert (found.float() - wanted).abs().max() < 0.03 * wanted.abs().max()
    found.sum().backward()
    assert {value.grad.dtype for value in block.parameters()} == {torch.float32}


@pytest.mark.parametrize("d_model", [16, 32])
def test_gradients_in_bfloat16_are_those_in_float32_also_with_one_step_size(d_model: int) -> None:
    """16 channels have one step size, a column of a wider matrix: oneDNN multiplied it wrongly (oneDNN#4209)."""
    torch.manual_seed(0)
    block = Mamba(d_model)
    z, pull = torch.randn(4, 119, d_model), torch.randn(4, 119, d_model)
    found = []
    for short in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=short):
            y = block(z)
        found.append(torch.autograd.grad((y.float() * pull).sum(), [*block.parameters()]))
    for right, own in zip(*found, strict=True):
        assert float((own - right).norm() / right.norm()) < 0.05
