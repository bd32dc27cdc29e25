"""The U-Net: what prediction computes faster is what training computes."""

from __future__ import annotations

import copy

import pytest
import torch
from runner_brainunet.network import UNet


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_prediction_gives_what_the_layers_one_by_one_give(norm: str) -> None:
    torch.manual_seed(0)
    network = UNet(3, (8, 16, 32), norm)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low in ((module.running_mean, -1), (module.running_var, 0.3), (module.weight, 0.5)):
                torch.nn.init.uniform_(values, low, 2)
    network.eval()
    image = torch.rand(2, 3, 40, 32)
    exact = copy.deepcopy(network).double()(image.double())
    slow = network(image)  # gradients are wanted: layer by layer
    with torch.no_grad():
        fast = network(image)
    assert (fast - exact).abs().max() < 1e-4 * exact.abs().max()
    assert (norm == "batch") == bool((fast != slow).any()), "batch norm was not folded, or something else was"
