"""The export is enough to predict with, and wrong input is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runner_core import BadInput
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import SpectraConfig, SSMConfig
from runner_ssmunet.export import export, frozen_network, load_network
from runner_ssmunet.network import SSMUNetwork
from runner_ssmunet.preprocess import SETTINGS, prepare

MEASURED = np.linspace(900.0, 1800.0, 101)
CLASSES = ("epithelium", "stroma", "blood")


def config(**data: Any) -> SSMConfig:
    settings = SSMConfig()
    settings.data = SpectraConfig(classes=CLASSES, bin=3, **data)
    settings.model.features = None
    return settings


def core(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    bands = sum(np.exp(-(((MEASURED - centre) / 25) ** 2)) for centre in (1080, 1240, 1545, 1655))
    spectra = rng.uniform(0.5, 1, (20, 16, 1)) * bands + rng.normal(0, 0.05, (20, 16, len(MEASURED)))
    return spectra.astype(np.float32), rng.random((20, 16)) < 0.6


@pytest.fixture
def trained(tmp_path: Path) -> tuple[SSMUNetwork, dict[str, np.ndarray], Path]:
    """A network whose running statistics and filters have moved, the statistics of its data, and where it was
    exported to."""
    settings = config()
    spectra, tissue = core()
    prepared, axis = prepare(spectra, MEASURED, tissue, settings.data, "core")
    pixels = prepared[tissue].astype(np.float64)
    statistics = {"wavenumbers": axis, "mean": pixels.mean(0), "std": pixels.std(0)}
    torch.manual_seed(0)
    network = SSMUNetwork(axis.tolist(), len(CLASSES), filters=4, states=4, embed=4, base=4, dropout=0.3)
    scaled = torch.from_numpy(((prepared - statistics["mean"]) / statistics["std"]).astype(np.float32))
    network(scaled[None].repeat(2, 1, 1, 1), torch.from_numpy(tissue)[None].repeat(2, 1, 1))
    with torch.no_grad():
        network.stack.filters.edges.shift.normal_(0, 0.3)
    export(network, tmp_path / "export", settings, Classes(CLASSES, {2: (255, 0, 1)}), statistics)
    return network.eval(), statistics, tmp_path / "export"


Trained = tuple[SSMUNetwork, dict[str, np.ndarray], Path]


def test_the_files_suffice(trained: Trained) -> None:
    """Spectra as measured → logits, by what model.json says, are those of the network that was exported."""
    network, statistics, folder = trained
    assert sorted(file.name for file in folder.iterdir()) == ["model.json", "model.safetensors"]
    loaded, told = load_network(folder)
    assert not any(module.training for module in loaded.modules())
    given = told["input"]
    data = SpectraConfig(**{name: given["prepare"][name] for name in SETTINGS})
    spectra, tissue = core(seed=1)
    prepared, axis = prepare(spectra, MEASURED, tissue, data, "another core")
    assert axis.tolist() == given["wavenumbers"]
    scaled = (prepared.astype(np.float32) - np.float32(given["mean"])) / np.float32(given["std"])
    x = torch.from_numpy(np.where(tissue[..., None], scaled, 0).astype(np.float32))[None]
    where = torch.from_numpy(tissue)[None]
    with torch.no_grad():
        logits = loaded(x, where)
        torch.testing.assert_close(logits, network(x, where), rtol=0, atol=0)
    assert logits.shape == (1, len(told["output"]["classes"]), 20, 16)
    assert dict(zip(told["output"]["labels"], told["output"]["classes"], strict=True)) == dict(enumerate(CLASSES, 1))
    assert told["output"]["colours"] == ["#e69f00", "#ff0001", "#009e73"]  # the data's own, where they have one
    assert given["mean"] == statistics["mean"].tolist()


def test_unannotated_as_a_class_is_described_so(tmp_path: Path, trained: Trained) -> None:
    network, statistics, _ = trained
    settings = config(ignore=None)
    export(network, tmp_path / "other", settings, Classes(CLASSES), statistics)
    told = json.loads((tmp_path / "other" / "model.json").read_text("utf-8"))
    assert told["output"]["labels"] == [0, 1, 2, 3]
    assert told["output"]["classes"] == ["unannotated", *CLASSES]


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no description": (lambda folder: (folder / "model.json").unlink(), r"model\.json: No such file.*export"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors: no such file"),
    "not JSON": (lambda folder: (folder / "model.json").write_text("{"), r"model\.json: this is not JSON"),
    "another project": (
        lambda folder: (folder / "model.json").write_text('{"project": "brainunet"}'), "no ssmunet network",
    ),
    "a list": (lambda folder: (folder / "model.json").write_text("[1]"), "no ssmunet network"),
    "cut off": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100]),
        r"model\.safetensors: does not fit",
    ),
    "other widths": (
        lambda folder: (folder / "model.json").write_text(
            (folder / "model.json").read_text("utf-8").replace('"base": 4', '"base": 8'), "utf-8"
        ),
        r"model\.safetensors: does not fit model\.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named(trained: Trained, damage: Callable[[Path], Any], message: str) -> None:
    _, _, folder = trained
    damage(folder)
    with pytest.raises(BadInput, match=message):
        load_network(folder)


def test_a_frozen_network_goes_on_with_the_head_that_fits(trained: Trained) -> None:
    network, _, folder = trained
    same, other = frozen_network(folder, 3, 4, 4), frozen_network(folder, 5, 4, 4)
    for frozen in (same, other):
        assert frozen.training
        assert not any(parameter.requires_grad for parameter in frozen.stack.parameters())
        assert all(parameter.requires_grad for parameter in frozen.head.parameters())
        for found, expected in zip(frozen.stack.parameters(), network.stack.parameters(), strict=True):
            assert torch.equal(found, expected)
    assert torch.equal(same.head.unet.head.weight, network.head.unet.head.weight)
    assert other.head.unet.head.weight.shape[0] == 5
    assert other.settings == network.settings | {"classes": 5}
