"""What exporters trace computes what `infer` computes, in operations whose shapes depend on no values."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runner_ssmunet import bands, batches, readers, standalone, whole
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import SpectraConfig, SSMConfig
from runner_ssmunet.mamba import Mamba
from runner_ssmunet.network import SSMUNetwork
from runner_ssmunet.preprocess import prepare, tissue_mask
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


# ---------------------------------------------------------------- the script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with the modules that lie beside it in an export."""
    for name, module in (("bands", bands), ("whole", whole), ("session", ModuleType("session"))):
        monkeypatch.setitem(sys.modules, name, module)
    spec = spec_from_file_location("standalone_script", Path(standalone.__file__).with_name("predict.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(data: SpectraConfig, own: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return what predict.json has."""
    found = standalone.standalone(SSMConfig(data=data), Classes(("a", "b")), {"wavenumbers": own}, ())
    assert [file.name for file in found.files] == ["predict.py", "bands.py", "whole.py"]
    loaded: dict[str, Any] = json.loads(json.dumps(found.settings))
    assert {*loaded["about"]} == {*loaded} - {"about"}
    return loaded


@pytest.mark.parametrize("given", [
    {}, {"bin": 3}, {"step": 8.0}, {"step": 2.5, "gap": None}, {"normalise": "amide1", "bin": 2}, {"normalise": "none"},
    {"wavenumbers": (1000.0, 1241.5, 1545.0, 1655.0), "band_width": 12.0}, {"tissue": "amide1"}, {"units": "percent"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("masked", [True, False])
def test_cores_are_read_and_prepared_as_by_runner(
    script: Any, given: dict[str, Any], masked: bool, tmp_path: Path
) -> None:
    rng, path = np.random.default_rng(5), tmp_path / "core_1.npz"
    axis = np.linspace(3000, 850, 541)  # falls
    inside = np.hypot(*(np.indices((20, 23)) - 10.0)) < 8
    band = np.exp(-(((axis - 1655) / 25) ** 2))
    spectra = (0.02 * rng.random((20, 23, 541)) + inside[..., None] * (0.2 + band)).astype(np.float32)
    data = SpectraConfig(**given)
    if data.units == "percent":
        spectra = 100 * 10**-spectra
    if masked:
        spectra[0, :3] = np.nan
    np.savez(path, X=spectra, wn=axis, **({"tissue_mask": inside} if masked else {}))
    core = readers.read(path, units=None if data.units == "auto" else data.units)
    tissue = tissue_mask(core, data.tissue, "core")
    assert 0.2 < tissue.mean() < 0.6
    expected, own = prepare(core.spectra, core.wavenumbers, tissue, data, "core")
    about = numbers(data, own)
    found = script.read(path, None, about)
    np.testing.assert_array_equal(found.spectra, core.spectra)
    np.testing.assert_array_equal(found.wavenumbers, core.wavenumbers)
    np.testing.assert_array_equal(script.tissue_of(found, data.tissue), tissue)
    chosen = SimpleNamespace(**about["data"])
    planned = script.plan(found.wavenumbers, chosen, own)
    np.testing.assert_array_equal(script.prepare(found.spectra, tissue, planned, chosen.normalise), expected)
    with pytest.raises(ValueError, match=r"other wavenumbers than the network|nothing was measured at"):
        script.plan(found.wavenumbers, chosen, own[:-1] if len(own) > 4 and data.step is None else own + 2000)


def test_a_cube_needs_its_axis(script: Any, tmp_path: Path) -> None:
    own, path = np.linspace(900, 1300, 41), tmp_path / "cube.npy"
    about = numbers(SpectraConfig(), own)
    np.save(path, np.ones((4, 5, 41)))
    np.testing.assert_array_equal(script.read(path, None, about).wavenumbers, own)
    np.save(path, np.ones((4, 5, 61)))
    with pytest.raises(ValueError, match="--wavenumbers names the axis"):
        script.read(path, None, about)
    np.savetxt(tmp_path / "axis.txt", np.linspace(900, 1500, 61))
    np.save(tmp_path / "cube.tissue.npy", np.eye(4, 5))
    found = script.read(path, tmp_path / "axis.txt", about)
    assert found.wavenumbers[-1] == 1500
    assert found.tissue.sum() == 4
    (tmp_path / "cube.tissue.png").touch()
    with pytest.raises(ValueError, match="one mask is needed"):
        script.read(path, tmp_path / "axis.txt", about)


def test_settings_that_the_script_does_not_know_are_said() -> None:
    config = SSMConfig()
    config.preprocess.steps, config.data.baseline, config.crop.mode = ("emsc", "rmies"), "rubberband", "body"
    found = standalone.standalone(config, Classes(), {}, ())
    assert not found.files
    assert found.infer is standalone.infer
    for name in ("preprocess.steps (emsc, rmies)", "data.baseline rubberband", "crop.mode body"):
        assert name in found.missing
