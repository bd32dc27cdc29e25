"""The exported network works without runner, and gives the same numbers."""

from __future__ import annotations

import importlib.util
import json

import torch
from safetensors.torch import load_file


def test_the_exported_network_is_the_trained_one(project, tmp_path) -> None:
    trained = project.model(precision=None)
    trained(torch.rand(4, 3, 64, 64))  # moves the running statistics of the norm layers
    trained.eval()
    weights, settings, source = project.export(trained, tmp_path)
    description = json.loads(settings.read_text())
    spec = importlib.util.spec_from_file_location("exported_network", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built = description["network"]
    network = module.UNet(built["channels"], built["features"], built["norm"]).eval()
    network.load_state_dict(load_file(weights))
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(network(x), trained(x))
    assert description["input"]["spacing_mm"] == 4.0
