"""The export is a model of timm, works without runner, and gives the teacher's embeddings."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import timm
import torch
from runner_dinocell.augment import CENTRE, SPREAD, whole
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.export import export
from runner_dinocell.network import DinoNet
from safetensors.torch import load_file
from torch import nn

CHANNELS = ["DNA", "ER", "AGP"]


def trained(**model: Any) -> tuple[DinoNet, CellConfig]:
    config = demo()
    config.model.prototypes, config.model.hidden, config.model.bottleneck = 32, 16, 8
    for name, value in model.items():
        setattr(config.model, name, value)
    config.augment.local_size = 2 * config.model.patch
    torch.manual_seed(0)
    network = DinoNet(config, len(CHANNELS)).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    return network, config


@pytest.mark.parametrize(
    "model", [{}, {"registers": 4, "patch": 16}, {"channels": "bag"}, {"size": "tiny", "registers": 1}], ids=str
)
def test_the_exported_backbone_is_the_teachers(model, tmp_path) -> None:
    network, config = trained(**model)
    weights, settings, source = export(network, tmp_path, config, CHANNELS)
    assert "runner" not in source.read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("exported_network", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images = torch.rand(2, 3, 48, 48)
    torch.testing.assert_close(module.embed(module.load(tmp_path), images), network.embed(images))

    arguments = json.loads(settings.read_text(encoding="utf-8"))["timm"]
    bare = timm.create_model(**arguments).eval()
    bare.load_state_dict(load_file(weights), strict=True)
    if "channels" not in model:
        with torch.no_grad():
            torch.testing.assert_close(bare(images), network.embed(images))


def test_windows_resized_as_it_says_are_what_the_network_reads(tmp_path) -> None:
    network, config = trained()
    _, settings, _ = export(network, tmp_path, config, CHANNELS)
    told = json.loads(settings.read_text(encoding="utf-8"))["input"]
    window = torch.rand(2, 3, 75, 75)
    resize = {**told["resize"], "size": tuple(told["resize"]["size"])}
    made = (torch.nn.functional.interpolate(window, **resize) - CENTRE) / SPREAD
    torch.testing.assert_close(made, whole(window, config.augment.global_size), atol=1e-5, rtol=1e-5)


def test_it_says_how_to_feed_it(tmp_path) -> None:
    network, config = trained()
    _, settings, _ = export(network, tmp_path / "field", config, CHANNELS)
    told = json.loads(settings.read_text(encoding="utf-8"))
    assert told["input"]["channels"] == CHANNELS
    assert told["input"]["intensity"] == "((value - low) / (high - low), within 0 and 1.5, - 0.15) / 0.15, as float32"
    assert "percentiles 0.1 and 99.9" in told["input"]["low and high"]
    _, settings, _ = export(network, tmp_path / "set", config, CHANNELS, torch.tensor([[100.0, 900.0]] * 3))
    assert json.loads(settings.read_text(encoding="utf-8"))["input"]["low and high"] == [[100.0, 900.0]] * 3
