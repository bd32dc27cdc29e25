"""The exported network works without runner, and gives the same numbers."""

from __future__ import annotations

import importlib.util
import json

import torch
from safetensors.torch import load_file


def test_the_exported_network_is_the_trained_one(project, tmp_path) -> None:
    trained = project.model(precision=None)
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    project.statistics = {"mean": 90.0, "std": 30.0}
    weights, settings, source = project.export(trained, tmp_path)
    assert "runner" not in source.read_text(encoding="utf-8")
    description = json.loads(settings.read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location("exported_network", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built = description["network"]
    kind = getattr(module, built.pop("class").removeprefix("network."))
    network = kind(**built)
    network.load_state_dict(load_file(weights))
    x = torch.rand(2, 1, 16, 20, 24)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(network(x), trained(x), strict=True))
    assert description["input"]["mean"] == 90.0
    assert description["input"]["patch"] == list(project.config.data.patch)
