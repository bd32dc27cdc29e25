"""Ours against the package mamba-ssm: its reference scan, its block, its weights. Skipped where it is not installed.

`bash .ci/run mamba` installs it without its CUDA kernel, which its reference and its block's slow path do not need.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from runner_ssmunet import mamba
from runner_ssmunet.scan import mamba_ssm as adapter
from runner_ssmunet.scan import selective_scan
from torch import Tensor

if find_spec("mamba_ssm") is None:
    pytest.skip("mamba-ssm is not installed: bash .ci/run mamba", allow_module_level=True)


def load(name: str) -> Any:
    """A module of mamba-ssm; where its kernel was not built, an empty stand-in lets it be imported."""
    try:
        import_module("selective_scan_cuda")
    except (ImportError, OSError):
        sys.modules["selective_scan_cuda"] = ModuleType("selective_scan_cuda")
    try:
        return import_module(name)
    finally:
        if not hasattr(sys.modules["selective_scan_cuda"], "fwd"):
            del sys.modules["selective_scan_cuda"]


INTERFACE = load("mamba_ssm.ops.selective_scan_interface")
THEIRS = load("mamba_ssm.modules.mamba_simple")


def theirs(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Any) -> Tensor:
    """`selective_scan_ref`, which has the steps last."""
    D, z, delta_bias, softplus = rest
    sequences = [None if of is None else of.transpose(1, 2) for of in (x, delta, B, C, z)]
    x, delta, B, C, z = sequences
    return INTERFACE.selective_scan_ref(x, delta, A, B, C, D, z, delta_bias, softplus).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["reference", "eager", "auto"])
@pytest.mark.parametrize("shape", [(3, 65, 17, 16), (2, 1, 5, 1), (1, 425, 48, 16)], ids=str)
@pytest.mark.parametrize("plain", [False, True])
def test_their_reference_and_ours_agree(shape, how, dtype, plain) -> None:
    pixels, length, channels, states = shape
    made = torch.Generator().manual_seed(0)

    def normal(*of: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(of, generator=made).to(dtype).requires_grad_()

    x, delta, z = (normal(pixels, length, channels) for _ in range(3))
    B, C = (normal(pixels, length, states) for _ in range(2))
    A = (-torch.rand((channels, states), generator=made) - 0.1).requires_grad_()
    D, bias = (normal(channels, dtype=torch.float32) for _ in range(2))
    rest = (None, None, None, True) if plain else (D, z, bias, True)
    tensors = [of for of in (x, delta, A, B, C, *rest) if isinstance(of, Tensor)]
    results = []
    for scan in (theirs, lambda *of: selective_scan(*of, how=how)):
        y = scan(x, delta, A, B, C, *rest)
        results.append((y, *torch.autograd.grad(y, tensors, torch.cos(torch.arange(y.numel())).view_as(y).to(dtype))))
    rounding = 1e-5 if dtype is torch.float32 else 1e-2
    for wanted, found in zip(*results, strict=True):
        assert found.dtype is wanted.dtype
        assert (found - wanted).abs().max() <= rounding * wanted.abs().max()


@pytest.fixture
def their_block(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Their block's own slow path, on their reference scan."""
    monkeypatch.setattr(THEIRS, "selective_scan_fn", INTERFACE.selective_scan_ref)
    return lambda *of, **words: THEIRS.Mamba(*of, use_fast_path=False, **words)


@pytest.mark.parametrize("words", [{}, {"d_state": 5, "d_conv": 3, "expand": 3, "dt_rank": 4}], ids=str)
def test_one_seed_draws_the_same_block(words, their_block) -> None:
    """Names, order, shapes and every bit of the initial values; then state dicts load both ways, outputs agree."""
    blocks = []
    for make in (their_block, mamba.Mamba):
        torch.manual_seed(1)
        blocks.append(make(24, **words))
    wanted, found = blocks
    assert list(found.state_dict()) == list(wanted.state_dict())
    assert all(torch.equal(value, wanted.state_dict()[name]) for name, value in found.state_dict().items())
    for name, value in wanted.named_parameters():
        ours = found.get_parameter(name)
        assert getattr(ours, "_no_weight_decay", False) == getattr(value, "_no_weight_decay", False), name
    torch.manual_seed(2)
    z = torch.randn(3, 40, 24, requires_grad=True)
    for source, target in ((wanted, mamba.Mamba(24, **words)), (found, their_block(24, **words))):
        target.load_state_dict(source.state_dict())
        results = []
        for block in (source, target):
            y = block(z)
            weights = torch.cos(torch.arange(y.numel())).view_as(y)
            results.append((y, *torch.autograd.grad(y, [z, *dict(sorted(block.named_parameters())).values()], weights)))
        for a, b in zip(*results, strict=True):
            assert (a - b).abs().max() <= 2e-5 * a.abs().max()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU its kernel may be there")
def test_without_its_kernel_it_is_not_chosen() -> None:
    assert "selective_scan_cuda" in (adapter.unavailable() or "")


def test_the_workspace_states_what_it_needs() -> None:
    """The metadata that spares `uv lock` a build of it is its own, less what only its Mamba-3 imports, if it can."""
    project = Path(__file__).parents[3] / "pyproject.toml"
    stated = [
        of
        for of in tomllib.loads(project.read_text())["tool"]["uv"]["dependency-metadata"]
        if of["name"] == "mamba-ssm"
    ]
    needed = {Requirement(text).name for text in metadata.requires("mamba-ssm") or [] if "extra ==" not in text}
    assert [of["version"] for of in stated] == [metadata.version("mamba-ssm")]
    assert {Requirement(text).name for text in stated[0]["requires-dist"]} == needed - {
        "apache-tvm-ffi",
        "quack-kernels",
        "tilelang",
    }
