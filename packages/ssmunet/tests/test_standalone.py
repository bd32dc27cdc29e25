"""What exporters trace computes what `infer` computes, in operations whose shapes depend on no values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runner_ssmunet import batches, standalone
from runner_ssmunet.mamba import Mamba
from runner_ssmunet.network import SSMUNetwork
from runner_ssmunet.scan import selective_scan

AXIS = np.linspace(900, 1800, 30).tolist()


def network(**settings: Any) -> SSMUNetwork:
    torch.manual_seed(2)
    return SSMUNetwork(AXIS, 3, filters=4, states=4, embed=4, base=2, **settings).eval()


def pixels(count: int, share: float) -> dict[str, torch.Tensor]:
    """Spectra (P, 1, 1, L), 0 off the tissue, of which at least one pixel is."""
    drawn = torch.Generator().manual_seed(count)
    tissue = torch.rand(count, 1, 1, generator=drawn) < share
    tissue[-1] = True
    return {"spectra": torch.randn(count, 1, 1, len(AXIS), generator=drawn) * tissue[..., None], "tissue": tissue}


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 255, 257, 600, 1025])
@pytest.mark.parametrize("settings", [{}, {"mode": "legacy"}, {"tissue_only": False}], ids=str)
def test_features_and_attention(settings: dict[str, Any], count: int) -> None:
    whole, batch = network(**settings), pixels(count, 0.7)
    expected, found = batches.described(whole, batch), standalone.infer(whole, batch)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    assert {layer.scan for layer in whole.modules() if isinstance(layer, Mamba)} == {"auto"}


@torch.no_grad()
def test_probabilities() -> None:
    whole, features = network(), torch.randn(2, 16, 16, 4)
    found = standalone.infer(whole, {"features": features})["prediction"]
    torch.testing.assert_close(found, whole.classify(features).softmax(1))


def test_the_loop_is_the_reference() -> None:
    drawn = torch.Generator().manual_seed(0)
    each, state, x = (3, 40, 6), (3, 40, 5), torch.randn(3, 40, 6, generator=drawn)
    words = (
        *(x, torch.randn(each, generator=drawn), -torch.rand(6, 5, generator=drawn)),
        *(torch.randn(state, generator=drawn), torch.randn(state, generator=drawn), torch.randn(6, generator=drawn)),
        *(torch.randn(each, generator=drawn), torch.randn(6, generator=drawn), True),
    )
    expected = selective_scan(
        *(word.double() if isinstance(word, torch.Tensor) else word for word in words), how="reference"
    )
    torch.testing.assert_close(selective_scan(*words, how="looped"), expected.float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:You are calling torch.compile inside torch.export:UserWarning")
@pytest.mark.parametrize("name", ["spectra", "features"])
def test_torch_exports_it_for_any_number_of_pixels(name: str) -> None:
    whole = network()
    example = pixels(5, 0.7) if name == "spectra" else {"features": torch.randn(2, 16, 16, 4)}

    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = whole

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(standalone.infer(self.network, dict(zip(example, tensors, strict=True))).values())

    any_length = tuple({0: torch.export.Dim.AUTO} for _ in example)
    program = torch.export.export(
        Traced(), tuple(example.values()), dynamic_shapes={"tensors": any_length}, strict=False
    ).module()
    other = pixels(9, 0.5) if name == "spectra" else {"features": torch.randn(3, 16, 16, 4)}
    for found, expected in zip(program(*other.values()), standalone.infer(whole, other).values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
