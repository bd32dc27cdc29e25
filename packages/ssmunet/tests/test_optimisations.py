"""An optimisation that is switched off makes training slower, but the network learns the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from runner_ssmunet.config import demo
from runner_ssmunet.network import SSMUNetwork
from runner_ssmunet.optimisations import OPTIMISATIONS
from torch import Tensor

AXIS = np.linspace(900, 1800, 21).tolist()


def learned(settings: Mapping[str, Any]) -> list[Tensor]:
    """Logits of a patch and the gradients of all parameters, of one network with these settings of `model`."""
    torch.manual_seed(0)
    fixed = {"filters": 3, "states": 4, "embed": 4, "base": 2, "dropout": 0.0}
    model = SSMUNetwork(AXIS, 3, **(fixed | {name.removeprefix("model."): value for name, value in settings.items()}))
    drawn = torch.Generator().manual_seed(1)
    tissue = torch.rand(2, 16, 16, generator=drawn) < 0.6
    spectra = torch.randn(2, 16, 16, len(AXIS), generator=drawn) * tissue[..., None]
    logits = model(spectra, tissue)
    return [logits.detach(), *torch.autograd.grad(logits.square().mean(), list(model.parameters()))]


@pytest.mark.parametrize("name", [*(o.name for o in OPTIMISATIONS if o.same), "eager", "all"])
def test_without_it_the_network_computes_and_learns_the_same(name: str) -> None:
    """Within rounding: 1e-3 of the largest value of each."""
    off = {o.name: o.off for o in OPTIMISATIONS if o.same} | {"eager": {"model.scan": "eager"}}
    settings = {k: v for each in off.values() for k, v in each.items()} if name == "all" else off[name]
    for found, expected in zip(learned(settings), learned({}), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6 + 1e-3 * float(expected.abs().max()))


def test_the_reference_is_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither scan nor convolution of the compiled kernels is asked."""
    from runner_ssmunet.scan import cpu, reference

    asked = []
    real = reference.selective_scan
    monkeypatch.setattr(reference, "selective_scan", lambda *given: asked.append("scan") or real(*given))
    for name in ("selective_scan", "causal_conv_silu"):
        monkeypatch.setattr(cpu, name, lambda *given, name=name: pytest.fail(f"{name} of the kernels was asked"))
    learned({"model.scan": "reference"})
    assert "scan" in asked


def test_what_is_no_network_s_is_the_data_s() -> None:
    """Optimisations that train on other patches say that they learn something else."""
    assert {o.name for o in OPTIMISATIONS if not o.same} == {o.name for o in OPTIMISATIONS if o.part == "data"}
    assert demo().model.scan == "auto"
